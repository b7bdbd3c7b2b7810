//! A test that runs every command that the host prints in its log, its report, its errors and the output of its other
//! commands. A user must be able to run each of these commands unchanged.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use ordain_tests::host::{Home, binary};
use ordain_tests::log::line;
use ordain_tests::service::Service;
use serde_json::json;

/// The name of the configuration's file. A printed command must quote this name, because it contains blanks and a
/// quote.
const CONFIG_FILE: &str = "it's a config.toml";

const CONFIG: &str = r#"
[streams.cases]
handler = "faulty"
source = { kind = "file", path = "events.ndjson" }

[sinks.faulty]
kind = "file"
path = "out.ndjson"
"#;

/// Keys that look like options, or that contain characters with a meaning for a shell or a terminal. Each list has few
/// keys, because the log suppresses lines if too many are due within a few seconds.
const KEYS: [&[&str]; 4] = [
    &["plain", "-5", "--help", "--key=x", "-", "--"],
    &["a\nb", "\n", "tab\there", "trailing\n", "\u{1b}[2J", "\u{202e}1\u{200b}"],
    &["it's", "\"double\"", "`id`", "$(id)", "${HOME}", "back\\slash\\"],
    &["a b", " ", "*", "~", "!!", "#;&|<>"],
];

fn home() -> Result<Home> {
    let home = Home::new(&["faulty"], "")?;
    std::fs::remove_file(home.path("ordain.toml"))?;
    home.write(CONFIG_FILE, CONFIG)?;
    Ok(home)
}

/// Returns the commands in a text. Ordain encloses commands in backticks.
fn commands(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    // A name in capitals stands for a value that the user knows.
    quoted.filter(|words| words.starts_with("ordain ") && !words.contains(" STREAM"))
}

/// Runs a command in Bash, with the host in the `PATH`.
fn run_in_shell(home: &Home, command: &str) -> Result<Output> {
    let folder = binary()?.parent().context("a folder")?.to_owned();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH")?);
    let mut shell = Command::new("bash");
    shell.current_dir(home.folder()).env("PATH", path).args(["-c", command]);
    Ok(shell.output()?)
}

/// Runs all commands in a text, and the commands that these commands print. Returns the commands with their outputs.
fn run_all(home: &Home, text: &str) -> Result<Vec<(String, String)>> {
    let mut waiting: Vec<String> = commands(text).map(str::to_owned).collect();
    let mut known = BTreeSet::new();
    let mut outputs = Vec::new();
    while let Some(command) = waiting.pop() {
        if !known.insert(command.clone()) {
            continue;
        }
        let output = run_in_shell(home, &command)?;
        let [stdout, stderr] = [output.stdout, output.stderr].map(String::from_utf8);
        let stdout = stdout?;
        let stderr = stderr?;
        ensure!(output.status.success(), "{command}: {}: {stderr}", output.status);
        waiting.extend(commands(&stdout).map(str::to_owned));
        outputs.push((command, stdout));
    }
    Ok(outputs)
}

/// Checks that the commands in a text show each of the keys, and the dead letter of each key.
fn check(home: &Home, text: &str, keys: &[&str]) -> Result<()> {
    let outputs = run_all(home, text)?;
    for verb in ["keys why", "dead list"] {
        let of_verb =
            |(command, _): &&(String, String)| command.starts_with(&format!("ordain {verb}"));
        let shown: Vec<&(String, String)> = outputs.iter().filter(of_verb).collect();
        for key in keys {
            let escaped = ordain_util::text::escape_invisible(key);
            let start = match verb {
                "keys why" => format!("key {escaped}: parked at event 2\n"),
                _ => format!("\n{escaped:<24} 1-"),
            };
            // A listing of all dead letters has several rows; a listing of one key has one row below its head.
            let of_key = |output: &str| match verb {
                "keys why" => output.starts_with(&start),
                _ => output.contains(&start) && output.lines().count() == 2,
            };
            let count = shown.iter().filter(|(_, output)| of_key(output)).count();
            ensure!(count == 1, "{verb} of {key:?}: {count} in {shown:#?}");
        }
    }
    Ok(())
}

#[test]
fn printed_commands_can_be_run() -> Result<()> {
    for keys in KEYS {
        let home = home()?;
        let events = keys.iter().flat_map(|key| {
            let reject = line(key, 1, &json!({ "do": "reject", "reason": "no" }));
            [reject, line(key, 2, &json!({ "do": "trap" })), line(key, 3, &json!({ "do": "emit" }))]
        });
        home.write("events.ndjson", events.collect::<Vec<_>>().join("\n") + "\n")?;
        let mut service = Service::start(&home, &["run", CONFIG_FILE])?;
        let log = service.stderr_path();
        let log = || std::fs::read_to_string(&log).unwrap_or_default();
        service.until("the log of all keys", || {
            let parked = "key parked: ";
            let dead = "new dead letter: ";
            log().matches(parked).count() == keys.len() && log().matches(dead).count() == keys.len()
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
            &["keys", "list", "cases", "--config", "absent.toml"],
            &["check"],
        ] {
            let args =
                if args.contains(&"--config") { args.to_vec() } else { [args, config].concat() };
            let output = home.output(&args)?;
            run_all(&home, &String::from_utf8(output.stderr)?)?;
        }
    }
    Ok(())
}
