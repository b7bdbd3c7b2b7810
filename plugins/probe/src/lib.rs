//! A handler with minimal work, for benchmarks. The type of an event selects the work:
//!
//! | type | work |
//! |---|---|
//! | `noop` | none |
//! | `put` | sets the data as the state |
//! | `follow` | as `put`, but rejects data whose number is not the number in the state plus one; without a state, the number must be 1 |
//! | `emit` | as `put`, and emits the data to the sink `out` as a message of type `emitted` |
//! | `json` | parses the data, a JSON object, adds a field `seen` with the event's sequence, and sets the object as the state |

use ordain_sdk::prelude::*;
use serde_json::{Map, Value};

#[allow(clippy::needless_pass_by_value, reason = "a handler has this form")]
fn handle(event: Event<Raw>, state: Option<Raw>) -> Result<Outcome<Raw>> {
    match event.kind.as_str() {
        "noop" => Ok(Outcome::keep()),
        "put" => Ok(Outcome::put(event.data)),
        "follow" => {
            let before = state.map_or(Ok(0), |state| number(&state))?;
            let number = number(&event.data)?;
            if number != before + 1 {
                return Err(Failure::reject(format!(
                    "the number {number} does not follow the number {before}"
                )));
            }
            Ok(Outcome::put(event.data))
        }
        "emit" => {
            let message = Message::bytes("out", "emitted", event.content_type, event.data.clone());
            Ok(Outcome::put(event.data).emit(message))
        }
        "json" => {
            let mut data: Map<String, Value> =
                serde_json::from_slice(&event.data).or_reject("the data is not a JSON object")?;
            data.insert("seen".into(), event.sequence.into());
            let text =
                serde_json::to_string(&data).or_reject("the data cannot be written as JSON")?;
            Ok(Outcome::put(Raw::from(text)))
        }
        kind => {
            Err(Failure::reject(format!("{kind:?} is not one of noop, put, follow, emit, json")))
        }
    }
}

/// Returns the number in the data: four bytes after a timestamp of eight bytes.
fn number(data: &[u8]) -> Result<u32> {
    let bytes = data.get(8..12).and_then(|bytes| bytes.try_into().ok());
    Ok(u32::from_le_bytes(bytes.or_reject("the data has no number")?))
}

ordain_sdk::handler!(handle);

#[cfg(test)]
mod tests {
    use ordain_sdk::testing::Runner;

    use super::*;

    #[test]
    fn type_selects_the_work() {
        let mut run = Runner::new(handle);
        run.event("noop", Raw::from("x")).unwrap();
        assert_eq!(run.state(), None);
        run.event("put", Raw::from("x")).unwrap();
        assert_eq!(run.state(), Some(Raw::from("x")));
        let outcome = run.event("emit", Raw::from("y")).unwrap();
        let message = Message::bytes("out", "emitted", "application/json", "y");
        assert_eq!((run.state(), outcome.messages), (Some(Raw::from("y")), vec![message]));
        run.event("json", Raw::from(r#"{"a": 1}"#)).unwrap();
        assert_eq!(run.state(), Some(Raw::from(r#"{"a":1,"seen":4}"#)));
        let mut run = Runner::new(handle);
        for (number, is_right) in [(1, true), (3, false), (2, true)] {
            let data = [&[0; 8][..], &u32::to_le_bytes(number)].concat();
            assert_eq!(run.event("follow", Raw::from(data)).is_ok(), is_right, "{number}");
        }
        assert!(run.event("other", Raw::default()).is_err());
    }
}
