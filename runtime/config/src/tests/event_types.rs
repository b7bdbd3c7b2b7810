//! Tests of the settings `types` and `other_types`.

use std::sync::Arc;

use ordain_core::{SequencerSettings, TypeFilter, TypePattern};

use super::*;

const SINK: &str = "[sinks.others]\nkind = \"file\"\npath = \"others.ndjson\"\n";

fn sequencer_settings(more: &str) -> SequencerSettings {
    let loaded =
        parse(&format!("{ORDERS}{more}")).unwrap_or_else(|error| panic!("{more}: {error}"));
    let share = PartitionParams {
        partition: 0,
        stream_partitions: 1,
        process_partitions: 1,
        workers: 1,
        version: None,
        seed: 1,
    };
    loaded.config.sequencer_settings(&loaded.config.streams["orders"], &share)
}

#[test]
fn sequencer_gets_the_types_and_the_sink() {
    assert_eq!(sequencer_settings("").types, None);
    let patterns = vec![TypePattern::new("order.*"), TypePattern::new("")];
    let types = "types = [\"order.*\", \"\"]\n";
    let filter = TypeFilter { patterns: patterns.clone(), sink: None };
    assert_eq!(sequencer_settings(types).types, Some(Arc::new(filter)));
    let filter = TypeFilter { patterns, sink: Some("others".into()) };
    let settings = sequencer_settings(&format!("{types}other_types = \"others\"\n{SINK}"));
    assert_eq!(settings.types, Some(Arc::new(filter)));
}

#[test]
fn wrong_types_are_reported_with_a_valid_form() {
    let long = format!("types = [\"{}\"]", "x".repeat(4_097));
    let many = format!("types = {:?}", (0..65).map(|n| n.to_string()).collect::<Vec<_>>());
    for (line, setting, message) in [
        ("types = []", "types", "the array is empty; leave out the setting"),
        ("types = \"order.*\"", "types", "expected an array of 1 to 64 event types such as"),
        ("types = [1]", "types[0]", "expected an event type of at most 4096 bytes such as"),
        (&*many, "types", "the array has more than 64 elements"),
        (&*long, "types[0]", "found a long text"),
        ("types = [\"a\", \"b\", \"a\"]", "types[2]", "is in the array twice"),
        ("types = [\" a\"]", "types[0]", "without blanks at its ends"),
        ("types = [\"a\\n\"]", "types[0]", "without control characters"),
        ("types = [\"order.#\"]", "types[0]", "did you mean \"order.*\"?"),
        ("types = [\"#\"]", "types[0]", "did you mean \"*\"?"),
        ("type = [\"a\"]", "", "did you mean `types`?"),
    ] {
        let setting = match setting {
            "" => "streams.orders".to_owned(),
            setting => format!("streams.orders.{setting}"),
        };
        check_stream(line, &[(4, &setting, message)]);
    }
    // No character of these patterns has a special meaning.
    for pattern in ["order.?", "[a-z]", "C#", "Shop.Order`1[[Item]]", "https://shop/#created"] {
        check_stream(&format!("types = [{pattern:?}]"), &[]);
    }
}

#[test]
fn sink_of_other_types_is_checked() {
    let case = |types: &str, sink: &str, expected: &[(usize, &str, &str)]| {
        check_stream(&format!("{types}\nother_types = {sink:?}\n{SINK}"), expected);
    };
    let setting = "streams.orders.other_types";
    case("types = [\"a\"]", "others", &[]);
    case("types = [\"a\"]", "other", &[(5, setting, "did you mean \"others\"?")]);
    case("", "others", &[(5, setting, "needs `types`")]);
    case("types = [\"a\", \"*\"]", "others", &[(5, setting, "the pattern \"*\" in `types`")]);
    // The check reports only the error of the patterns.
    case("types = []", "others", &[(4, "streams.orders.types", "the array is empty")]);
}

#[test]
fn events_of_other_types_do_not_return() {
    let stream = |name: &str, sink: &str| {
        format!(
            "[streams.{name}]\nhandler = \"h\"\nsource = {{ kind = \"stream\" }}\n\
             types = [\"{name}.*\"]\nother_types = \"{sink}\"\n"
        )
    };
    let sink = |to: &str| {
        format!("[sinks.{to}]\nkind = \"stream\"\nstream = \"{to}\"\nsequenced = true\n")
    };
    check(
        &(stream("a", "b") + &stream("b", "a") + &sink("a") + &sink("b")),
        &[
            (5, "streams.a.other_types", "leads back to this stream"),
            (10, "streams.b.other_types", "leads back to this stream"),
        ],
    );
    let last = "[streams.c]\nhandler = \"h\"\nsource = { kind = \"stream\" }\n";
    check(&(stream("a", "b") + &stream("b", "c") + last + &sink("b") + &sink("c")), &[]);
    // A circle may also contain the sink of dead letters of another stream.
    let letters = last.to_owned() + "dead_letter = \"b\"\n";
    check(
        &(stream("b", "c") + &letters + &sink("b") + &sink("c")),
        &[
            (5, "streams.b.other_types", "leads back to this stream"),
            (9, "streams.c.dead_letter", "leads back to this stream"),
        ],
    );
}
