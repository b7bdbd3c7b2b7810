//! Tests of standard input as a source, standard output as a sink, and a log in JSON. Standard output must contain only
//! messages, and a log in JSON must contain only JSON lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use ordain_tests::host::{Home, binary};
use ordain_tests::log::{by_key, in_turn, line, text};
use ordain_tests::tally;
use serde_json::{Value, json};

const PIPED_CONFIG: &str = r#"
[streams.cases]
handler = "tally"
source = { kind = "file", path = "-" }

[sinks.tally]
kind = "file"
path = "-"
"#;

const FAULTY_CONFIG: &str = r#"
[streams.cases]
handler = "faulty"
source = { kind = "file", path = "events.ndjson" }

[sinks.faulty]
kind = "file"
path = "-"
"#;

/// Parses lines. Each line must be a JSON object.
fn objects(text: &[u8]) -> Result<Vec<Value>> {
    let lines = std::str::from_utf8(text)?.lines();
    lines
        .map(|line| {
            let value: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            ensure!(value.is_object(), "{line}");
            Ok(value)
        })
        .collect()
}

#[test]
fn host_works_as_a_filter_in_a_pipe() -> Result<()> {
    let lines = in_turn(20, 100);
    let home = Home::new(&["tally"], PIPED_CONFIG)?;
    let report_with = [&["run", "--once"][..], &["run", "--once", "--json"]];
    for (round, args) in report_with.into_iter().enumerate() {
        let mut command = home.ordain(args)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut input = child.stdin.take().context("standard input is no pipe")?;
        let text = lines.join("\n") + "\n";
        let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
        let output = child.wait_with_output()?;
        writer.join().expect("the thread does not panic")?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{log}");
        let messages = std::str::from_utf8(&output.stdout)?;
        if round == 0 {
            tally::check(&by_key(&lines)?, messages)?;
            ensure!(log.contains("settled with effect          2000"), "{log}");
        } else {
            // The host cannot resume standard input at a position, so the host reads every event again. The host must
            // recognise each event as a repeat.
            ensure!(messages.is_empty(), "{messages}");
            ensure!(log.contains(r#""duplicates":2000"#), "{log}");
        }
    }
    Ok(())
}

#[test]
fn closed_stdout_ends_the_run_and_loses_nothing() -> Result<()> {
    let lines = in_turn(200, 100);
    let home = Home::new(&["tally"], &PIPED_CONFIG.replacen("\"-\"", "\"events.ndjson\"", 1))?;
    home.write("events.ndjson", lines.join("\n") + "\n")?;
    let mut command = home.ordain(&["--log", "error", "run", "--once"])?;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut first = String::new();
    BufReader::new(child.stdout.take().context("standard output is no pipe")?)
        .read_line(&mut first)?;
    let output = child.wait_with_output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}: {log}", output.status);
    let warning = "standard output, to which the sink tally writes, has no reader any more";
    ensure!(log.matches(warning).count() == 1 && log.contains("at the next start"), "{log}");

    // The host delivers each message to standard output at least once. So the next run must print the messages that
    // this run could not write, and may print other messages again.
    let output = home.output(&["--log", "error", "run", "--once"])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rest = objects(&output.stdout)?.len();
    ensure!((1..=lines.len()).contains(&rest), "{rest}");
    ensure!(String::from_utf8(output.stdout)?.ends_with('\n'), "{rest}");
    Ok(())
}

/// At a start, standard output is closed, or is open only for reading. The messages would be lost, so the start must
/// fail. A later start must print all messages. A user may still discard the messages with `/dev/null`.
#[test]
fn start_without_standard_output_is_refused() -> Result<()> {
    let lines = in_turn(2, 3);
    let home = Home::new(&["tally"], &PIPED_CONFIG.replacen("\"-\"", "\"events.ndjson\"", 1))?;
    home.write("events.ndjson", text(&lines))?;
    let run_with = |redirection: &str| -> Result<Output> {
        let command = format!("exec \"$0\" run --once {redirection}");
        let mut shell = Command::new("sh");
        shell.current_dir(home.folder()).args(["-c", &command]).arg(binary()?);
        Ok(shell.stdin(Stdio::null()).output()?)
    };
    for redirection in [">&-", "1< events.ndjson"] {
        let output = run_with(redirection)?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(75), "{redirection}: {}: {log}", output.status);
        let words = "sinks.tally.path: standard output is closed, so the messages";
        ensure!(log.contains(words), "{redirection}: {log}");
    }
    let output = run_with("")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    tally::check(&by_key(&lines)?, std::str::from_utf8(&output.stdout)?)?;

    home.append("events.ndjson", line("k9", 1, &json!({ "n": 1 })) + "\n")?;
    let output = run_with("> /dev/null")?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && log.contains("messages"), "{}: {log}", output.status);
    Ok(())
}

#[test]
fn json_log_has_only_json_lines() -> Result<()> {
    let home = Home::new(&["faulty"], FAULTY_CONFIG)?;
    let lines = [
        line("talks", 1, &json!({ "do": "log", "lines": 3, "bytes": 10 })),
        line("prints", 1, &json!({ "do": "print", "out": "one\ntwo", "err": "\"three\"\n" })),
        line("panics", 1, &json!({ "do": "panic", "text": "{ no JSON" })),
        line("emits", 1, &json!({ "do": "emit", "messages": 5 })),
        "no JSON".to_owned(),
    ];
    home.write("events.ndjson", lines.join("\n") + "\n")?;
    let output = home.output(&["run", "--once", "--log-format", "json", "--log", "debug"])?;
    ensure!(output.status.success(), "{}", output.status);
    assert_eq!(objects(&output.stdout)?.len(), 5);
    let log = objects(&output.stderr)?;
    let count_lines =
        |word: &str| log.iter().filter(|entry| entry.to_string().contains(word)).count();
    ensure!(
        count_lines("two") == 1 && count_lines("three") == 1 && count_lines("xxxxxxxxxx") == 3,
        "{log:?}"
    );
    assert_eq!(log.last().context("a report")?["held"]["parked_keys"], 1);

    home.write("ordain.toml", FAULTY_CONFIG.replace("faulty", "absent"))?;
    let output = home.output(&["run", "--once", "--log-format", "json", "--log", "off"])?;
    assert_eq!(output.status.code(), Some(78));
    let log = objects(&output.stderr)?;
    ensure!(log.len() == 1 && log[0]["level"] == "ERROR", "{log:?}");
    ensure!(log[0]["message"].to_string().contains("absent.wasm"), "{log:?}");
    Ok(())
}

#[test]
fn log_is_not_written_to_standard_output() -> Result<()> {
    let home = Home::new(&["faulty"], FAULTY_CONFIG)?;
    home.write("events.ndjson", line("k", 1, &json!({ "do": "emit" })))?;
    let output = home.output(&["run", "--once", "--json", "--log", "trace"])?;
    assert_eq!(objects(&output.stdout)?.len(), 1);
    ensure!(!output.stderr.is_empty(), "the log is empty");
    Ok(())
}
