//! The events of the test `conformance`, with their expected effects. The effects are the same for all languages,
//! except for the documented differences in [`Language`].

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::language::Language;
use super::output::{SeenData, SeenMessage};

/// The time of the events that have a time: as text, and in ms since the Unix epoch.
const TIME: &str = "2026-01-31T12:00:00.125Z";
const TIME_MS: u64 = 1_769_860_800_125;

/// The source of all events.
const SOURCE: &str = "/prüfung/☃";

/// The largest number that a double represents without loss of a smaller number.
const EXACT_IN_DOUBLE: u64 = (1 << 53) - 1;

/// The size of a large state, in bytes.
const LARGE_STATE_BYTES: usize = 500_000;

/// The number of messages of an event with many messages.
const MANY_MESSAGES: u64 = 500;

/// The expected effect of an event.
pub(crate) enum Effect {
    /// The event takes effect without a message.
    Silent,
    /// The event emits this message.
    Emits(SeenMessage),
    /// The event emits many messages, to keys that consist of the event's key, `/` and the index of the message.
    EmitsMany(u64),
    /// The event emits a message of this type. A function checks the data of the message.
    EmitsSuch(&'static str, fn(&Value) -> bool),
    /// The event becomes a dead letter with this cause and this reason.
    Dead(&'static str, String),
    /// The event becomes a dead letter with this cause. The reason contains all of these texts.
    DeadSuch(&'static str, Vec<String>),
    /// The event becomes a dead letter because of an uncaught error. The reason begins with this text.
    Faults(&'static str),
}

/// An event with its expected effect.
pub(crate) struct Step {
    /// The event as a line, with its key and its sequence.
    pub(crate) line: String,
    pub(crate) key: String,
    pub(crate) sequence: u64,
    pub(crate) effect: Effect,
}

/// The events of one key.
struct Key<'a> {
    name: String,
    steps: &'a mut Vec<Step>,
    sequence: u64,
}

/// All steps, in the order of their keys.
pub(crate) fn steps(language: Language) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut key = |name: &str, add: &dyn Fn(&mut Key<'_>)| {
        add(&mut Key { name: name.to_owned(), steps: &mut steps, sequence: 0 });
    };
    for name in ["plain", "ключ/日本 💥", "a \"quoted\" \\ key"] {
        key(name, &descriptions);
    }
    key("echo", &echoes);
    key("state", &|key| states(key, language));
    key("sum", &sums);
    key("bad state", &bad_states);
    key("exact", &exact_numbers);
    key("environment", &environment);
    key("messages", &|key| {
        key.json("many", &json!({ "messages": MANY_MESSAGES }), Effect::EmitsMany(MANY_MESSAGES));
        key.json("many", &json!({ "messages": 0 }), Effect::Silent);
    });
    key("failures", &|key| failures(key, language));
    key("limits", &limits);
    key("completed", &|key| {
        let effect = SeenMessage { kind: "completed".into(), ..empty_message() };
        key.json("complete", &Value::Null, Effect::Emits(effect));
        key.json("reject", &Value::Null, Effect::DeadSuch("after-end", Vec::new()));
    });
    key("ended", &|key| {
        key.json(
            "end",
            &Value::Null,
            Effect::Emits(json_message("ended", json!({ "end": false }))),
        );
        let last = SeenMessage { end: true, ..json_message("ended", json!({ "end": true })) };
        key.add("end", json!({ "endofsequence": true }), Effect::Emits(last));
        key.json("reject", &Value::Null, Effect::DeadSuch("after-end", Vec::new()));
    });
    key("log", &|key| key.json("log", &Value::Null, Effect::Silent));
    key("print", &|key| key.json("print", &Value::Null, Effect::Silent));
    steps
}

impl Key<'_> {
    /// Adds an event with these attributes, in addition to the attributes that every event has.
    fn add(&mut self, kind: &str, attributes: Value, effect: Effect) {
        self.sequence += 1;
        let mut event = json!({
            "specversion": "1.0", "id": format!("id-{}", self.sequence), "source": SOURCE, "type": kind,
            "subject": self.name, "sequence": self.sequence, "time": TIME,
        });
        if let (Some(event), Value::Object(attributes)) = (event.as_object_mut(), attributes) {
            event.extend(attributes);
        }
        self.steps.push(Step {
            line: event.to_string(),
            key: self.name.clone(),
            sequence: self.sequence,
            effect,
        });
    }

    /// Adds an event with JSON data.
    fn json(&mut self, kind: &str, data: &Value, effect: Effect) {
        self.add(kind, json!({ "data": data }), effect);
    }

    /// Adds an event with bytes as its data.
    fn bytes(&mut self, kind: &str, content_type: &str, data: &[u8], effect: Effect) {
        let data = STANDARD.encode(data);
        self.add(kind, json!({ "datacontenttype": content_type, "data_base64": data }), effect);
    }
}

fn empty_message() -> SeenMessage {
    SeenMessage {
        kind: String::new(),
        content_type: String::new(),
        headers: Vec::new(),
        data: SeenData::Bytes(Vec::new()),
        end: false,
    }
}

fn json_message(kind: &str, data: Value) -> SeenMessage {
    SeenMessage {
        kind: kind.to_owned(),
        content_type: "application/json".to_owned(),
        data: SeenData::Json(data),
        ..empty_message()
    }
}

fn bytes_message(kind: &str, content_type: &str, data: &[u8]) -> SeenMessage {
    SeenMessage {
        kind: kind.to_owned(),
        content_type: content_type.to_owned(),
        data: SeenData::Bytes(data.to_owned()),
        ..empty_message()
    }
}

/// All values of a byte, several times.
fn all_bytes(size: usize) -> Vec<u8> {
    (0..=u8::MAX).cycle().take(size).collect()
}

fn descriptions(key: &mut Key<'_>) {
    let name = key.name.clone();
    let described = |sequence: u64, time_ms: Option<u64>, headers: Value, end: bool| {
        let data = json!({
            "stream": "calls", "key": name, "sequence": sequence, "id": format!("id-{sequence}"),
            "type": "describe", "source": SOURCE, "time_ms": time_ms, "content_type": "application/json",
            "end_of_sequence": end, "headers": headers,
        });
        Effect::Emits(json_message("described", data))
    };
    key.json("describe", &Value::Null, described(1, Some(TIME_MS), json!([]), false));
    let no_time = json!({ "data": 1, "time": null });
    key.add("describe", no_time, described(2, None, json!([]), false));
    let attributes = json!({
        "data": 1, "xempty": "", "xtext": "☃ 💥 \"\\\u{7}", "xnumber": 7, "endofsequence": true,
    });
    let headers = json!([["xempty", ""], ["xnumber", "7"], ["xtext", "☃ 💥 \"\\\u{7}"]]);
    key.add("describe", attributes, described(3, Some(TIME_MS), headers, true));
}

fn echoes(key: &mut Key<'_>) {
    let octets = "application/octet-stream";
    for data in [&b""[..], &b"\0"[..], &b"\xff\xfe\x00"[..], &all_bytes(1_000)] {
        key.bytes("echo", octets, data, Effect::Emits(bytes_message("echoed", octets, data)));
    }
    let text = "zwei\r\nZeilen ☃ 💥 \u{2028}";
    let echoed = bytes_message("echoed", "text/plain", text.as_bytes());
    key.bytes("echo", "text/plain", text.as_bytes(), Effect::Emits(echoed));
    let data =
        json!({ "text": "☃ 💥", "list": [1, 2.5, null, true, {}], "large": EXACT_IN_DOUBLE });
    let headers = json!({ "data": data, "xa": "1", "xb": "☃", "xc": "" });
    let pairs = [("xa", "1"), ("xb", "☃"), ("xc", "")];
    let echoed = SeenMessage {
        headers: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        ..json_message("echoed", data)
    };
    key.add("echo", headers, Effect::Emits(echoed));
}

fn states(key: &mut Key<'_>, language: Language) {
    let octets = "application/octet-stream";
    let no_state = || Effect::Dead("rejected", "no state".to_owned());
    let state = |data: &[u8]| Effect::Emits(bytes_message("state", octets, data));
    key.json("get", &Value::Null, no_state());
    let large = all_bytes(LARGE_STATE_BYTES);
    for data in [&b"\xff\x00\xfe"[..], &large, b""] {
        key.bytes("put", octets, data, Effect::Silent);
        key.json("get", &Value::Null, state(data));
    }
    // A failure changes no state.
    key.bytes("put", octets, b"kept", Effect::Silent);
    key.json("reject", &Value::Null, Effect::Dead("rejected", "rejected on request ☃".to_owned()));
    key.json("fault", &Value::Null, Effect::Faults(language.fault_prefix));
    key.json("get", &Value::Null, state(b"kept"));
    key.json("delete", &Value::Null, Effect::Silent);
    key.json("get", &Value::Null, no_state());
    key.json("delete", &Value::Null, Effect::Silent);
}

fn sums(key: &mut Key<'_>) {
    let added = |total: i64| Effect::Emits(json_message("added", json!({ "total": total })));
    key.json("add", &json!({ "amount": 5 }), added(5));
    key.json("add", &json!({ "amount": -7, "other": "☃" }), added(-2));
    let undecodable = |size: usize, content_type: &str| {
        let parts = ["add".to_owned(), size.to_string(), content_type.to_owned()];
        Effect::DeadSuch("rejected", parts.to_vec())
    };
    for data in [&b"no JSON"[..], &b"{\"amount\":"[..], &b"\xff"[..]] {
        key.bytes("add", "text/odd", data, undecodable(data.len(), "text/odd"));
    }
    // In some languages, the handler itself checks the form of JSON data.
    for data in [&b""[..], &b"{\"amount\":\"no\"}"[..], &b"{}"[..], &b"[]"[..]] {
        key.bytes("add", "application/json", data, Effect::DeadSuch("rejected", Vec::new()));
    }
    key.json("add", &json!({ "amount": 1 }), added(-1));
}

fn bad_states(key: &mut Key<'_>) {
    for state in [&b"no JSON"[..], &b"\xff\xff"[..]] {
        key.bytes("put", "application/octet-stream", state, Effect::Silent);
        let words = ["the state of this key", "cannot be decoded"].map(str::to_owned);
        key.json("add", &json!({ "amount": 1 }), Effect::DeadSuch("error", words.to_vec()));
    }
}

fn exact_numbers(key: &mut Key<'_>) {
    for n in [0, 1, EXACT_IN_DOUBLE, EXACT_IN_DOUBLE + 2, u64::MAX] {
        key.json(
            "exact",
            &json!({ "n": n }),
            Effect::Emits(json_message("exact", json!({ "n": n }))),
        );
    }
}

fn environment(key: &mut Key<'_>) {
    let clock = json_message("clock", json!({ "now_ms": TIME_MS }));
    key.json("clock", &Value::Null, Effect::Emits(clock));
    key.json(
        "random",
        &Value::Null,
        Effect::EmitsSuch("random", |data| {
            let [first, second] = [0, 1].map(|index| &data["values"][index]);
            first.is_number() && second.is_number() && first != second
        }),
    );
}

fn failures(key: &mut Key<'_>, language: Language) {
    key.json("reject", &Value::Null, Effect::Dead("rejected", "rejected on request ☃".to_owned()));
    key.json("retry", &Value::Null, Effect::Dead("retry", "retried on request ☃".to_owned()));
    key.json("fault", &Value::Null, Effect::Faults(language.fault_prefix));
    if language.aborts {
        let reason = "uncaught error: aborted on request ☃".to_owned();
        key.json("abort", &Value::Null, Effect::Dead("error", reason));
    }
    let unknown = "unknown type no.such-type ☃".to_owned();
    key.json("no.such-type ☃", &Value::Null, Effect::Dead("rejected", unknown));
    key.json("echo", &json!(1), Effect::Emits(json_message("echoed", json!(1))));
}

fn limits(key: &mut Key<'_>) {
    let words = |words: &str| vec![words.to_owned()];
    key.json("spin", &Value::Null, Effect::DeadSuch("timeout", words("`plugins.timeout`")));
    key.json("grow", &Value::Null, Effect::DeadSuch("limit", words("`plugins.memory`")));
    key.json("echo", &json!(1), Effect::Emits(json_message("echoed", json!(1))));
}
