//! Tests of `ordain dev` that change the project, or add events, while the command runs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::post;
use serde_json::{Value, json};

use super::{event, project, text, values};

/// Time limit for one step of `ordain dev`.
const STEP_LIMIT: Duration = Duration::from_mins(1);

/// A running `ordain dev --json`. Dropping the value ends the process.
struct Dev {
    process: Child,
    rows: Receiver<(Instant, Value)>,
}

impl Dev {
    fn start(home: &Home, args: &[&str]) -> Result<Self> {
        let mut command = home.ordain(&[&["dev", "--json"], args].concat())?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let stdout = process.stdout.take().context("standard output")?;
        let (sender, rows) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let row = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send((Instant::now(), row)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, rows })
    }

    /// Waits for a row that has a member, and drops the rows before it.
    fn next(&self, member: &str) -> Result<(Instant, Value)> {
        let until = Instant::now() + STEP_LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let found = self.rows.recv_timeout(left).with_context(|| format!("no {member}"))?;
            if found.1.get(member).is_some() {
                return Ok(found);
            }
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // The process removes its folder in memory.
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}

#[test]
fn change_is_built_and_every_key_begins_anew() -> Result<()> {
    let put = |bytes: u64| event("a", 1, &json!({ "do": "put", "bytes": bytes }));
    let home = project(&[put(2)])?;
    let dev = Dev::start(&home, &[])?;
    let first = dev.next("outcome")?.1;
    dev.next("run_ms")?;

    // The second component has another content under the same name and version.
    let changed = Instant::now();
    home.replace("src/which", "second.wasm")?;
    let (at, second) = dev.next("outcome")?;
    assert_eq!(second, first);
    println!("from the change to the outcome: {:?}", at - changed);
    let totals = dev.next("run_ms")?.1;
    println!("{totals}");

    home.replace("src/which", "missing.wasm")?;
    let failed = dev.next("error")?.1;
    ensure!(failed["output"].to_string().contains("missing.wasm"), "{failed}");
    home.replace("src/which", "first.wasm")?;
    assert_eq!(dev.next("outcome")?.1, first);
    dev.next("run_ms")?;

    // A change of the events builds nothing.
    home.replace("events.ndjson", put(3))?;
    let third = dev.next("outcome")?.1;
    assert_eq!(third["before"], first["before"]);
    ensure!(third["outcome"] != first["outcome"], "{third}");
    Ok(())
}

/// A user runs the project before the first command of its README, which installs the programs of the build.
#[test]
fn missing_program_of_the_build_is_explained() -> Result<()> {
    let home = project(&[])?;
    let config = home.read("ordain.toml");
    let (before, rest) = config.split_once("build = ").context("a build command")?;
    let (_, after) = rest.split_once('\n').context("the end of the line")?;
    home.write("ordain.toml", format!("{before}build = \"missing-program\"\n{after}"))?;
    let output = home.output(&["dev", "--once"])?;
    ensure!(!output.status.success(), "{output:?}");
    let printed = text(&output.stderr);
    ensure!(printed.contains("first run the first command in the README.md"), "{printed}");
    Ok(())
}

#[test]
fn events_come_from_standard_input() -> Result<()> {
    let home = project(&[])?;
    let mut once = home.ordain(&["dev", "--once", "--json", "--events", "-"])?;
    let mut once = once.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let events = event("a", 2, &json!({ "do": "ok" })) + &event("a", 1, &json!({ "do": "ok" }));
    once.stdin.take().context("standard input")?.write_all(events.as_bytes())?;
    let rows = values(&once.wait_with_output()?);
    let sequences = rows.iter().filter_map(|row| row["sequence"].as_u64());
    assert_eq!(sequences.collect::<Vec<_>>(), [1, 2]);

    let mut dev = Dev::start(&home, &["--events", "-"])?;
    let mut stdin = dev.process.stdin.take().context("standard input")?;
    stdin.write_all(events.as_bytes())?;
    assert_eq!(dev.next("outcome")?.1["sequence"], 1);
    assert_eq!(dev.next("outcome")?.1["sequence"], 2);
    home.replace("src/which", "second.wasm")?;
    assert_eq!(dev.next("outcome")?.1["sequence"], 1, "the events are fed again");
    assert_eq!(dev.next("outcome")?.1["sequence"], 2);
    stdin.write_all(b"no event\n")?;
    ensure!(dev.next("notice")?.1["notice"].to_string().contains("unreadable"));
    Ok(())
}

#[test]
fn events_come_over_http() -> Result<()> {
    let home = project(&[])?;
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let dev = Dev::start(&home, &["--http", &address.to_string()])?;
    let post_event = |sequence: u64| -> Result<()> {
        let until = Instant::now() + STEP_LIMIT;
        let body = event("a", sequence, &json!({ "do": "put", "bytes": sequence }));
        loop {
            match post(address, "application/cloudevents+json", body.trim_end()) {
                Ok(answer) if answer.status == 202 => return Ok(()),
                // The listener starts with the first build, and again after each build.
                _ if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
                answer => anyhow::bail!("{answer:?}"),
            }
        }
    };
    post_event(1)?;
    assert_eq!(dev.next("outcome")?.1["sequence"], 1);
    home.replace("src/which", "second.wasm")?;
    // The state stays, because the events do not come again.
    post_event(2)?;
    let second = dev.next("outcome")?.1;
    ensure!(second["sequence"] == 2 && second["before"] != json!({ "state": null }), "{second}");
    Ok(())
}

#[test]
fn second_command_in_the_same_folder_is_rejected() -> Result<()> {
    let home = project(&[event("a", 1, &json!({ "do": "ok" }))])?;
    let dev = Dev::start(&home, &[])?;
    dev.next("run_ms")?;
    let second = home.output(&["dev", "--once"])?;
    let log = text(&second.stderr);
    ensure!(second.status.code() == Some(1) && log.contains("uses the folder"), "{log}");
    Ok(())
}

#[test]
fn kept_states_remain_for_the_next_command() -> Result<()> {
    let put = |sequence: u64| event("a", sequence, &json!({ "do": "put", "bytes": sequence }));
    let home = project(&[put(1)])?;
    let dev = Dev::start(&home, &["--keep"])?;
    let first = dev.next("outcome")?.1;
    dev.next("run_ms")?;
    home.replace("src/which", "second.wasm")?;
    assert_eq!(dev.next("run_ms")?.1["applied"], 0, "no event takes effect again after a build");
    home.replace("events.ndjson", put(1) + &put(2))?;
    let second = dev.next("outcome")?.1;
    assert_eq!(second["sequence"], 2);
    ensure!(second["before"] == state(&first), "{second}");
    dev.next("run_ms")?;
    // The command waits for a change, so other commands can open the store.
    let config = "target/ordain-dev/ordain.toml";
    let keys = home.rows(&["keys", "list", "cases", "--config", config, "--json"])?;
    ensure!(keys.len() == 1 && keys[0]["next"] == 3, "{keys:?}");
    drop(dev);

    home.write("events.ndjson", put(1) + &put(2) + &put(3))?;
    let kept = values(&home.output(&["dev", "--once", "--keep", "--json"])?);
    let sequences =
        |rows: &[Value]| rows.iter().filter_map(|row| row["sequence"].as_u64()).collect::<Vec<_>>();
    assert_eq!(sequences(&kept), [3]);
    ensure!(kept[0]["before"] == state(&second), "{kept:?}");
    let anew = values(&home.output(&["dev", "--once", "--json"])?);
    assert_eq!(sequences(&anew), [1, 2, 3], "without --keep");
    Ok(())
}

/// Returns the state after an execution, in the form of the state before an execution.
fn state(execution: &Value) -> Value {
    let outcome = execution["outcome"].as_object().into_iter().flatten();
    let state = outcome.filter(|(name, _)| name.starts_with("state"));
    state.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// If no reader takes the output, the handlers wait: the outcomes must not fill the memory.
#[test]
fn unread_output_pauses_the_handlers() -> Result<()> {
    const EVENTS: u64 = 20_000;
    let home = project(&[])?;
    let events: String =
        (1..=EVENTS).map(|sequence| event("a", sequence, &json!({ "do": "ok" }))).collect();
    let mut command = home.ordain(&["dev", "--json", "--keep", "--events", "-"])?;
    let mut dev = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    dev.stdin.take().context("standard input")?.write_all(events.as_bytes())?;
    let mut first = vec![0; 64 << 10];
    dev.stdout.as_mut().context("standard output")?.read_exact(&mut first)?;
    // In this time, the handler could execute all events.
    std::thread::sleep(Duration::from_secs(3));
    dev.kill()?;
    dev.wait()?;
    let config = "target/ordain-dev/ordain.toml";
    let keys = home.rows(&["keys", "list", "cases", "--config", config, "--json"])?;
    let executed = keys[0]["next"].as_u64().context("next")? - 1;
    println!("{executed} events took effect before the handlers paused");
    ensure!(executed < EVENTS / 4, "{executed} events took effect");
    Ok(())
}
