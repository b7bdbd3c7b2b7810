//! Tests of the limits of a handler, and of the failures that the host reports when a handler exceeds a limit.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ordain_core::FailureKind::{Error, Limit, Retry, Timeout, Trap};
use ordain_core::{HandlerOutcome, StateUpdate};
use ordain_tests::guests::{Pairs, message, outcome};
use ordain_tests::host::Home;
use ordain_tests::log::line;
use ordain_tests::workers::{Line, Workers, assert_failure, settings, turn};
use serde_json::json;

const MIB: u32 = 1 << 20;

/// The environment variable that marks a child process that runs only one test.
const CHILD_VARIABLE: &str = "ORDAIN_TEST_ALONE";

#[test]
fn state_has_a_limit() -> Result<()> {
    let workers = Workers::faulty()?;
    let done = workers.command(r#"{"do":"put","bytes":1048576}"#);
    assert!(matches!(&done.state, StateUpdate::Put(state) if state.len() == 1 << 20), "{done:?}");
    let failure = workers.failure(r#"{"do":"put","bytes":1048577}"#);
    assert_failure(&failure, Limit, &["1048577 bytes", "`plugins.state_size`", "1 MiB"]);
    // This state is so large that the host does not copy it out of the handler's memory.
    let failure = workers.failure(r#"{"do":"put","bytes":20000000}"#);
    assert_failure(&failure, Limit, &["`plugins.state_size` (1 MiB)"]);
    Ok(())
}

#[test]
fn messages_have_limits() -> Result<()> {
    let workers = Workers::faulty()?;
    let done = workers.command(r#"{"do":"emit","messages":1000,"bytes":3000,"headers":3}"#);
    assert!(
        matches!(&done.outcomes[0], HandlerOutcome::Effect { messages, .. } if messages.len() == 1000)
    );
    let cases: [(&str, &[&str]); 9] = [
        (
            r#"{"do":"emit","messages":1001}"#,
            &["emitted 1001 messages", "`plugins.messages` allows 1000"],
        ),
        (
            r#"{"do":"emit","bytes":1048577}"#,
            &["message 0, to the sink `faulty`", "`runtime.event_size` allows 1 MiB"],
        ),
        (
            r#"{"do":"emit","messages":6,"bytes":740000}"#,
            &["together", "`plugins.messages_size` allows 4 MiB"],
        ),
        (
            r#"{"do":"emit","messages":20,"bytes":1000000}"#,
            &["at once", "`plugins.messages_size` (4 MiB)"],
        ),
        // The attributes of the event count too.
        (r#"{"do":"emit","bytes":1048500}"#, &["as an event", "`runtime.event_size` allows 1 MiB"]),
        (
            r#"{"do":"emit","headers":129}"#,
            &[
                "message 0, to the sink `faulty`",
                "129 headers",
                "at most 128 headers and 64 KiB in total are allowed",
            ],
        ),
        (
            r#"{"do":"emit","delay_ms":0}"#,
            &["message 0, to the sink `faulty`", "`delay-ms`", "does not support yet"],
        ),
        (r#"{"do":"emit","type":""}"#, &["message 0, to the sink `faulty`", "an empty type"]),
        (
            r#"{"do":"emit","sink":"nowhere"}"#,
            &["message 0", "`nowhere`", "not configured", "`faulty`, `other`, `tally`"],
        ),
    ];
    for (command, words) in cases {
        assert_failure(&workers.failure(command), Limit, words);
    }
    Ok(())
}

#[test]
fn memory_has_a_limit() -> Result<()> {
    let workers = Workers::faulty()?;
    workers.command(r#"{"do":"allocate","mib":40}"#);
    for mib in [64, 2_000] {
        let failure = workers.failure(format!(r#"{{"do":"allocate","mib":{mib}}}"#));
        assert_failure(&failure, Limit, &["`plugins.memory` allows 64 MiB"]);
    }
    // The handler allocates memory for each event and never frees it, so the memory exceeds the limit after several
    // events.
    let hoard = workers.run(turn("key", &[r#"{"do":"hoard","mib":20}"#; 4]));
    assert!(hoard.outcomes.len() < 4);
    assert_failure(&hoard.failure.expect("a failure"), Limit, &["`plugins.memory` allows 64 MiB"]);
    Ok(())
}

#[test]
fn all_memories_and_tables_count_together() -> Result<()> {
    const MEMORY: u32 = 0;
    const SECOND_MEMORY: u32 = 1;
    const THIRD_MEMORY: u32 = 2;
    const TABLE: u32 = 3;
    let workers = Workers::guest("memories")?;
    // A page of a memory has 64 KiB, and an element of a table has 8 bytes.
    for (what, by) in [(MEMORY, 600), (THIRD_MEMORY, 600), (TABLE, 10_000_000)] {
        let grow = Pairs::new().pair(SECOND_MEMORY, 600).pair(what, by);
        let failure = workers.failure(grow.bytes());
        assert_failure(&failure, Limit, &["`plugins.memory` allows 64 MiB"]);
    }
    let failure =
        workers.failure(Pairs::new().pair(SECOND_MEMORY, 600).pair(TABLE, 10_000).bytes());
    assert_failure(&failure, Trap, &["unreachable"]);
    Ok(())
}

#[test]
fn time_has_a_limit() -> Result<()> {
    let workers = Workers::faulty()?;
    let words = ["ran longer than 300ms", "`plugins.timeout`"];
    assert_failure(&workers.failure(r#"{"do":"loop"}"#), Timeout, &words);
    // The time limit applies to each event, not to the whole turn.
    let done = workers.run(turn("key", &[r#"{"do":"sleep","ms":200}"#; 5]));
    assert_eq!((done.outcomes.len(), done.failure), (5, None));
    Ok(())
}

#[test]
fn sleep_returns_immediately_and_counts_as_time() -> Result<()> {
    let mut patient = settings();
    patient.limits.timeout = Duration::from_hours(2);
    let workers = Workers::plugin("faulty", patient)?;
    let begun = std::time::Instant::now();
    assert_eq!(workers.command(r#"{"do":"sleep","ms":3600000}"#).failure, None);
    let failure = workers.failure(r#"{"do":"sleep","ms":36000000}"#);
    assert_failure(&failure, Timeout, &["waits longer than", "`plugins.timeout`"]);
    assert!(begun.elapsed() < Duration::from_mins(30));
    Ok(())
}

#[test]
fn log_has_a_limit() -> Result<()> {
    let workers = Workers::faulty()?;
    assert_eq!(workers.command(r#"{"do":"log","lines":10,"bytes":1000}"#).failure, None);
    assert_eq!(workers.lines().len(), 10);
    for command in [
        r#"{"do":"log","lines":1,"bytes":20000}"#,
        r#"{"do":"log","lines":2000,"bytes":0}"#,
        r#"{"do":"log","lines":17,"bytes":1000}"#,
    ] {
        assert_eq!(workers.command(command).failure, None);
        assert_cut(&workers.lines());
    }
    let print = format!(r#"{{"do":"print","out":"{}","err":"x"}}"#, "x\\n".repeat(2_000));
    assert_eq!(workers.command(&print).failure, None);
    assert_cut(&workers.lines());
    // The limit applies to each event separately.
    assert_eq!(workers.command(r#"{"do":"log","lines":10,"bytes":1000}"#).failure, None);
    assert_eq!(workers.lines().len(), 10);
    // If an event fails, the log still contains the beginning of the output of this event.
    let panic = format!(r#"{{"do":"panic","text":"{}"}}"#, "x".repeat(20_000));
    assert_failure(&workers.failure(&panic), Error, &["xxx"]);
    assert_cut(&workers.lines());
    Ok(())
}

/// Asserts that the host has cut the output of a handler: the last line reports the cut, and the lines before it have
/// at most 16 KiB. The host counts 16 additional bytes for each line, so there are at most 1,025 lines before the last
/// line, even if all of them are empty.
fn assert_cut(lines: &[Line]) {
    let (last, written) = lines.split_last().expect("lines");
    assert!(
        last.0 == "WARN" && last.2.contains("log output cut") && last.2.contains("16 KiB"),
        "{last:?}"
    );
    let bytes: usize = written.iter().map(|(_, _, text)| text.len()).sum();
    assert!(bytes <= 16 << 10 && written.len() <= 1_025, "{} lines", written.len());
}

#[test]
fn log_limit_of_zero_is_silent() -> Result<()> {
    let mut silent = settings();
    silent.limits.log = 0;
    let workers = Workers::plugin("faulty", silent)?;
    for command in [
        r#"{"do":"log","lines":200,"bytes":100}"#,
        r#"{"do":"log","lines":1,"bytes":0}"#,
        r#"{"do":"print","out":"x","err":"x\ny"}"#,
    ] {
        assert_eq!(workers.command(command).failure, None);
        assert_eq!(workers.lines(), []);
    }
    Ok(())
}

/// Lines that the filter of the log removes do not count towards the limit, so they do not displace other lines.
#[test]
fn lines_below_the_level_of_the_log_do_not_count() -> Result<()> {
    let config = "[streams.cases]\nhandler = \"faulty\"\n\
                  source = { kind = \"file\", path = \"events.ndjson\" }\n\
                  [sinks.faulty]\nkind = \"file\"\npath = \"out.ndjson\"\n";
    let home = Home::new(&["faulty"], config)?;
    let log = |level: &str| json!({ "do": "log", "lines": 200, "bytes": 100, "level": level });
    let events = [("k", "debug"), ("l", "trace"), ("m", "info")];
    let events = events.map(|(key, level)| line(key, 1, &log(level)));
    home.write("events.ndjson", events.join("\n"))?;
    for (filter, cut) in [("info", 1), ("warn", 0), ("debug", 2), ("handler=trace", 3), ("off", 0)]
    {
        let output = home.output(&["--log", filter, "run", "--once", "--strict"])?;
        let stderr = String::from_utf8(output.stderr)?;
        assert!(output.status.success(), "{filter}: {stderr}");
        assert_eq!(stderr.matches("log output cut").count(), cut, "{filter}: {stderr}");
        std::fs::remove_dir_all(home.path("ordain-data"))?;
    }
    Ok(())
}

#[test]
fn trap_is_reported_with_its_location() -> Result<()> {
    let workers = Workers::faulty()?;
    assert_failure(&workers.failure(r#"{"do":"trap"}"#), Trap, &["unreachable", "in `"]);
    assert_failure(&workers.failure(r#"{"do":"recurse"}"#), Trap, &["call stack exhausted"]);
    let workers = Workers::guest("puppet")?;
    let outside = Pairs::new().pair(u32::MAX - 8, 1);
    assert_failure(
        &workers.failure(outside.bytes()),
        Trap,
        &["out of bounds memory access", "`handle`"],
    );
    Ok(())
}

#[test]
fn uncaught_error_is_reported_with_its_text() -> Result<()> {
    let workers = Workers::faulty()?;
    let failure = workers.failure(r#"{"do":"panic","text":"no such order: 17"}"#);
    assert_failure(&failure, Error, &["panicked at plugins/faulty/src/lib.rs:", ": no such order"]);
    assert!(!failure.message.contains("RUST_BACKTRACE"), "{failure:?}");
    let failure = workers.failure(r#"{"do":"exit","code":3}"#);
    assert_failure(&failure, Error, &["exited with code"]);
    let failure = workers.failure(r#"{"do":"fail-after","bytes":10,"messages":2}"#);
    assert_failure(&failure, Error, &["after an outcome of 2 messages"]);
    Ok(())
}

#[test]
fn fault_is_reported_with_its_message() -> Result<()> {
    let workers = Workers::guest("fault")?;
    for message in ["TypeError: no such order ☃\n    at handle (app.js:1:5)", "again"] {
        assert_failure(&workers.failure(message), Error, &[]);
        assert_eq!(workers.failure(message).message, message);
    }
    let long = format!("TypeError: {} at handle", "☃".repeat(100_000));
    let message = workers.failure(long).message;
    assert!(message.starts_with("TypeError: ☃") && message.ends_with("☃ at handle"), "{message}");
    assert!(message.contains("bytes are left out") && message.len() < 3_000, "{message}");
    assert_failure(&workers.failure([0xff]), Trap, &["utf-8"]);
    Ok(())
}

#[test]
fn handler_may_reject_or_retry_an_event() -> Result<()> {
    let workers = Workers::faulty()?;
    let done = workers.command(r#"{"do":"reject","reason":"not mine"}"#);
    assert_eq!(done.outcomes, [HandlerOutcome::Rejected("not mine".to_owned())]);
    assert_eq!(done.failure, None);
    let failure = workers.failure(r#"{"do":"retry","reason":"busy","after_ms":70}"#);
    assert_eq!((failure.kind, &*failure.message, failure.after_ms), (Retry, "busy", Some(70)));
    let long = format!(r#"{{"do":"reject","reason":"{}"}}"#, "x".repeat(100_000));
    let done = workers.command(&long);
    assert!(matches!(&done.outcomes[0], HandlerOutcome::Rejected(reason) if reason.len() < 5_000));
    Ok(())
}

#[test]
fn overlapping_elements_are_not_copied() -> Result<()> {
    if std::env::var_os(CHILD_VARIABLE).is_none() {
        return run_alone("plugins::limits::overlapping_elements_are_not_copied");
    }
    let messages = |count: u32| Pairs::new().list(outcome::MESSAGES, 1024, count);
    // A thousand messages, each with the same 50 MiB of data.
    let aliased = (0..1_000).fold(messages(1_000), |pairs, index| {
        pairs.list(1024 + index * message::SIZE + message::DATA, 8, 50 * MIB)
    });
    let cases = [
        aliased,
        // As many empty messages as fit into 58 MiB of the memory.
        messages(58 * MIB / message::SIZE),
        // One message with as many empty headers as fit into 58 MiB of the memory.
        messages(1).list(1024 + message::HEADERS, 4096, 58 * MIB / 16),
        // A state that spans the whole memory.
        Pairs::new().pair(outcome::STATE, 1).list(outcome::STATE_DATA, 0, 60 * MIB),
    ];
    let workers = Workers::guest("puppet")?;
    for pairs in cases {
        let before = resident()?;
        let failure = workers.failure(pairs.bytes());
        assert_failure(&failure, Limit, &["at once", "`plugins.messages_size` (4 MiB)"]);
        let grown = resident()?.saturating_sub(before);
        assert!(grown < 200 << 20, "{grown} bytes were allocated");
    }
    Ok(())
}

#[test]
fn malformed_outcome_is_a_trap() -> Result<()> {
    let message = |at: u32| Pairs::new().list(outcome::MESSAGES, at, 1);
    let cases = [
        Pairs::new().list(outcome::MESSAGES, 1024, u32::MAX),
        message(1025),
        Pairs::new().pair(outcome::STATE, 7),
        message(1024).list(1024 + message::DATA, 60 * MIB, u32::MAX),
        // A text that is not valid UTF-8.
        message(1024).pair(64, u32::MAX).list(1024 + message::SINK, 64, 4),
    ];
    let workers = Workers::guest("puppet")?;
    for pairs in cases {
        assert_failure(&workers.failure(pairs.bytes()), Trap, &[]);
    }
    let workers = Workers::guest("bad-allocator")?;
    assert_failure(&workers.failure(""), Trap, &["realloc"]);
    Ok(())
}

#[test]
fn strings_in_utf16_are_accepted() -> Result<()> {
    // One message with the sink `tally` and the type `tally`, both in UTF-16.
    let units: Vec<u32> = "tally\0".encode_utf16().map(u32::from).collect();
    let name = (64..).step_by(4).zip(units.chunks(2));
    let pairs = Pairs::new().list(outcome::MESSAGES, 1024, 1);
    let pairs = pairs.list(1024 + message::SINK, 64, 5).list(1024 + message::KIND, 64, 5);
    let pairs = name.fold(pairs, |pairs, (at, unit)| pairs.pair(at, unit[0] | unit[1] << 16));
    let done = Workers::guest("puppet-utf16")?.command(pairs.bytes());
    let [HandlerOutcome::Effect { messages, .. }] = done.outcomes.as_slice() else {
        panic!("{done:?}")
    };
    let message = &messages[0];
    assert_eq!((message.sink(), message.kind(), message.data()), ("tally", "tally", &b""[..]));
    Ok(())
}

/// Runs a test alone in a child process, because other tests in the same process would change the memory usage of the
/// process.
fn run_alone(test: &str) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(["--exact", test]).env(CHILD_VARIABLE, "1").output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && stdout.contains("1 passed"), "{test}: {stdout}");
    Ok(())
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: usize = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}
