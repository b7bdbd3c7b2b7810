//! A deliberately faulty handler, for tests of the host.
//!
//! The data of an event is a command, such as `{"do": "panic", "text": "ouch"}`. A field is optional if the table gives
//! its default value after the name. By default, messages go to the sink `faulty` and have the type `faulty`. The field
//! `sink` of `emit`, `publish` and `reply` names another sink, and the field `type` of `emit` and `publish` names
//! another type.
//!
//! | `do` | fields | effect |
//! |---|---|---|
//! | `ok` | | keeps the state |
//! | `complete` | | ends the key |
//! | `put` | `bytes` | sets a state of this size |
//! | `delete` | | removes the state |
//! | `emit` | `messages` 1, `bytes` 0, `headers` 0, `sink` "faulty", `type` "faulty", `delay_ms` none | emits this number of messages, each with this size and number of headers |
//! | `publish` | `text`, `headers` none, `content_type` "application/json", `sink` "faulty", `type` "faulty" | emits a message with this text and these headers. The field `headers` is an object: each member is a header |
//! | `reply` | `text` "", `sink` "faulty" | answers a request: emits a message with this text, and with the headers `property:reply_to` and `property:correlation_id` of the event |
//! | `reject` | `reason` "requested" | rejects the event |
//! | `retry` | `reason` "requested", `after_ms` none | requests a retry |
//! | `trap` | | executes `unreachable` |
//! | `trap-if-used` | | traps if the instance has already received another event |
//! | `panic` | `text` "requested" | panics: the text goes to standard error, then the instance traps |
//! | `exit` | `code` 1 | ends the instance through WASI; the host receives 0 for the code 0, and 1 for every other code |
//! | `loop` | | runs forever |
//! | `recurse` | | recurses until the host's stack for WebAssembly is exhausted |
//! | `allocate` | `mib` | allocates memory, writes to it and frees it; the memory of the instance does not shrink |
//! | `hoard` | `mib` | allocates memory, writes to it and keeps it until the instance ends |
//! | `log` | `lines` 1, `bytes` 0, `level` "info" | logs this number of lines, each of this size |
//! | `print` | `out` none, `err` none | prints to standard output and standard error |
//! | `sleep` | `ms` | sleeps through WASI: the host ends the sleep immediately, and advances the handler's clocks by `ms` |
//! | `fail-after` | `bytes`, `messages` 1 | builds a state and messages, then panics |
//! | `state` | | emits `{"bytes": N}`, the size of the state, or `null` if the key has no state |
//! | `calls` | | emits `{"calls": N}`, the number of events that this instance has received, including this event |
//! | `senses` | | emits `{"time_ms": …, "monotonic_ns": …, "random": […]}`: the time of the clock, the time that passed between two reads of the monotonic clock, and four random numbers |
//! | `probe` | `path` "/", `address` "127.0.0.1:80" | emits the environment in the sandbox: `{"arguments": […], "environment": […], "read": …, "write": …, "connect": …}`, where each of `read`, `write` and `connect` is an error or "allowed" |
//!
//! The handler rejects a command that is not in the table. No command fails a given number of times and then succeeds,
//! because a handler cannot count its failed tries: a failed try leaves no data for the next try.

mod harm;
mod probe;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use ordain_sdk::prelude::*;

/// The default sink and the default type of the messages.
const SINK: &str = "faulty";

/// The headers that a reply takes from its request: the queue for the reply, and the id of the request.
const ADDRESS_HEADERS: [&str; 2] = ["property:reply_to", "property:correlation_id"];

/// A command, as documented at the top of the crate.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
enum Command {
    Ok,
    Complete,
    Put {
        bytes: usize,
    },
    Delete,
    Emit {
        #[serde(default = "one")]
        messages: usize,
        #[serde(default)]
        bytes: usize,
        #[serde(default)]
        headers: usize,
        #[serde(default = "sink")]
        sink: String,
        #[serde(default = "sink", rename = "type")]
        kind: String,
        delay_ms: Option<u64>,
    },
    Publish {
        text: String,
        #[serde(default)]
        headers: BTreeMap<String, String>,
        #[serde(default = "media_type")]
        content_type: String,
        #[serde(default = "sink")]
        sink: String,
        #[serde(default = "sink", rename = "type")]
        kind: String,
    },
    Reply {
        #[serde(default)]
        text: String,
        #[serde(default = "sink")]
        sink: String,
    },
    Reject {
        #[serde(default = "requested")]
        reason: String,
    },
    Retry {
        #[serde(default = "requested")]
        reason: String,
        after_ms: Option<u64>,
    },
    Trap,
    TrapIfUsed,
    Panic {
        #[serde(default = "requested")]
        text: String,
    },
    Exit {
        #[serde(default = "exit_code")]
        code: i32,
    },
    Loop,
    Recurse,
    Allocate {
        mib: usize,
    },
    Hoard {
        mib: usize,
    },
    Log {
        #[serde(default = "one")]
        lines: usize,
        #[serde(default)]
        bytes: usize,
        #[serde(default)]
        level: Level,
    },
    Print {
        #[serde(default)]
        out: String,
        #[serde(default)]
        err: String,
    },
    Sleep {
        ms: u64,
    },
    FailAfter {
        bytes: usize,
        #[serde(default = "one")]
        messages: usize,
    },
    State,
    Calls,
    Senses,
    Probe {
        #[serde(default = "root")]
        path: String,
        #[serde(default = "address")]
        address: String,
    },
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Level {
    Trace,
    Debug,
    #[default]
    Info,
    Warn,
    Error,
}

/// Number of events that this instance has received. A new instance begins at 0.
static CALLS: AtomicU64 = AtomicU64::new(0);

fn handle(event: Event<Command>, state: Option<Raw>) -> Result<Outcome<Raw>> {
    let calls = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    let done = Outcome::keep();
    Ok(match event.data {
        Command::Complete => done.complete(),
        Command::Put { bytes } => Outcome::put(filler(bytes)),
        Command::Delete => Outcome::delete(),
        Command::Emit { messages, bytes, headers, sink, kind, delay_ms } => {
            let message = Message { delay_ms, kind, ..emitted(&sink, bytes, headers) };
            done.emit_all((0..messages).map(|_| message.clone()))
        }
        Command::Publish { text, headers, content_type, sink, kind } => {
            let message = Message::bytes(sink, kind, content_type, Raw(text.into_bytes()));
            done.emit(Message { headers: headers.into_iter().collect(), ..message })
        }
        Command::Reply { text, sink } => done.emit(reply(&sink, text, event.headers)),
        Command::Reject { reason } => return Err(Failure::Reject(reason)),
        Command::Retry { reason, after_ms } => return Err(Failure::Retry { reason, after_ms }),
        Command::Trap => harm::trap(),
        Command::TrapIfUsed if calls > 1 => harm::trap(),
        Command::Ok | Command::TrapIfUsed => done,
        Command::Panic { text } => panic!("{text}"),
        Command::Exit { code } => std::process::exit(code),
        Command::Loop => harm::run_forever(),
        Command::Recurse => harm::recurse(),
        Command::Allocate { mib } => {
            drop(harm::allocate(mib));
            done
        }
        Command::Hoard { mib } => {
            std::mem::forget(harm::allocate(mib));
            done
        }
        Command::Log { lines, bytes, level } => {
            write_lines(lines, bytes, level);
            done
        }
        Command::Print { out, err } => {
            print!("{out}");
            // Without a flush, text that has no line end would stay in the instance's buffer.
            std::io::stdout().flush().or_retry("standard output")?;
            eprint!("{err}");
            done
        }
        Command::Sleep { ms } => {
            std::thread::sleep(std::time::Duration::from_millis(ms));
            done
        }
        Command::FailAfter { bytes, messages } => {
            let messages = (0..messages).map(|_| emitted(SINK, bytes, 0));
            let outcome = Outcome::put(filler(bytes)).emit_all(messages);
            panic!("after an outcome of {} messages", outcome.messages.len())
        }
        Command::State => done.emit(report(&state.map(|s| probe::State { bytes: s.len() }))),
        Command::Calls => done.emit(report(&probe::Calls { calls })),
        Command::Senses => done.emit(report(&probe::senses()?)),
        Command::Probe { path, address } => done.emit(report(&probe::sandbox(&path, &address))),
    })
}

ordain_sdk::handler!(handle);

fn report<T: Serialize>(report: &T) -> Message {
    Message::json(SINK, SINK, report)
}

fn emitted(sink: &str, bytes: usize, headers: usize) -> Message {
    let headers = (0..headers).map(|n| (format!("header-{n}"), n.to_string())).collect();
    Message { headers, ..Message::bytes(sink, SINK, "text/plain", filler(bytes)) }
}

/// Returns the reply to a request with these headers.
fn reply(sink: &str, text: String, mut headers: Vec<(String, String)>) -> Message {
    headers.retain(|(name, _)| ADDRESS_HEADERS.contains(&&**name));
    Message { headers, ..Message::bytes(sink, SINK, "text/plain", Raw(text.into_bytes())) }
}

fn filler(bytes: usize) -> Raw {
    Raw(vec![b'x'; bytes])
}

fn write_lines(lines: usize, bytes: usize, level: Level) {
    let level = match level {
        Level::Trace => log::Level::Trace,
        Level::Debug => log::Level::Debug,
        Level::Info => log::Level::Info,
        Level::Warn => log::Level::Warn,
        Level::Error => log::Level::Error,
    };
    let line = "x".repeat(bytes);
    for _ in 0..lines {
        log::write(level, format_args!("{line}"));
    }
}

fn one() -> usize {
    1
}

fn exit_code() -> i32 {
    1
}

fn sink() -> String {
    SINK.into()
}

fn media_type() -> String {
    "application/json".into()
}

fn requested() -> String {
    "requested".into()
}

fn root() -> String {
    "/".into()
}

fn address() -> String {
    "127.0.0.1:80".into()
}

#[cfg(test)]
mod tests;
