//! Does as little as possible, for benchmarks. What it does is named by the event's type:
//!
//! | type | what |
//! |---|---|
//! | `noop` | nothing |
//! | `put` | the data becomes the state |
//! | `emit` | the same, and the data is emitted to the sink `out` as a message of type `emitted` |
//! | `json` | the data, a JSON object, is read, given a field `seen`, and becomes the state |

use ordain_sdk::prelude::*;
use serde_json::{Map, Value};

#[allow(clippy::needless_pass_by_value, reason = "a handler's shape")]
fn handle(event: Event<Raw>, _: Option<Raw>) -> Result<Outcome<Raw>> {
    match event.kind.as_str() {
        "noop" => Ok(Outcome::keep()),
        "put" => Ok(Outcome::put(event.data)),
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
        kind => Err(Failure::reject(format!("{kind:?} is none of noop, put, emit, json"))),
    }
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
        assert!(run.event("other", Raw::default()).is_err());
    }
}
