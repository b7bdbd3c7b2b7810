//! Tests of two events with the same sequence: a repeat, or a conflict.

use anyhow::Result;
use ordain_core::{Cause, EventParts};

use super::super::sequencer_support::event_parts;
use super::rig::Rig;

/// Two producers number events of the same key. The dead letter of the second producer's event must name the first
/// producer.
#[test]
fn conflict_names_the_source_of_the_other_event() -> Result<()> {
    let mut rig = Rig::new("gap = { timeout = \"1h\" }")?;
    let from = |source: &'static str| {
        let sequence = Some(2);
        let data = source.as_bytes();
        EventParts { source, sequence, data, ..event_parts() }
    };
    rig.deliver_parts(&from("/shop"));
    rig.deliver_parts(&from("/web"));
    let letters = rig.letters_without_write();
    let [letter] = letters[..] else { panic!("{letters:?}") };
    assert_eq!(letter.cause, Cause::Conflict);
    assert!(letter.error.ends_with("event 2 of the key, from the source \"/shop\""), "{letter:?}");
    Ok(())
}

/// An event arrives again in another form of JSON, both while the stream holds the first copy, and after the first copy
/// is settled.
#[test]
fn other_form_of_json_is_a_repeat() -> Result<()> {
    let mut rig = Rig::new("gap = { timeout = \"1h\" }")?;
    let deliver = |rig: &mut Rig, sequence: u64, data: &str| {
        let sequence = Some(sequence);
        let data = data.as_bytes();
        let content_type = "application/json";
        rig.deliver_parts(&EventParts { sequence, data, content_type, ..event_parts() });
    };
    let loose = "{ \"b\": 2,\n \"a\": [1, \"\\u0078\"] }";
    deliver(&mut rig, 2, r#"{"a":[1,"x"],"b":2}"#);
    deliver(&mut rig, 2, loose);
    deliver(&mut rig, 1, "{}");
    assert_eq!((rig.acked, rig.sequencer.stats().settled), (3, 2));
    deliver(&mut rig, 2, loose);
    assert_eq!((rig.acked, rig.sequencer.stats().settled), (4, 2));
    assert!(rig.batches.iter().all(|batch| batch.letters.is_empty()), "{:?}", rig.batches);
    deliver(&mut rig, 2, r#"{"a":["x",1],"b":2}"#);
    let letters = rig.letters_without_write();
    assert!(letters.len() == 1 && letters[0].cause == Cause::Conflict, "{letters:?}");
    Ok(())
}
