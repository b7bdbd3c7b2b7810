//! Tests of the form of scripted tests, and of the comparison of outcomes.

use super::*;

fn parse(text: &str) -> Result<Script, ProjectError> {
    Script::parse(Path::new("first.ndjson"), text)
}

#[track_caller]
fn object(value: Value) -> Map<String, Value> {
    let Value::Object(members) = value else { panic!("{value}") };
    members
}

#[test]
fn invalid_expectation_is_reported_with_its_line() {
    for (text, line, message) in [
        ("\n{\"expect\":{\"state\":1}}", 2, "no event before it"),
        ("{}\n{\"expect\":1}", 2, "must be an object"),
        ("{}\n{\"expect\":{}}", 2, "has no member"),
        ("{}\n{\"expect\":{\"states\":1}}", 2, "unknown member `states`"),
        ("{}\n{\"expect\":{\"reject\":1}}", 2, "`reject` must be a text"),
        ("{}\n{\"expect\":{\"reject\":\"\",\"state\":1}}", 2, "no other member"),
        ("{}\n{\"expect\":{\"messages\":1}}", 2, "must be an array"),
        ("{}\n{\"expect\":{\"state\":1}}\n\n{\"expect\":{\"state\":2}}", 4, "already has"),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.starts_with(&format!("first.ndjson:{line}: ")), "{error}");
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn update_changes_only_the_named_steps() {
    let text = "\n{\"id\":\"1\"}\n{\"expect\":{\"state\": 1}}\n\nno event\n{\"id\":\"2\"}\n";
    let script = parse(text).unwrap();
    assert_eq!(script.events(), "{\"id\":\"1\"}\nno event\n{\"id\":\"2\"}\n");
    assert_eq!(script.updated(|_| None), text);
    let reject = |index| (index == 1).then(|| object(json!({ "reject": "why\nwhere" })));
    assert_eq!(
        script.updated(reject),
        text.replace("no event\n", "no event\n{\"expect\":{\"reject\":\"why\"}}\n")
    );
}

#[test]
fn expectation_describes_a_part_of_the_outcome() {
    let outcome = json!({
        "state": { "a": 1 },
        "messages": [{ "sink": "out", "type": "x", "data": { "b": 2, "c": 3 } }],
    });
    let outcome = object(outcome);
    for (expected, is_met) in [
        (json!({ "state": { "a": 1 } }), true),
        (json!({ "state": {} }), false),
        (json!({ "state": null }), false),
        (json!({ "messages": [{ "type": "x" }] }), true),
        (json!({ "messages": [{ "type": "y" }] }), false),
        (json!({ "messages": [{ "data": { "b": 2 } }] }), false),
        (json!({ "messages": [] }), false),
        (json!({ "complete": false }), true),
        (json!({ "complete": true }), false),
        (json!({ "reject": "" }), false),
    ] {
        assert_eq!(compare(&object(expected.clone()), &outcome).is_none(), is_met, "{expected}");
    }
    let shown = compare(&object(json!({ "messages": [{ "type": "y" }] })), &outcome);
    assert_eq!(shown, Some(json!({ "messages": [{ "type": "x" }] })));
}

#[test]
fn reason_contains_the_expected_text() {
    let outcome = object(json!({ "reject": "the balance is only 7 cents" }));
    assert_eq!(compare(&object(json!({ "reject": "only 7" })), &outcome), None);
    assert_eq!(compare(&object(json!({ "reject": "" })), &outcome), None);
    let other = compare(&object(json!({ "reject": "only 8" })), &outcome);
    assert_eq!(other, Some(json!({ "reject": "the balance is only 7 cents" })));
    assert!(compare(&object(json!({ "fault": "" })), &outcome).is_some());
    assert!(compare(&object(json!({ "state": null })), &outcome).is_some());
    assert!(compare(&object(json!({ "complete": false })), &outcome).is_some());
}
