//! Tests of configuration texts and of their errors. The reader reports all errors of a text together, each with its
//! line.

use std::path::{Path, PathBuf};

use ordain_core::{ExhaustedPolicy, OrderingMode, OverflowPolicy};

use super::*;

mod event_types;
mod locations;
mod unread;

fn env(name: &str) -> Option<String> {
    match name {
        "WORKERS" => Some("3".to_owned()),
        "TOKEN" => Some("0123456789abcdef".to_owned()),
        "WRONG" => Some("many".to_owned()),
        _ => None,
    }
}

fn parse(text: &str) -> Result<LoadedConfig, ConfigError> {
    LoadedConfig::parse(Path::new("/etc/ordain/ordain.toml"), text, &env)
}

/// Checks the errors of a text. An expected error is the line, the setting and a part of the message.
#[track_caller]
fn check(text: &str, expected: &[(usize, &str, &str)]) {
    let problems = parse(text).map_or_else(|error| error.problems, |_| Vec::new());
    let shown: Vec<String> =
        problems.iter().map(|problem| format!("{}: {problem}", problem.line)).collect();
    let shown = shown.join("\n");
    assert_eq!(problems.len(), expected.len(), "{text}\n{shown}");
    for (problem, (line, setting, message)) in problems.iter().zip(expected) {
        assert_eq!((problem.line, problem.setting.as_str()), (*line, *setting), "{shown}");
        assert!(problem.message.contains(message), "{message:?} is not in\n{shown}");
    }
}

const ORDERS: &str =
    "[streams.orders]\nhandler = \"orders\"\nsource = { kind = \"file\", path = \"-\" }\n";

/// Checks the errors of a valid stream to which `more` adds settings from line 4 on.
#[track_caller]
fn check_stream(more: &str, expected: &[(usize, &str, &str)]) {
    check(&format!("{ORDERS}{more}"), expected);
}

#[test]
fn missing_settings_have_their_defaults() {
    let loaded = parse(ORDERS).expect("a valid configuration");
    let Config { runtime, store, plugins, streams, .. } = &loaded.config;
    assert_eq!(runtime.max_active_keys, 100_000);
    assert_eq!(runtime.memory_budget, ByteSize(512 << 20));
    assert_eq!(plugins.dir.0, PathBuf::from("/etc/ordain/plugins"));
    assert_eq!(plugins.timeout, Millis(5_000));
    let StoreConfig::Embedded(store) = store else { panic!("{store:?}") };
    assert_eq!(store.path.0, PathBuf::from("/etc/ordain/ordain-data"));
    let stream = &streams["orders"];
    assert_eq!(stream.ordering, OrderingMode::Sequenced);
    assert_eq!(stream.overflow, OverflowPolicy::Pause);
    assert_eq!(stream.gap.on_exhausted, GapExhausted(ExhaustedPolicy::Park));
    assert_eq!(stream.gap.replay, [ReplaySource::Store]);
    assert_eq!(stream.key_ttl, OffOr(None));
    assert_eq!(loaded.lines.line_of("streams.orders.gap.timeout"), 1);
    assert_eq!(loaded.lines.line_of("streams.orders.source.path"), 3);
    assert_eq!(loaded.check_supported(), Ok(()));
}

#[test]
fn settings_for_development_are_checked() {
    let dev = |more: &str| format!("{ORDERS}[dev]\n{more}\n");
    let loaded = parse(&dev("")).expect("a valid configuration");
    assert_eq!(loaded.config.dev_stream().map(ToString::to_string), Ok("orders".to_owned()));
    let settings = loaded.config.dev.expect("the settings");
    assert_eq!(settings.tests.0, PathBuf::from("/etc/ordain/tests"));
    assert_eq!(settings.watch[0].0, PathBuf::from("/etc/ordain/src"));
    check(&dev("build = \"\""), &[(5, "dev.build", "expected a command for `sh -c`")]);
    check(&dev("watch = \"src\""), &[(5, "dev.watch", "expected an array of paths")]);
    check(&dev("watch = [1]"), &[(5, "dev.watch[0]", "expected a path")]);
    check(&dev("stream = \"visits\""), &[(5, "dev.stream", "the streams are orders")]);
    check(&dev("test = \"scripts\""), &[(5, "dev", "did you mean `tests`?")]);
    let other = ORDERS.replace("streams.orders", "streams.visits").replace("\"-\"", "\"v.ndjson\"");
    check(
        &format!("{other}{}", dev("")),
        &[(7, "dev.stream", "several streams have a source of another kind than `stream`")],
    );
}

#[test]
fn every_setting_is_accepted() {
    let text = include_str!("tests/full.toml");
    let loaded = parse(text).unwrap_or_else(|error| panic!("{error}"));
    let Config { runtime, broker, streams, admin, .. } = &loaded.config;
    assert_eq!(runtime.workers, Some(3));
    assert_eq!(
        admin.as_ref().and_then(|admin| admin.token.as_ref()).map(Secret::expose),
        env("TOKEN").as_deref()
    );
    assert!(broker.is_some());
    let orders = &streams["orders"];
    assert_eq!(orders.source.partitions(), 4);
    assert_eq!(
        orders.replay_servers().map(|server| server.url.0.as_str()).collect::<Vec<_>>(),
        ["http://archive/{stream}/{key}/{sequence}", "https://other:8443/{key}?n={sequence}"]
    );
    assert_eq!(orders.first, FirstSequence::Any);
    assert_eq!(orders.key_ttl, OffOr(Some(Millis(90 * 86_400_000))));
    // The file must contain every setting of the reference, so that the test covers all settings.
    assert_contains_rows(reference(), "", text);
    // `check_supported` rejects each unsupported setting with an error. The errors are sorted by line.
    let refused = loaded.check_supported().expect_err("an unsupported setting");
    let settings: Vec<&str> =
        refused.problems.iter().map(|problem| problem.setting.as_str()).collect();
    assert!(settings.is_sorted_by_key(|setting| loaded.lines.line_of(setting)), "{refused}");
    for setting in ["streams.orders.canary", "runtime.alerts"] {
        assert!(settings.contains(&setting), "{setting}: {refused}");
    }
}

#[test]
fn file_with_several_partitions_is_not_supported_yet() {
    let loaded = parse(
        "[streams.a]\nhandler = \"a\"\n\
         source = { kind = \"file\", path = \"a.ndjson\", partitions = 2 }\n",
    )
    .unwrap_or_else(|error| panic!("{error}"));
    let refused = loaded.check_supported().expect_err("an unsupported setting");
    assert_eq!(
        refused.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "streams.a.source: this version of Ordain does not support a file in several partitions yet: remove the \
             setting"
        ]
    );
}

fn assert_contains_rows(rows: &[ReferenceRow], table: &str, text: &str) {
    for row in rows {
        // A file can contain only one kind of store, so `text` lacks the settings of the embedded store.
        let name = row.name.split(' ').next().unwrap_or_default();
        assert!(text.contains(name) || table == "kind = \"embedded\"", "{table}: {name}");
        if row.name != "kind = \"file\"" {
            assert_contains_rows(row.rows, row.name, text);
        }
    }
}

#[test]
fn every_setting_is_documented_and_every_default_is_valid() {
    fn walk(rows: &[ReferenceRow], count: &mut usize) {
        for row in rows {
            *count += 1;
            assert!(row.meaning.trim().ends_with('.'), "{}: {:?}", row.name, row.meaning);
            let scalar = row.rows.is_empty();
            assert!(!scalar || row.default.is_none() || row.because.is_some(), "{}", row.name);
            walk(row.rows, count);
        }
    }
    let mut count = 0;
    walk(reference(), &mut count);
    assert!(count > 90, "{count}");
    // The text contains nearly every kind of table with only its required settings, so that the reader parses the
    // defaults.
    let text = r#"
        [store]
        kind = "redis"
        url = "redis://localhost"
        [broker]
        url = "amqp://localhost"
        [admin]
        [ingress]
        [streams]
        a = { handler = "h", source = { kind = "amqp", queue = "q", exchange = "x", bind = [{ exchange = "y" }] } }
        b = { handler = "h", source = { kind = "http" } }
        c = { handler = "h", source = { kind = "stream" } }
        d = { handler = "h", source = { kind = "file", path = "-" } }
        [sinks]
        a = { kind = "amqp", exchange = "x" }
        c = { kind = "stream", stream = "c", sequenced = true }
    "#;
    check(text, &[]);
    let explained = explain();
    assert!(explained.contains("gap") && explained.contains("Why: "), "{explained}");
    let notes = explained.matches("Not yet supported by this version of Ordain: ").count();
    assert_eq!(notes, super::unsupported::places().count(), "{explained}");
}

#[test]
fn all_errors_are_reported_at_once() {
    check(
        r#"[runtime]
max_active_keys = 0
memory_budget = "64MB"
wokers = 4

[plugins]
timeout = "5 seconds"
instance = "frech"

[streams.orders]
source = { kind = "file" }
ordering = "fifo"
first = 1
gap = { timeout = 2, replay = ["stroe"] }
dead_letter = "deed"

[sinks.dead]
kind = "fiel"
"#,
        &[
            (2, "runtime.max_active_keys", "between 1 and 10_000_000, found 0"),
            (3, "runtime.memory_budget", "powers of 1024"),
            (4, "runtime", "unknown setting `wokers`; did you mean `workers`?"),
            (7, "plugins.timeout", "expected a duration such as \"200ms\", \"5s\""),
            (8, "plugins.instance", "did you mean \"fresh\"?"),
            (10, "streams.orders", "`handler` is missing: set it to a name"),
            (11, "streams.orders.source", "`path` is missing: set it to a path, or \"-\""),
            (13, "streams.orders.first", "applies to sequenced streams only"),
            (14, "streams.orders.gap.replay[0]", "expected \"store\", a URL"),
            (14, "streams.orders.gap.timeout", "expected a duration"),
            (15, "streams.orders.dead_letter", "sink \"deed\" is not defined"),
            (18, "sinks.dead.kind", "did you mean \"file\"?"),
        ],
    );
}

#[test]
fn invalid_toml_is_reported_with_its_line() {
    check("[runtime\nworkers = 4\n", &[(1, "", "not valid TOML")]);
    // The reader still checks the values on other lines. The reader reports no missing setting, because the setting may
    // be on an invalid line.
    check(
        "[streams.a]\nhandler = \"a\nsource = 3\nlane_buffer = 0\nx y",
        &[
            (2, "", "not valid TOML"),
            (3, "streams.a.source", "expected a table, found 3"),
            (4, "streams.a.lane_buffer", "between 1 and"),
            (5, "", "not valid TOML"),
        ],
    );
    check("[runtime]\nbatch = 1\nbatch = 2\n", &[(3, "", "duplicate key")]);
    check("", &[(0, "streams", "at least one stream")]);
    check("\n[streams]", &[(2, "streams", "at least one stream")]);
    check(
        "streams = 1",
        &[(1, "streams", "at least one stream"), (1, "streams", "expected a table, found 1")],
    );
}

#[test]
fn fields_must_have_their_form() {
    for (line, message) in [
        ("lane_buffer = \"256\"", "lane_buffer: expected a whole number, found \"256\""),
        ("lane_buffer = -1", "lane_buffer: expected a whole number, found -1"),
        ("lane_buffer = 1.5", "lane_buffer: expected a whole number, found 1.5"),
        ("lane_buffer = 99999999999999999999999999", "expected a whole number"),
        ("lane_buffer = \"${WRONG}\"", "found \"${WRONG}\", which is \"many\""),
        ("lane_buffer = \"${UNSET}\"", "the environment variable UNSET is not set"),
        ("lane_buffer = [1]", "found an array"),
        ("lane_buffer = 1979-05-27", "found a date"),
        (
            "overflow = \"puase\"",
            "expected \"pause\" or \"dead-letter\", found \"puase\"; did you mean \"pause\"?",
        ),
        ("overflow = true", "found true"),
        ("first = 2", "first: expected 0, 1 or \"any\", found 2"),
        ("first = \"all\"", "first: expected 0, 1 or \"any\", found \"all\""),
        ("key_ttl = \"of\"", "expected \"off\" or a duration"),
        ("key_ttl = \"1s\"", "must be between \"1m\" and \"3650d\", found \"1s\""),
        ("complete_ttl = \"0s\"", "must be between"),
        ("gap = 3", "gap: expected a table, found 3"),
        ("gap.backoff = \"5s..1s\"", "write the lower bound first"),
        ("gap.backoff = \"0ms..1s\"", "must be above 0"),
        ("gap.backoff = \"1s..9d\"", "must be between"),
        ("gap.attempts = 0", "between 1 and 1_000, found 0"),
        ("gap.replay = \"store\"", "expected an array"),
        ("gap.replay = [\"http://h/{stream}/{key}\"]", "{sequence} is missing"),
        ("gap.replay = [\"http://h/{keys}/{sequence}\"]", "{stream}, {key} and {sequence}"),
        ("gap.replay = [\"http://h/{key/{sequence}\"]", "{stream}, {key} and {sequence}"),
        ("gap.replay = [\"http://{key}/{sequence}\"]", "a host without placeholders, then a path"),
        ("gap.replay = [\"ftp://h/{key}/{sequence}\"]", "expected \"store\", a URL"),
        ("gap.replay = [\"http://h/{key}/{sequence}\", \"store\"]", "\"store\" is not first"),
        ("gap.replay = [\"store\", \"store\"]", "names an element twice"),
        (
            "gap.replay = [\"http://h?t=1/{key}/{sequence}\"]",
            "a host without placeholders, then a path",
        ),
        (
            "gap.replay = [\"http://h/<{key}>/{sequence}\"]",
            "a path of characters that a URL may contain",
        ),
        ("gap.replay = [\"http://me@h/{key}/{sequence}\"]", "use `authorization` instead"),
        ("gap.replay = [{ url = \"h/{key}/{sequence}\" }]", "expected a URL"),
        ("gap.replay = [{ timeout = \"1s\" }]", "`url` is missing"),
        // The value of the variable may be a secret, so the error shows the name of the variable.
        ("gap.replay = [\"http://h/{key}?t=${WRONG}\"]", "?t=${WRONG}\"; {sequence} is missing"),
        (
            "gap.replay = [{ url = \"http://h/{key}?t=${WRONG}\" }]",
            "?t=${WRONG}\"; {sequence} is missing",
        ),
        ("retry.on_exhausted = \"wait\"", "expected \"park\" or \"skip\""),
        ("retry.on_new_version = 1", "expected `true` or `false`"),
        ("canary = \"5\"", "expected a share such as \"5%\""),
        ("\"gap.timeout\" = \"5s\"", "unknown setting `gap.timeout`"),
        ("handler_ = \"x\"", "did you mean `handler`?"),
        ("colour = 1", "unknown setting `colour`; known here: handler, ordering"),
    ] {
        let text = format!("{ORDERS}{line}\n");
        let error = parse(&text).expect_err(line).to_string();
        assert!(error.contains(message), "{line}: {error}");
        assert!(error.starts_with("/etc/ordain/ordain.toml:4: streams.orders"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn names_and_sources_are_checked() {
    for (text, message) in [
        (
            "[streams.\"a b\"]\nhandler = \"h\"\nsource = { kind = \"http\" }",
            "expected a name of 1 to 64",
        ),
        (
            "[streams.a]\nhandler = \"../h\"\nsource = { kind = \"http\" }",
            "streams.a.handler: expected a name",
        ),
        ("[streams.a]\nhandler = \"h@1.0.0\"\nsource = { kind = \"http\" }", "found \"h@1.0.0\""),
        ("[streams]\na = 1", "streams.a: expected a table, found 1"),
        (
            "[streams.a]\nhandler = \"h\"\nsource = { path = \"x\" }",
            "`kind` is missing: set it to one of \"amqp\", \"http\", \"file\", \"stream\"",
        ),
        ("[streams.a]\nhandler = \"h\"\nsource = { kind = 1 }", "source.kind: expected one of"),
        (
            "[streams.a]\nhandler = \"h\"\nsource = { kind = \"file\", path = \"x\", queue = \"q\" }",
            "unknown setting `queue`; known here: kind, path",
        ),
        (
            "[streams.a]\nhandler = \"h\"\nsource = { kind = \"file\", path = \"\" }",
            "expected a path",
        ),
        (
            "[streams.a]\nhandler = \"h\"\nsource = { kind = \"file\", path = \"x\", prefetch = 0 }",
            "between 1 and",
        ),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.contains(message), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{text}: {error}");
    }
}

#[test]
fn settings_are_checked_against_each_other() {
    check_stream(
        "[runtime]\nevent_size = \"64MiB\"\nmemory_budget = \"16MiB\"\nalerts = \"a\"\n\
         [plugins]\nmemory = \"1MiB\"\n",
        &[
            (5, "runtime.event_size", "at most a quarter of runtime.memory_budget"),
            (7, "runtime.alerts", "sink \"a\" is not defined; add [sinks.a]"),
            (8, "plugins.state_size", "must be below plugins.memory"),
        ],
    );
    check_stream(
        "[runtime]\nmemory_budget = \"16MiB\"\nbatch_size = \"8MiB\"\n\
         [plugins]\nstate_size = \"8MiB\"\nmessages_size = \"8MiB\"\n",
        &[
            (6, "runtime.batch_size", "at most a quarter of runtime.memory_budget"),
            (8, "plugins.state_size", "at most a quarter of runtime.memory_budget"),
            (9, "plugins.messages_size", "at most a quarter of runtime.memory_budget"),
        ],
    );
    check_stream(
        "[store]\nkind = \"redis\"\nurl = \"redis://h\"\n[runtime]\nbatch = 769\n",
        &[(8, "runtime.batch", "at most 768 with a Redis store")],
    );
    check_stream(
        "[admin]\nlisten = \"0.0.0.0:7070\"\n[ingress]\nlisten = \"0.0.0.0:7070\"\ntoken = \"short\"\n",
        &[
            (5, "admin.listen", "needs a `token`"),
            (7, "ingress.listen", "is also the address of [admin]"),
            (
                8,
                "ingress.token",
                "expected a token of at least 16 visible ASCII characters, found another value (not shown)",
            ),
        ],
    );
    check_stream(
        "[broker]\nurl = \"http://user:hunter2@host\"\nheartbeat = \"5500ms\"\n",
        &[
            (
                5,
                "broker.url",
                "expected a URL such as \"amqp://user:password@host:5672/vhost\" (or amqps://), found another value \
                 (not shown)",
            ),
            (6, "broker.heartbeat", "at most half of runtime.lease, here 5000ms"),
            (6, "broker.heartbeat", "whole seconds"),
        ],
    );
    check_stream("id_window = 10\n", &[]);
    check_stream("ordering = \"fifo\"\n", &[]);
    check_stream(
        "ordering = \"fifo\"\nid_window = 4000\nbake = \"1m\"\n",
        &[
            (
                5,
                "streams.orders.id_window",
                "at least 5024, because up to this number of events can arrive again after a crash or a lost response",
            ),
            (6, "streams.orders.bake", "has no effect without `canary`"),
        ],
    );
    check(
        "[streams.a]\nhandler = \"h\"\n[streams.a.source]\nkind = \"amqp\"\nqueue = \"q\"\n\
         partitions = 2\nkey = \"header:customer\"\nbind = [{ exchange = \"x\" }]\n",
        &[
            (3, "streams.a.source", "needs [broker]"),
            (6, "streams.a.source.partitions", "more than one partition needs an `exchange`"),
            (8, "streams.a.source.bind", "needs an `exchange`"),
        ],
    );
    check_stream(
        "[store]\nkind = \"redis\"\nurl = \"redis://h\"\ndurability = \"replicas:0\"\n\
         [sinks.out]\nkind = \"file\"\npath = \"out\"\n[sinks.in]\nkind = \"stream\"\nstream = \"orders\"\n\
         [sinks.none]\nkind = \"stream\"\nstream = \"none\"\n",
        &[
            (7, "store.durability", "expected \"local\" or \"replicas:N\""),
            (10, "sinks.out.path", "a file sink needs the embedded store"),
            (13, "sinks.in.stream", "the source of [streams.orders] is of another kind"),
            (16, "sinks.none.stream", "[streams.none] is not defined"),
        ],
    );
    check_stream(
        "[streams.two]\nhandler = \"h\"\nsource = { kind = \"file\", path = \"-\" }\n\
         [streams.three]\nhandler = \"h\"\nsource = { kind = \"file\", path = \"x\" }\n\
         [streams.four]\nhandler = \"h\"\nsource = { kind = \"stream\" }\n\
         [sinks.a]\nkind = \"file\"\npath = \"x\"\n[sinks.b]\nkind = \"file\"\npath = \"x\"\n\
         [sinks.c]\nkind = \"file\"\npath = \"-\"\n[sinks.d]\nkind = \"file\"\npath = \"-\"\n",
        &[
            (6, "streams.two.source.path", "already read by streams.orders.source.path"),
            (15, "sinks.a.path", "is the same file as streams.three.source.path"),
            (18, "sinks.b.path", "is already written by sinks.a.path"),
            (18, "sinks.b.path", "is the same file as streams.three.source.path"),
        ],
    );
}

#[test]
fn settings_of_chained_streams_are_checked_against_each_other() {
    let stream = |name: &str, more: &str| {
        format!("[streams.{name}]\nhandler = \"h\"\nsource = {{ kind = \"stream\" }}\n{more}\n")
    };
    let sink = |name: &str, to: &str, sequenced: bool| {
        format!("[sinks.{name}]\nkind = \"stream\"\nstream = \"{to}\"\nsequenced = {sequenced}\n")
    };
    check(&(stream("a", "") + &sink("x", "a", true)), &[]);
    check(&(stream("a", "ordering = \"fifo\"") + &sink("x", "a", false)), &[]);
    // A stream may receive its events from producers only, without a sink.
    check(&stream("a", ""), &[]);
    check(&(stream("a", "") + &sink("x", "a", false)), &[(5, "sinks.x", "needs numbered events")]);
    check(
        &(stream("a", "first = \"any\"") + &sink("x", "a", true)),
        &[(4, "streams.a.first", "must be 0 or 1, because sink \"x\" numbers the events of this")],
    );
    check(&stream("a", "first = \"any\""), &[]);
    check(
        &(stream("a", "key_ttl = \"1h\"") + &sink("x", "a", true)),
        &[(4, "streams.a.key_ttl", "sink \"x\" numbers the events of this stream")],
    );
    check(
        &(stream("a", "") + &sink("x", "a", true) + &sink("y", "a", false)),
        &[
            (9, "sinks.y", "needs numbered events"),
            (12, "sinks.y.sequenced", "the same value as in [sinks.x]"),
        ],
    );
    check(
        &(stream("a", "dead_letter = \"y\"")
            + &stream("b", "dead_letter = \"x\"")
            + &sink("x", "a", true)
            + &sink("y", "b", true)),
        &[
            (4, "streams.a.dead_letter", "leads back to this stream"),
            (8, "streams.b.dead_letter", "leads back to this stream"),
        ],
    );
    check(
        &(stream("orders", "") + &sink("x", "ordres", true)),
        &[(7, "sinks.x.stream", "[streams.ordres] is not defined; did you mean \"orders\"?")],
    );
}

const BROKER: &str = "[broker]\nurl = \"amqp://localhost\"\n";

/// Returns the configuration of a stream that reads from the broker, on five lines.
fn amqp_stream(name: &str, source: &str, more: &str) -> String {
    format!(
        "[streams.{name}]\nhandler = \"h\"\n{more}\n[streams.{name}.source]\n\
         kind = \"amqp\"\n{source}\n"
    )
}

#[test]
fn streams_share_no_queue_and_no_partitioned_exchange() {
    let two =
        |a: &str, b: &str| BROKER.to_owned() + &amqp_stream("a", a, "") + &amqp_stream("b", b, "");
    let exchange = |queue: &str, partitions: u32| {
        format!("exchange = \"x\"\nqueue = \"{queue}\"\npartitions = {partitions}")
    };
    check(&two(&exchange("q", 1), &exchange("r", 1)), &[]);
    check(
        &two("queue = \"q\"", "queue = \"q\""),
        &[(14, "streams.b.source.queue", "[streams.a] also has the queue \"q\"")],
    );
    // Two streams also cannot share a queue that another program declares.
    let foreign = "queue = \"q\"\ndeclare = false";
    check(
        &two(foreign, foreign),
        &[(15, "streams.b.source.queue", "[streams.a] also has the queue \"q\"")],
    );
    // In the first check, the queue of `b` is also the queue of a partition of `a`. In the second check, the queue of
    // `b` collects the messages that the broker drops from the queue of `a`.
    check(
        &two(&exchange("q", 4), "queue = \"q.3\""),
        &[(16, "streams.b.source.queue", "[streams.a] also has the queue \"q.3\"")],
    );
    check(
        &two("queue = \"q\"", "queue = \"q.dropped\""),
        &[(14, "streams.b.source.queue", "[streams.a] also has the queue \"q.dropped\"")],
    );
    check(&two("queue = \"q\"\ndeclare = false", "queue = \"q.dropped\""), &[]);
    check(&two("queue = \"q\"", "queue = \"q.dropped\"\ndeclare = false"), &[]);
    for (first, second) in [(4, 4), (1, 2), (2, 1)] {
        check(
            &two(&exchange("q", first), &exchange("r", second)),
            &[(16, "streams.b.source.exchange", "[streams.a] also reads this exchange")],
        );
    }
    let bound = "exchange = \"y\"\nqueue = \"r\"\nbind = [{ exchange = \"x\" }]";
    check(&two(&exchange("q", 1), bound), &[]);
    check(
        &two(&exchange("q", 2), bound),
        &[(18, "streams.b.source.bind", "exchange \"x\" divides its messages")],
    );
}

#[test]
fn dead_letters_do_not_return_over_the_broker() {
    let case = |source: &str, sink: &str, returns: bool| {
        let text = BROKER.to_owned()
            + &amqp_stream("a", source, "dead_letter = \"dead\"")
            + &format!("[sinks.dead]\nkind = \"amqp\"\n{sink}\n");
        let error = [(5, "streams.a.dead_letter", "leads back to this stream")];
        check(&text, if returns { &error } else { &[] });
    };
    let own = "exchange = \"x\"\nqueue = \"q\"";
    case(own, "exchange = \"x\"", true);
    case(own, "exchange = \"graveyard\"", false);
    // With `declare = false`, the operator may have bound the queue with any key, so Ordain reports no loop.
    case(&format!("{own}\ndeclare = false"), "exchange = \"x\"", false);
    for (bound, key, returns) in [
        ("#", "{key}", true),
        ("order.*", "{key}", true),
        ("order.*", "order.{type}", true),
        ("order.paid", "order.paid", true),
        ("order.#", "order", true),
        ("order.*", "dead.{key}", false),
        ("order.*", "dead", false),
        ("order.paid", "order.dead", false),
        ("order.paid", "{key}", true),
        ("order.#", "order-dead.{key}", false),
        ("order.*", "orders", false),
        ("*.created", "dead-letters", false),
    ] {
        let bind = format!("{own}\nbind = [{{ exchange = \"y\", routing_key = \"{bound}\" }}]");
        case(&bind, &format!("exchange = \"y\"\nrouting_key = \"{key}\""), returns);
    }
    // The dead letters of `a` reach `b`. The exchange of `b` feeds the exchange of `c`, whose dead letters return to
    // `a`.
    let sink = |name: &str, exchange: &str| {
        format!("[sinks.{name}]\nkind = \"amqp\"\nexchange = \"{exchange}\"\n")
    };
    let circle = BROKER.to_owned()
        + &amqp_stream("a", own, "dead_letter = \"to_b\"")
        + &amqp_stream("b", "exchange = \"y\"\nqueue = \"r\"", "")
        + &amqp_stream(
            "c",
            "exchange = \"z\"\nqueue = \"s\"\nbind = [{ exchange = \"y\" }]",
            "dead_letter = \"to_a\"",
        )
        + &sink("to_b", "y")
        + &sink("to_a", "x");
    check(
        &circle,
        &[
            (5, "streams.a.dead_letter", "leads back to this stream"),
            (19, "streams.c.dead_letter", "leads back to this stream"),
        ],
    );
}

/// A sink on the default exchange publishes to the queue that the routing key names.
#[test]
fn sink_on_the_default_exchange_is_checked() {
    let check_sink = |stream: &str, sink: &str, expected: &[(usize, &str, &str)]| {
        let text = format!(
            "{BROKER}[streams.a]\nhandler = \"h\"\n{stream}\nsource = {{ kind = \"amqp\", queue = \"q\" }}\n\
             [sinks.s]\nkind = \"amqp\"\n{sink}\n"
        );
        check(&text, expected);
    };
    let reply = "exchange = \"\"\nrouting_key = \"{property:reply_to}\"";
    check_sink("", reply, &[]);
    check_sink("", "exchange = \"\"\nrouting_key = \"receipts\"\nunroutable = \"drop\"", &[]);
    let expected = "is the default exchange, which delivers a message to the queue that";
    check_sink("", "exchange = \"\"", &[(9, "sinks.s.exchange", expected)]);
    check_sink(
        "",
        &format!("{reply}\nsequenced = true"),
        &[
            (11, "sinks.s.sequenced", "needs `unroutable = \"keep\"`"),
            (11, "sinks.s.sequenced", "needs a named `exchange`"),
        ],
    );
    // A dead letter names no queue for a reply, and must not be lost.
    let dead = "dead_letter = \"s\"";
    let at = "streams.a.dead_letter";
    for (sink, expected) in [
        ("exchange = \"x\"\nrouting_key = \"{property:reply_to}\"", "publishes only replies"),
        ("exchange = \"x\"\nunroutable = \"drop\"", "drops messages that no queue accepts"),
        ("exchange = \"\"\nrouting_key = \"q\"", "leads back to this stream"),
        ("exchange = \"\"\nrouting_key = \"{key}\"", "leads back to this stream"),
    ] {
        check_sink(dead, sink, &[(5, at, expected)]);
    }
    check_sink(dead, "exchange = \"\"\nrouting_key = \"dead.{key}\"", &[]);
    check_sink(dead, "exchange = \"\"\nrouting_key = \"dead\"", &[]);
    check_sink(
        "",
        "exchange = \"x\"\nrouting_key = \"{property:replyto}\"",
        &[(10, "sinks.s.routing_key", "did you mean {property:reply_to}?")],
    );
}

#[test]
fn missing_queue_for_a_reply_drops_the_reply_by_default() {
    let drops = |sink: &str| {
        let text = format!("{ORDERS}{BROKER}[sinks.s]\nkind = \"amqp\"\n{sink}\n");
        let loaded = parse(&text).expect(sink);
        let SinkConfig::Amqp(sink) = &loaded.config.sinks["s"] else { panic!("{sink}") };
        sink.unroutable_policy() == UnroutablePolicy::Drop
    };
    let reply = "exchange = \"\"\nrouting_key = \"{property:reply_to}\"";
    assert!(drops(reply));
    assert!(!drops(&format!("{reply}\nunroutable = \"keep\"")));
    assert!(!drops("exchange = \"x\""));
    assert!(!drops("exchange = \"\"\nrouting_key = \"receipts\""));
    assert!(drops("exchange = \"x\"\nunroutable = \"drop\""));
}

#[test]
fn routing_key_contains_the_queue_for_a_reply() {
    let template = RoutingKeyTemplate("{stream}.{property:reply_to}.{key}".to_owned());
    let headers = [("tenant", "blue"), ("property:reply_to", "q-1"), ("property:reply_to", "q-2")];
    let reply_to = template.reply_queue(headers.into_iter());
    let values = RoutingKeyValues { stream: "s", key: "k", kind: "t", reply_to };
    assert_eq!(template.fill(values), "s.q-1.k");
    assert_eq!(template.reply_queue([("tenant", "blue")].into_iter()), "");
    assert_eq!(template.excessive_length(values), None);
    let long = "q".repeat(300);
    let excessive = template.excessive_length(RoutingKeyValues { reply_to: &long, ..values });
    assert_eq!(excessive, Some(304));
    // Other routing keys do not depend on the header.
    let plain = RoutingKeyTemplate("{key}".to_owned());
    assert_eq!(plain.reply_queue(headers.into_iter()), "");
    assert_eq!(plain.fill(values), "k");
}

#[test]
fn streams_of_a_numbered_exchange_must_be_numbered_alike() {
    let stream = |name: &str, more: &str| {
        let source = format!("{{ kind = \"amqp\", exchange = \"x\", queue = \"{name}\" }}");
        format!("[streams.{name}]\nhandler = \"h\"\nsource = {source}\n{more}\n")
    };
    let rest = |sequenced: bool| {
        format!(
            "[sinks.out]\nkind = \"amqp\"\nexchange = \"x\"\nsequenced = {sequenced}\n\
             [broker]\nurl = \"amqp://localhost\"\n"
        )
    };
    for setting in ["first = 0", "retain = \"1h\"", "retain_events = 5", "complete_ttl = \"1h\""] {
        let name = format!("streams.b.{}", setting.split_once(' ').expect("a setting").0);
        let streams = stream("a", "") + &stream("b", setting);
        check(&(streams.clone() + &rest(true)), &[(8, &name, "the same value as in [streams.a]")]);
        check(&(streams.clone() + &rest(false)), &[]);
        // Ordain numbers the events of each `fifo` stream separately, so the settings of a `fifo` stream may differ.
        let fifo = stream("a", "ordering = \"fifo\"") + &stream("b", setting);
        check(&(fifo + &rest(true)), &[]);
    }
}

#[test]
fn secrets_are_not_printed() {
    let loaded = parse(include_str!("tests/full.toml")).expect("a valid configuration");
    let printed = format!("{loaded:?}");
    for secret in ["secret@", "0123456789abcdef", "fedcba9876543210", "n={sequence}"] {
        assert!(!printed.contains(secret), "{printed}");
    }
}

/// Each text has an invalid setting that contains a secret. No error may show the secret. The secret is in the text
/// itself, in the value of a variable, or in a file.
#[test]
fn errors_do_not_contain_secrets() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret_file = folder.path().join("password");
    std::fs::write(&secret_file, "hunter2\n").expect("written");
    let from_file = format!("${{file:{}}}", secret_file.display());
    let env = |name: &str| (name == "PASSWORD").then(|| "hunter2".to_owned());
    let check = |setting: &str, text: &str| {
        let text = format!("{ORDERS}{text}\n");
        let parsed = LoadedConfig::parse(Path::new("/etc/ordain/ordain.toml"), &text, &env);
        let error = parsed.expect_err(&text).to_string();
        assert!(error.contains(setting) && !error.contains("hunter2"), "{text}: {error}");
    };
    let replay = "streams.orders.gap.replay[0]";
    for written in ["hunter2", "${PASSWORD}", &from_file, "${OTHER:-hunter2}", "${hunter2 }"] {
        for (setting, text) in [
            ("broker.url", "[broker]\nurl = \"http://shop:SECRET@broker\""),
            ("broker.url", "[broker]\nurl = \"amqp://shop:SECRET/x@broker\""),
            ("broker.url", "[broker]\nurl = \"amqp://shop:SECRET@broker/a/b\""),
            ("broker.url", "[broker]\nurl = \"amqp://SECRET@broker\""),
            ("store.url", "[store]\nkind = \"redis\"\nurl = \"redis://shop:SECRET/x@redis\""),
            ("store.url", "[store]\nkind = \"redis\"\nurl = \"redis://:SECRET@redis:port\""),
            ("store.url", "[store]\nkind = \"redis\"\nurl = \"redis://SECRET@redis\""),
            ("admin.token", "[admin]\ntoken = \"SECRET\""),
            ("ingress.token", "[ingress]\ntoken = \"SECRET SECRET SECRET\""),
            (
                replay,
                "gap.replay = [{ url = \"http://h/{key}/{sequence}\", authorization = \"SECRET\\n\" }]",
            ),
        ] {
            check(setting, &text.replace("SECRET", written));
        }
    }
    // The error shows the URL of a replay server with its variables, but not the values of the variables.
    for written in ["${PASSWORD}", &from_file] {
        for url in ["http://h/{key}?SECRET", "http://h/{key}/{sequence}?{SECRET}", "ftp://SECRET"] {
            for text in ["gap.replay = [\"URL\"]", "gap.replay = [{ url = \"URL\" }]"] {
                check(replay, &text.replace("URL", &url.replace("SECRET", written)));
            }
        }
    }
    // A token or a password without quotes is a number.
    for (setting, text) in [
        ("admin.token", "[admin]\ntoken = 12345678901234567"),
        ("broker.url", "[broker]\nurl = 12345678901234567"),
        ("store.url", "[store]\nkind = \"redis\"\nurl = 12345678901234567"),
    ] {
        let error = parse(&format!("{ORDERS}{text}\n")).expect_err(text).to_string();
        assert!(error.contains(setting) && !error.contains("12345"), "{text}: {error}");
    }

    // A valid URL contains the variable of a file. Afterwards, a password that makes the URL invalid is written to this
    // file.
    let text = format!("{ORDERS}[broker]\nurl = \"amqp://shop:{from_file}@broker\"\n");
    let broker = parse(&text).expect("a valid configuration").config.broker.expect("a broker");
    std::fs::write(&secret_file, "hunter2/@").expect("written");
    let before = broker.url.newest();
    assert!(broker.url.refresh() == before, "an invalid URL replaces no valid URL");
}

#[test]
fn partitions_share_the_limits_of_the_process() {
    let loaded = parse(include_str!("tests/full.toml")).expect("a valid configuration");
    let config = &loaded.config;
    assert_eq!((config.workers(), config.partitions(), config.shards()), (3, 7, 64));
    let share = PartitionParams {
        partition: 2,
        stream_partitions: 4,
        process_partitions: 7,
        workers: 3,
        version: None,
        seed: 9,
    };
    let settings = config.sequencer_settings(&config.streams["orders"], &share);
    assert_eq!((settings.partition, settings.seed, settings.shards), (2, 9, 64));
    assert_eq!(settings.max_lanes, 50_000 / 7);
    assert_eq!(settings.memory_budget, (1 << 30) / 7);
    assert_eq!(settings.max_turns, 2);
    assert_eq!((settings.batch_events, settings.prefetch), (256, 2_000));
    assert_eq!(
        settings.gap.sources.iter().map(|source| &**source).collect::<Vec<_>>(),
        ["store", "http://archive", "https://other:8443"]
    );
    assert_eq!(settings.gap.on_exhausted, ExhaustedPolicy::Wait);
    assert_eq!(settings.retry.on_exhausted, ExhaustedPolicy::Skip);
    let settings = config.sequencer_settings(&config.streams["payments"], &share);
    assert_eq!((settings.max_turns, settings.id_window), (192, 11_224));
    // Even the smallest share of the limits has room for one key and two of the largest events.
    let settings = config.sequencer_settings(
        &config.streams["payments"],
        &PartitionParams { process_partitions: 100_000, ..share },
    );
    assert_eq!((settings.max_lanes, settings.memory_budget), (1, 4 << 20));
}

#[test]
fn unreadable_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ordain.toml");
    let error = LoadedConfig::load(&file).expect_err("a missing file");
    assert!(error.to_string().contains("ordain.toml: cannot be read: "), "{error}");
    let error = LoadedConfig::load(folder.path()).expect_err("a folder");
    assert!(error.to_string().contains("is not a file"), "{error}");
    std::fs::write(&file, ORDERS).expect("written");
    let loaded = LoadedConfig::load(&file).expect("a valid configuration");
    assert_eq!(loaded.config.plugins.dir.0, folder.path().join("plugins"));
    let error = loaded.setting_error("streams.orders.handler", "there is no such file").to_string();
    assert!(
        error.ends_with("ordain.toml:2: streams.orders.handler: there is no such file"),
        "{error}"
    );
    std::fs::write(&file, [0xff, 0xfe]).expect("written");
    assert!(LoadedConfig::load(&file).is_err());
}

/// Some editors write a byte order mark and Windows line ends, or write the file in UTF-16. A configuration must be
/// UTF-8, so only the first of these two files is valid.
#[test]
fn byte_order_mark_and_windows_line_ends_are_accepted() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ordain.toml");
    let text = format!("\u{feff}{}", ORDERS.replace('\n', "\r\n"));
    std::fs::write(&file, &text).expect("written");
    let loaded = LoadedConfig::load(&file).expect("a valid configuration");
    let expected = parse(ORDERS).expect("a valid configuration");
    assert_eq!(loaded.config.streams["orders"], expected.config.streams["orders"]);
    assert_eq!(
        loaded.lines.line_of("streams.orders.handler"),
        expected.lines.line_of("streams.orders.handler")
    );
    let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(&file, utf16).expect("written");
    let error = LoadedConfig::load(&file).expect_err("UTF-16").to_string();
    assert!(error.contains("ordain.toml: cannot be read: ") && error.contains("UTF-8"), "{error}");
}

proptest::proptest! {
    #[test]
    fn no_text_causes_a_panic(text in "[\\[\\]{}=\".,${}a-z0-9\\n -]{0,200}") {
        let _ = parse(&text);
        let _ = parse(&format!("{ORDERS}{text}"));
    }
}

/// An event of a new key can take effect up to `gap.max_width` beyond `first`, and if the key skips missing events, up
/// to 100 times this width.
#[test]
fn new_key_limit_depends_on_the_handling_of_gaps() {
    let limit = |more: &str| {
        let loaded = parse(&format!("{ORDERS}{more}")).expect("a valid configuration");
        loaded.config.streams["orders"].new_key_limit()
    };
    assert_eq!(limit(""), Some(10_001));
    assert_eq!(limit("first = 0\ngap = { max_width = 5, on_exhausted = \"wait\" }"), Some(5));
    assert_eq!(limit("gap = { max_width = 5, on_exhausted = \"skip\" }"), Some(501));
    assert_eq!(limit("first = \"any\""), None);
    assert_eq!(limit("ordering = \"fifo\""), None);
    assert_eq!(limit("gap = { replay = [\"http://h/{key}/{sequence}\"] }"), None);
}
