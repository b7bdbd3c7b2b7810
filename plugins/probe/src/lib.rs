//! Does as little as possible, for benchmarks. What it does is named by the event's type:
//!
//! | type | what |
//! |---|---|
//! | `noop` | nothing |
//! | `put` | the data becomes the state |
//! | `follow` | the same, but refuses data whose number is not one above the state's |
//! | `emit` | the same, and the data is emitted to the sink `out` as a message of type `emitted` |
//! | `json` | the data, a JSON object, is read, given a field `seen`, and becomes the state |

use ordain_sdk::prelude::*;
use serde_json::{Map, Value};

#[allow(clippy::needless_pass_by_value, reason = "a handler's shape")]
fn handle(event: Event<Raw>, state: Option<Raw>) -> Result<Outcome<Raw>> {
    match event.kind.as_str() {
        "noop" => Ok(Outcome::keep()),
        "put" => Ok(Outcome::put(event.data)),
        "follow" => {
            let before = state.map_or(Ok(0), |it| number(&it))?;
            let number = number(&event.data)?;
            if number != before + 1 {
                return Err(Failure::reject(format!("{number} does not follow {before}")));
            }
            Ok(Outcome::put(event.data))
        }
        "emit" => {
            let message = Message::bytes("out", "emitted", event.content_type, event.data.clone());
            Ok(Outcome::put(event.data).emit(message))
        }
        "json" => {
            let mut data: Map<String, Value> =
                serde_json::from_slice(&event.data).or_reject("the data is a JSON object")?;
            data.insert("seen".into(), event.sequence.into());
            let text = serde_json::to_string(&data).or_reject("it was JSON before")?;
            Ok(Outcome::put(Raw::from(text)))
        }
        kind => Err(Failure::reject(format!("{kind:?} is none of noop, put, follow, emit, json"))),
    }
}

/// The number in data: four bytes behind eight of a time.
fn number(data: &[u8]) -> Result<u32> {
    let bytes = data.get(8..12).and_then(|it| it.try_into().ok());
    Ok(u32::from_le_bytes(bytes.or_reject("the data has a number")?))
}

ordain_sdk::handler!(handle);

#[cfg(test)]
mod tests {
    use ordain_sdk::testing::Runner;

    use super::*;

    #[test]
    fn it_does_what_the_type_says() {
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
