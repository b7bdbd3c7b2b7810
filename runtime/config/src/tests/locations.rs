//! Tests of the settings that name the places of an event's key, id, sequence, type and time.

use super::*;

/// Returns a configuration whose only stream has a source with `settings`, in line 6 and the following lines.
fn stream(kind: &str, ordering: &str, settings: &str) -> String {
    let more = match kind {
        "amqp" => "queue = \"q\"\nexchange = \"x\"\n",
        "file" => "path = \"-\"\n",
        _ => "",
    };
    format!(
        "[streams.a]\nhandler = \"h\"\nordering = \"{ordering}\"\n[streams.a.source]\nkind = \"{kind}\"\n{settings}\n\
         {more}{BROKER}"
    )
}

fn source(kind: &str, ordering: &str, settings: &str) -> SourceConfig {
    let loaded = parse(&stream(kind, ordering, settings));
    let loaded = loaded.unwrap_or_else(|error| panic!("{settings}: {error}"));
    loaded.config.streams["a"].source.clone()
}

fn pointer(text: &str) -> Place {
    Place::Data(JsonPointer::parse(text).expect("a pointer"))
}

fn header(name: &str) -> Place {
    Place::Header(name.to_owned())
}

#[test]
fn sources_without_locations_have_the_default_places() {
    for kind in ["amqp", "http", "file", "stream"] {
        let source = source(kind, "fifo", "");
        assert!(source.locations().is_default(), "{kind}");
        assert!(source.cloudevent_locations().is_default(), "{kind}");
    }
    assert!(source("amqp", "fifo", "key = \"routing-key\"").locations().is_default());
}

#[test]
fn places_are_parsed() {
    let key = |text: &str| {
        source("amqp", "fifo", &format!("key = {text}")).locations().key.expect("a key")
    };
    assert_eq!(key("\"header:order-id\""), KeyLocation::from(header("order-id")));
    assert_eq!(key("\"header:a:b\""), KeyLocation::from(header("a:b")));
    for property in [
        "message_id",
        "correlation_id",
        "type",
        "app_id",
        "user_id",
        "reply_to",
        "timestamp",
        "expiration",
        "priority",
        "content_type",
        "content_encoding",
    ] {
        let Some(Place::Property(found)) =
            key(&format!("\"property:{property}\"")).single().cloned()
        else {
            panic!("{property}");
        };
        assert_eq!(found.name(), property);
    }
    assert_eq!(key("\"data:/a~1b/~0/0/\""), KeyLocation::from(pointer("/a~1b/~0/0/")));
    let Place::Data(parsed) = pointer("/a~1b/~0/0/") else { unreachable!() };
    assert_eq!(parsed.tokens(), ["a/b", "~", "0", ""]);
    assert_eq!(key("\"*\"").0, [KeyPlace::Stream]);
    assert_eq!(
        key("[\"header:a\", \"data:/b\", \"{header:tenant}/{data:/order}!\", \"*\"]").0,
        [
            KeyPlace::Place(header("a")),
            KeyPlace::Place(pointer("/b")),
            KeyPlace::Composite(vec![
                KeyPart::Place(header("tenant")),
                KeyPart::Text("/".to_owned()),
                KeyPart::Place(pointer("/order")),
                KeyPart::Text("!".to_owned()),
            ]),
            KeyPlace::Stream,
        ]
    );
    let more = "id = [\"property:message_id\", \"content\"]\ntype = \"header:__TypeId__\"\ntime = [\"data:/at\"]";
    let found =
        source("amqp", "sequenced", &format!("{more}\nsequence = \"header:version\"")).locations();
    assert_eq!(
        found.id.expect("an id").0,
        [IdPlace::Place(Place::Property(MessageProperty::MessageId)), IdPlace::Content]
    );
    assert_eq!(found.kind.expect("a type").0, [header("__TypeId__")]);
    assert_eq!(found.time.expect("a time").0, [pointer("/at")]);
    assert_eq!(found.sequence.expect("a sequence").0, [header("version")]);
    assert_eq!(found.key, None);
    for kind in ["http", "file"] {
        let found = source(kind, "fifo", "key = \"attribute:customer\"\nid = \"none\"").locations();
        assert_eq!(found.key, Some(Place::Attribute("customer".to_owned()).into()));
        assert_eq!(found.id.expect("an id").0, [IdPlace::Unique]);
    }
}

/// A stream that reads from the broker also accepts CloudEvents. Only places in the data exist in both forms.
#[test]
fn locations_in_the_data_apply_to_cloud_events_too() {
    let of = |settings: &str| source("amqp", "fifo", settings).cloudevent_locations();
    assert!(of("key = \"header:a\"\nid = [\"property:message_id\", \"content\"]").is_default());
    assert!(of("key = \"{header:a}/{data:/b}\"\ntime = [\"data:/a\", \"header:t\"]").is_default());
    let found = of(
        "key = \"{data:/a}/{data:/b}\"\nid = \"content\"\ntype = \"data:/t\"\ntime = \"header:t\"",
    );
    assert!(
        found.key.is_some() && found.id.is_some() && found.kind.is_some() && found.time.is_none()
    );
    assert!(of("key = \"*\"").key.is_some());
}

#[test]
fn wrong_places_are_reported_with_a_valid_form() {
    for (kind, setting, message) in [
        ("amqp", "key = \"order-id\"", "expected \"routing-key\", \"header:NAME\""),
        ("amqp", "key = \"routing_key\"", "did you mean \"routing-key\"?"),
        ("amqp", "key = \"headers:x\"", "did you mean \"header:x\"?"),
        ("amqp", "key = \"header:\"", "the name must be a text of 1 to 240 bytes"),
        ("amqp", "id = \"property:correlationid\"", "did you mean \"property:correlation_id\"?"),
        ("amqp", "id = \"property:cluster\"", "the properties are message_id, correlation_id"),
        ("amqp", "id = \"contents\"", "did you mean \"content\"?"),
        ("amqp", "key = \"data:order\"", "did you mean \"data:/order\"?"),
        ("amqp", "key = \"data:\"", "as in RFC 6901, such as \"data:/order/id\""),
        ("amqp", "key = \"data:/a~2\"", "~1 for each / and ~0 for each ~"),
        ("amqp", "key = \"{header:a\"", "write each place between `{` and `}`"),
        ("amqp", "key = \"header:a}\"", "write each place between `{` and `}`"),
        ("amqp", "key = \"data:/a{b}\"", "cannot contain braces"),
        ("amqp", "key = \"{header:a}{header:b}\"", "two places need a separator between them"),
        ("amqp", "key = \"{header:a}0{header:b}\"", "must not begin with a letter, a digit or `%`"),
        ("amqp", "key = \"{header:a}%{header:b}\"", "two places need a separator between them"),
        ("http", "key = \"attribute:orderId\"", "did you mean \"attribute:orderid\"?"),
        ("amqp", "key = \"{tenant}\"", "{tenant} names no place"),
        ("amqp", "key = \"{data:order}\"", "{data:order}: did you mean \"data:/order\"?"),
        ("amqp", "key = []", "must have 1 to 16 places, found 0"),
        ("amqp", "key = 1", "found 1"),
        ("amqp", "key = [\"*\", \"header:a\"]", "\"*\" is present in every event: write it last"),
        ("amqp", "id = [\"none\", \"header:a\"]", "\"none\" is present in every event"),
        ("amqp", "type = \"content\"", "expected \"routing-key\", \"header:NAME\""),
        ("amqp", "type = \"*\"", "found \"*\""),
        ("amqp", "key = \"attribute:subject\"", "use \"header:cloudEvents:subject\""),
        (
            "amqp",
            "time = \"attribute:time\"",
            "\"attribute:time\" is for kind = \"http\" and \"file\"",
        ),
        ("amqp", "sequence = \"header:n\"", "applies to sequenced streams only"),
        (
            "http",
            "key = \"header:a\"",
            "\"header:a\" is for kind = \"amqp\": use \"attribute:NAME\"",
        ),
        ("http", "key = \"{header:a}-{data:/b}\"", "\"header:a\" is for kind = \"amqp\""),
        ("http", "id = \"property:message_id\"", "\"property:message_id\" is for kind = \"amqp\""),
        (
            "file",
            "key = [\"attribute:a\", \"routing-key\"]",
            "\"routing-key\" is for kind = \"amqp\"",
        ),
        ("http", "key = \"*\"\npartitions = 2", "\"*\" makes the whole stream one key"),
        ("amqp", "key = \"*\"\npartitions = 2", "\"*\" makes the whole stream one key"),
        ("amqp", "key = \"data:/a\"\npartitions = 2", "use kind = \"http\", where Ordain chooses"),
        (
            "amqp",
            "key = [\"header:a\", \"header:b\"]\npartitions = 2",
            "Set partitions = 1; or let the producer",
        ),
        ("amqp", "key = \"{header:a}\"\npartitions = 2", "by one header"),
        (
            "amqp",
            "key = \"property:app_id\"\npartitions = 2",
            "message_id, correlation_id and timestamp",
        ),
    ] {
        let text = stream(kind, "fifo", setting);
        let error = parse(&text).expect_err(setting).to_string();
        assert!(error.contains(message), "{setting}: {error}");
        let place = setting.split(' ').next().expect("a setting");
        assert!(
            error.starts_with(&format!("/etc/ordain/ordain.toml:6: streams.a.source.{place}")),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let text = stream("amqp", "sequenced", "id = \"none\"");
    check(
        &text,
        &[(6, "streams.a.source.id", "\"none\" is for streams with ordering = \"fifo\" only")],
    );
    let text = stream("stream", "fifo", "key = \"data:/a\"");
    check(&text, &[(6, "streams.a.source", "unknown setting `key`")]);
}

#[test]
fn exchange_hashes_the_place_of_the_key() {
    let hashed =
        |key: &str| match source("amqp", "fifo", &format!("key = \"{key}\"\npartitions = 4")) {
            SourceConfig::Amqp(source) => source.hashed_part(),
            other => panic!("{other:?}"),
        };
    assert_eq!(hashed("routing-key"), Some(HashedPart::RoutingKey));
    assert_eq!(hashed("header:order"), Some(HashedPart::Header("order".to_owned())));
    for property in
        [MessageProperty::MessageId, MessageProperty::CorrelationId, MessageProperty::Timestamp]
    {
        let key = format!("property:{}", property.name());
        assert_eq!(hashed(&key), Some(HashedPart::Property(property)));
    }
    // For events over HTTP, Ordain itself hashes the key.
    for key in ["data:/a", "attribute:a", "{attribute:a}/{data:/b}"] {
        assert_eq!(
            source("http", "fifo", &format!("key = \"{key}\"\npartitions = 4")).partitions(),
            4
        );
    }
}

/// Ordain gives an event of a shared exchange one number for all streams that read the exchange.
#[test]
fn readers_of_a_numbered_exchange_need_the_same_key_and_sequence() {
    let conflict = |settings: &str| {
        let streams = ["a", "b"].map(|name| {
            let settings = if name == "b" { settings } else { "" };
            format!(
                "[streams.{name}]\nhandler = \"h\"\nordering = \"sequenced\"\n\
                 source = {{ kind = \"amqp\", exchange = \"x\", queue = \"{name}\", {settings} }}\n"
            )
        });
        let loaded = parse(&format!("{}{BROKER}", streams.concat())).expect(settings);
        let error = NumberingPolicy::for_producers(&loaded, "x").err();
        error.map_or_else(String::new, |error| error.problems[0].setting.clone())
    };
    assert_eq!(conflict("id = \"content\""), "");
    assert_eq!(conflict("key = \"header:order\""), "streams.b.source.key");
    assert_eq!(conflict("sequence = \"header:version\""), "streams.b.source.sequence");
}

/// A format is a set of default places. Each setting replaces the places of one value.
#[test]
fn format_names_the_places_that_no_setting_names() {
    let celery = "format = \"celery\"\nkey = \"data:/0/0\"\n";
    let found = source("amqp", "fifo", celery).locations();
    assert_eq!(found.key, Some(pointer("/0/0").into()));
    let id = Place::Property(MessageProperty::CorrelationId);
    assert_eq!(found.id.expect("an id").0, [IdPlace::Place(header("id")), IdPlace::Place(id)]);
    assert_eq!(found.kind.expect("a type").0, [header("task")]);
    assert_eq!((found.sequence, found.time), (None, None));
    let found = source("amqp", "fifo", &format!("{celery}id = \"content\"")).locations();
    assert_eq!(found.id.expect("an id").0, [IdPlace::Content]);
    assert_eq!(found.kind.expect("a type").0, [header("task")]);
    let more = "type = \"property:type\"\ntime = \"data:/1/at\"\nsequence = \"header:n\"";
    let found = source("amqp", "sequenced", &format!("{celery}{more}")).locations();
    assert_eq!(found.kind.expect("a type").0, [Place::Property(MessageProperty::Type)]);
    assert_eq!(found.time.expect("a time").0, [pointer("/1/at")]);
    assert_eq!(found.sequence.expect("a sequence").0, [header("n")]);
    // The routing key can be the key of a format too.
    let settings = "format = \"spring\"\nkey = \"routing-key\"\npartitions = 4";
    assert_eq!(source("amqp", "fifo", settings).locations().key, None);
    // Events over HTTP do not have the format of the messages.
    let settings = "format = \"masstransit\"\nkey = \"header:order\"";
    assert!(source("amqp", "fifo", settings).cloudevent_locations().is_default());
}

#[test]
fn format_without_a_key_is_refused() {
    for (format, key) in [
        ("masstransit", "data:/message/orderId"),
        ("nservicebus", "data:/OrderId"),
        ("celery", "data:/0/0"),
        ("spring", "data:/orderId"),
        ("nestjs", "data:/data/orderId"),
        ("dapr", "data:/data/orderId"),
    ] {
        let setting = format!("format = \"{format}\"");
        let message = format!("name the place in your messages, such as key = \"{key}\"");
        check(
            &stream("amqp", "fifo", &setting),
            &[(6, "streams.a.source.format", message.as_str())],
        );
        check(&stream("amqp", "fifo", &format!("{setting}\nkey = \"{key}\"")), &[]);
        let explained = explain();
        assert!(explained.contains(&format!("{setting} names these places:")), "{explained}");
        assert!(
            explained.contains(&format!("Needs a key, such as key = \"{key}\".")),
            "{explained}"
        );
    }
    let expected = "did you mean \"nestjs\"?";
    check(
        &stream("amqp", "fifo", "format = \"nest-js\""),
        &[(6, "streams.a.source.format", expected)],
    );
    let expected = "expected \"masstransit\", \"nservicebus\"";
    check(&stream("amqp", "fifo", "format = \"wcf\""), &[(6, "streams.a.source.format", expected)]);
    for kind in ["http", "file", "stream"] {
        let text = stream(kind, "fifo", "format = \"dapr\"");
        check(&text, &[(6, "streams.a.source", "unknown setting `format`")]);
    }
}

/// The broker can deliver `prefetch` messages again, and a `fifo` stream must remember the ids of all events in these
/// messages.
#[test]
fn prefetch_limits_the_events_of_a_message_in_a_fifo_stream() {
    let limit = |ordering: &str, settings: &str| {
        let loaded = parse(&stream("amqp", ordering, settings)).expect(settings);
        loaded.config.streams["a"].message_events_limit()
    };
    assert_eq!(limit("sequenced", ""), 1_000);
    assert_eq!(limit("fifo", ""), 1);
    assert_eq!(limit("fifo", "prefetch = 40"), 100);
    assert_eq!(limit("fifo", "prefetch = 3"), 1_000);
    assert_eq!(limit("fifo", "prefetch = 9000"), 1);
}
