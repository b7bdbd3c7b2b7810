//! A test that runs every command that the host prints in its log, its report, its errors and the output of its other
//! commands. A user must be able to run each of these commands unchanged.

use anyhow::{Context, Result, bail, ensure};
use ordain_tests::faulty;
use ordain_tests::host::Home;
use ordain_tests::log::{line, text};
use ordain_tests::printed::run_all;
use ordain_tests::service::Service;
use ordain_util::text::escape_invisible;
use serde_json::{Value, json};

/// The name of the configuration's file. A printed command must quote this name, because it contains blanks and a
/// quote.
const CONFIG_FILE: &str = "it's a config.toml";

/// Keys that look like options, or that contain characters with a meaning for a shell or a terminal. Each list has few
/// keys, because the host does not log all lines about keys if too many such lines are due within a few seconds.
const KEYS: [&[&str]; 4] = [
    &["plain", "-5", "--help", "--key=x", "-", "--"],
    &["a\nb", "\n", "tab\there", "trailing\n", "\u{1b}[2J", "\u{202e}1\u{200b}"],
    &["it's", "\"double\"", "`id`", "$(id)", "${HOME}", "back\\slash\\"],
    &["a b", " ", "*", "~", "!!", "#;&|<>"],
];

fn home() -> Result<Home> {
    let home = Home::new(&["faulty"], "")?;
    std::fs::remove_file(home.path("ordain.toml"))?;
    home.write(CONFIG_FILE, faulty::CONFIG)?;
    Ok(home)
}

/// Returns an event of a key with an invalid time: its key and its sequence can be read, but not the event.
fn unreadable_line(key: &str, sequence: u64) -> Result<String> {
    let mut event: Value = serde_json::from_str(&line(key, sequence, &json!({})))?;
    event["time"] = "yesterday".into();
    Ok(event.to_string())
}

/// Checks that the commands in a text show each of the keys, and the two dead letters of each key: the rejected event
/// and the unreadable event.
fn check(home: &Home, text: &str, keys: &[&str]) -> Result<()> {
    let outputs = run_all(home, text)?;
    for verb in ["keys why", "dead list"] {
        let of_verb =
            |(command, _): &&(String, String)| command.starts_with(&format!("ordain {verb}"));
        let shown: Vec<&(String, String)> = outputs.iter().filter(of_verb).collect();
        for key in keys {
            let escaped = escape_invisible(key);
            let start = match verb {
                "keys why" => format!("key {escaped}: parked at event 2\n"),
                _ => format!("\n{escaped:<24} 1-"),
            };
            // The listing of one key has a header and two rows. A listing of all dead letters has more rows.
            let of_key = |output: &str| match verb {
                "keys why" => output.starts_with(&start),
                _ => output.contains(&start) && output.lines().count() == 3,
            };
            let count = shown.iter().filter(|(_, output)| of_key(output)).count();
            ensure!(count == 1, "{verb} of {key:?}: {count} in {shown:#?}");
        }
    }
    // `keys why` prints a command that shows the unreadable event.
    let details = outputs.iter().filter(|(command, _)| command.starts_with("ordain dead show "));
    let mut shown = Vec::new();
    for (command, output) in details {
        let letter: Value = serde_json::from_str(output).with_context(|| command.clone())?;
        ensure!(letter["cause"] == "unreadable" && letter["sequence"] == 4, "{command}: {letter}");
        shown.push(letter["key"].as_str().context("a key")?.to_owned());
    }
    shown.sort_unstable();
    let mut expected = keys.to_vec();
    expected.sort_unstable();
    ensure!(shown == expected, "{shown:?} instead of {expected:?}");
    Ok(())
}

#[test]
fn printed_commands_can_be_run() -> Result<()> {
    for keys in KEYS {
        let home = home()?;
        let mut events = Vec::new();
        for key in keys {
            events.push(line(key, 1, &json!({ "do": "reject", "reason": "no" })));
            events.push(line(key, 2, &json!({ "do": "trap" })));
            events.push(line(key, 3, &json!({ "do": "emit" })));
            events.push(unreadable_line(key, 4)?);
        }
        home.write("events.ndjson", text(&events))?;
        let mut service = Service::start(&home, &["run", CONFIG_FILE])?;
        let log = service.stderr_path();
        let log = || std::fs::read_to_string(&log).unwrap_or_default();
        service.until("the log of all keys", || {
            let parked = "key parked: ";
            let dead = "new dead letter: ";
            log().matches(parked).count() == keys.len()
                && log().matches(dead).count() == 2 * keys.len()
        })?;
        // The commands find the process that has the store open.
        check(&home, &log(), keys).context("while the host runs")?;
        service.end()?;
        // Without this process, the commands open the store.
        check(&home, &log(), keys).context("after the run")?;

        let report = home.output(&["run", "--once", "--config", CONFIG_FILE])?;
        let report = String::from_utf8(report.stderr)?;
        let outputs = run_all(&home, &report)?;
        ensure!(outputs.iter().any(|(command, _)| command.contains("keys list")), "{report}");
        for (_, output) in outputs.iter().filter(|(command, _)| command.contains("keys list")) {
            ensure!(output.matches(" parked ").count() == keys.len(), "{output}");
        }
        let config = &["--config", CONFIG_FILE];
        for args in [
            &["dead", "show", "cases", "7-b05cb4f9ec0b9b83", "--key=-5"][..],
            &["dead", "show", "cases", "odd"],
            &["keys", "list", "cases", "--config", "absent.toml"],
            &["check"],
        ] {
            let args =
                if args.contains(&"--config") { args.to_vec() } else { [args, config].concat() };
            let output = home.output(&args)?;
            let error = String::from_utf8(output.stderr)?;
            let outputs = run_all(&home, &error)?;
            ensure!(args[0] != "dead" || outputs.len() == 1, "{args:?}: {error}");
        }
    }
    Ok(())
}

/// A key has reached its limit of waiting events in the store, so a run with `--once` fails. The error must contain a
/// command that explains the key.
#[test]
fn error_of_a_full_key_prints_a_command_that_can_be_run() -> Result<()> {
    for key in ["-5", "a b", "tab\there"] {
        let home = home()?;
        let small = "handler = \"faulty\"\nspill_limit = 2\nlane_buffer = 1\n\
            spill_after = \"1ms\"\ngap = { timeout = \"10ms\", attempts = 1 }";
        let config = faulty::CONFIG.replace("handler = \"faulty\"", small);
        let config = config.replace("\"events.ndjson\" }", "\"events.ndjson\", prefetch = 4 }");
        home.write(CONFIG_FILE, config)?;
        // Event 1 is missing, so the key waits and is then parked.
        let events: Vec<String> =
            (2..=20).map(|sequence| line(key, sequence, &json!({ "do": "emit" }))).collect();
        home.write("events.ndjson", text(&events))?;
        let output = home.output(&["run", "--once", "--config", CONFIG_FILE])?;
        let error = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(1), "{error}");
        let full = error.lines().find(|line| line.contains("`spill_limit`"));
        let outputs = run_all(&home, full.with_context(|| error.clone())?)?;
        let [(command, shown)] = &outputs[..] else { bail!("{outputs:#?} of {error}") };
        let start = format!("key {}: parked at event 1\n", escape_invisible(key));
        ensure!(command.starts_with("ordain keys why cases "), "{command}");
        ensure!(shown.starts_with(&start) && shown.contains("held in the store: "), "{shown}");
    }
    Ok(())
}

/// A key waits without a time limit for a missing event. The line in the log must contain a command that explains the
/// key.
#[test]
fn line_about_missing_events_prints_a_command_that_can_be_run() -> Result<()> {
    for key in ["-5", "a b", "tab\there"] {
        let home = home()?;
        let gap = "handler = \"faulty\"\n\
                   gap = { timeout = \"1ms\", attempts = 1, on_exhausted = \"wait\" }";
        home.write(CONFIG_FILE, faulty::CONFIG.replace("handler = \"faulty\"", gap))?;
        home.write("events.ndjson", text(&[line(key, 2, &json!({ "do": "emit" }))]))?;
        let mut service = Service::start(&home, &["run", CONFIG_FILE])?;
        let missing = "missing events not received: ";
        service.until_says(missing)?;
        let log = service.stderr();
        let reported = log.lines().find(|line| line.contains(missing)).context("a line")?;
        let start = format!("key {}: waiting for event 1\n", escape_invisible(key));
        for place in ["the process", "the store"] {
            let outputs = run_all(&home, reported)?;
            let [(command, shown)] = &outputs[..] else { bail!("{outputs:#?} of {reported}") };
            ensure!(command.starts_with("ordain keys why cases "), "{command}");
            ensure!(shown.starts_with(&start), "{place}: {shown}");
            if place == "the process" {
                service.end()?;
            }
        }
    }
    Ok(())
}
