//! A handler that shows all that a handler can do. The type of an event selects what the handler does. Each SDK has
//! this handler, and the test `languages` compares all of them with one expectation.
//!
//! All messages go to the sink `out`.

use std::time::{SystemTime, UNIX_EPOCH};

use ordain_sdk::prelude::*;

/// The sink of all messages.
const SINK: &str = "out";

/// The delay that the handler requests with a retry, in ms.
const RETRY_DELAY_MS: u64 = 20;

/// The size of one block of memory that the handler takes, in bytes.
const BLOCK_BYTES: usize = 1 << 20;

/// The data of the event type `add`.
#[derive(Deserialize)]
struct Addition {
    amount: i64,
}

/// The state after an event of the type `add`, and the data of its message.
#[derive(Serialize, Deserialize)]
struct Sum {
    total: i64,
}

/// The data of the event type `exact`, and of its message.
#[derive(Serialize, Deserialize)]
struct Exact {
    n: u64,
}

/// The data of the event type `many`.
#[derive(Deserialize)]
struct Many {
    messages: u32,
}

/// The data of one message of the event type `many`.
#[derive(Serialize)]
struct Numbered {
    index: u32,
}

/// The data of the message of the event type `describe`: the event without its data.
#[derive(Serialize)]
struct Description<'a> {
    stream: &'a str,
    key: &'a str,
    sequence: u64,
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    source: &'a str,
    time_ms: Option<u64>,
    content_type: &'a str,
    end_of_sequence: bool,
    headers: &'a [(String, String)],
}

#[derive(Serialize)]
struct Clock {
    now_ms: u128,
}

#[derive(Serialize)]
struct Random {
    values: [f64; 2],
}

#[derive(Serialize)]
struct End {
    end: bool,
}

fn handle(event: Event<Raw>, state: Option<Raw>) -> Result<Outcome<Raw>> {
    match &*event.kind {
        "echo" => Ok(Outcome::keep().emit(echo(event))),
        "describe" => Ok(Outcome::keep().emit(describe(&event))),
        "put" => Ok(Outcome::put(event.data)),
        "get" => {
            let state = state.or_reject("no state")?;
            let message = Message::bytes(SINK, "state", "application/octet-stream", state);
            Ok(Outcome::keep().emit(message))
        }
        "delete" => Ok(Outcome::delete()),
        "add" => add(event, state),
        "exact" => Ok(Outcome::keep().emit(json("exact", &event.decode::<Exact>()?.data))),
        "clock" => Ok(Outcome::keep().emit(clock())),
        "random" => Ok(Outcome::keep().emit(json("random", &Random { values: rand::random() }))),
        "log" => Ok(log_all_levels()),
        "print" => Ok(print()),
        "many" => Ok(Outcome::keep().emit_all(many(event)?)),
        "reject" => Err(Failure::reject("rejected on request ☃")),
        "retry" => Err(Failure::retry_after(RETRY_DELAY_MS, "retried on request ☃")),
        "fault" => panic!("failed on request ☃"),
        "abort" => abort(),
        "complete" => {
            Ok(Outcome::keep().emit(Message::bytes(SINK, "completed", "", [])).complete())
        }
        "end" => {
            let end = event.end_of_sequence;
            Ok(Outcome::keep().emit(json("ended", &End { end }).end_of_sequence(end)))
        }
        "spin" => spin(),
        "grow" => grow(),
        kind => Err(Failure::reject(format!("unknown type {kind}"))),
    }
}

ordain_sdk::handler!(handle);

fn json(kind: &str, data: &impl Serialize) -> Message {
    Message::json(SINK, kind, data)
}

fn echo(event: Event<Raw>) -> Message {
    let message = Message::bytes(SINK, "echoed", event.content_type, event.data);
    event.headers.into_iter().fold(message, |message, (name, value)| message.header(name, value))
}

fn describe(event: &Event<Raw>) -> Message {
    let description = Description {
        stream: &event.stream,
        key: &event.key,
        sequence: event.sequence,
        id: &event.id,
        kind: &event.kind,
        source: &event.source,
        time_ms: event.time_ms,
        content_type: &event.content_type,
        end_of_sequence: event.end_of_sequence,
        headers: &event.headers,
    };
    json("described", &description)
}

fn add(event: Event<Raw>, state: Option<Raw>) -> Result<Outcome<Raw>> {
    let Addition { amount } = event.decode()?.data;
    let before = state.map_or(Sum { total: 0 }, Raw::decode_state);
    let message = json("added", &Sum { total: before.total + amount });
    Ok(Outcome::put(message.data.clone()).emit(message))
}

fn clock() -> Message {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the time is after 1970");
    json("clock", &Clock { now_ms: now.as_millis() })
}

fn many(event: Event<Raw>) -> Result<Vec<Message>> {
    let key = event.key.clone();
    let Many { messages } = event.decode()?.data;
    let message = |index| json("many", &Numbered { index }).key(format!("{key}/{index}"));
    Ok((0..messages).map(message).collect())
}

fn log_all_levels() -> Outcome<Raw> {
    log::trace!("trace ☃");
    log::debug!("debug ☃");
    log::info!("info ☃");
    log::warn!("warn ☃");
    log::error!("error ☃");
    Outcome::keep()
}

fn print() -> Outcome<Raw> {
    println!("printed ☃");
    eprintln!("complained ☃");
    Outcome::keep()
}

/// Ends the call as a library in another language does that reports its errors only on standard error.
fn abort() -> ! {
    eprintln!("aborted on request ☃");
    std::process::abort()
}

fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

fn grow() -> ! {
    let mut blocks = Vec::new();
    loop {
        // Writes to each block, so that the compiler keeps the allocation.
        blocks.push(std::hint::black_box(vec![1_u8; BLOCK_BYTES]));
    }
}

#[cfg(test)]
mod tests;
