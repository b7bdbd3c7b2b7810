//! Tests of a run on a terminal. The terminal must show a live status line with the progress of the run, and whole log
//! lines. A terminal that shows nothing must not stop the run.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, ensure};
use ordain_servers::all_threads_stopped;
use ordain_tests::host::{Home, binary};
use ordain_tests::log::{in_turn, line, text};
use ordain_tests::service::wait_until;
use ordain_tests::tally;
use serde_json::json;

use super::run_stderr::{FLOOD_LINES, dropped_lines, flood, flood_config, flood_line};

/// A pseudo-terminal in which a host runs. The tool `script` of util-linux provides the terminal, and writes the output
/// of the terminal to the file `seen` of the home. Dropping the value ends the tool and the host.
struct Terminal {
    script: Child,
    keyboard: ChildStdin,
}

impl Terminal {
    fn start(home: &Home) -> Result<Self> {
        let run = format!("stty cols 160; exec {} run", binary()?.display());
        let mut script = Command::new("script")
            .args(["--quiet", "--flush", "--command", &run, "seen"])
            .current_dir(home.folder())
            .env("TERM", "xterm")
            .env("NO_COLOR", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("`script` of util-linux is needed for a terminal")?;
        let keyboard = script.stdin.take().context("an input")?;
        Ok(Self { script, keyboard })
    }

    /// Sends a signal to the tool. `name` is the name of the signal without `SIG`.
    fn signal(&self, name: &str) -> Result<()> {
        let id = self.script.id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status()?;
        ensure!(status.success(), "`kill -s {name} {id}` failed");
        Ok(())
    }

    /// Sends Ctrl-C, and waits until the host has ended. A closed terminal alone would not end a process that ignores
    /// SIGHUP, as under `nohup`.
    fn end(&mut self) -> Result<()> {
        self.keyboard.write_all(b"\x03")?;
        wait_until("the end of the process", || Ok(self.script.try_wait()?.is_some()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Only after a failed test is the tool still running. A second Ctrl-C ends a host that cannot end cleanly.
        if matches!(self.script.try_wait(), Ok(None)) {
            let _ = self.signal("CONT");
            let _ = self.keyboard.write_all(b"\x03");
            let _ = self.end();
            let _ = self.script.kill();
            let _ = self.script.wait();
        }
    }
}

fn seen(home: &Home) -> String {
    let bytes = std::fs::read(home.path("seen")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn live_line_shows_progress() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    let lines = in_turn(7, 6);
    home.write("events.ndjson", text(&lines) + &lines[0] + "\nno event\n")?;
    let mut terminal = Terminal::start(&home)?;
    let wanted = ["settled 42", "duplicates 1", "dead 1", "idle 7"];
    let shown = wait_until("the live line", || {
        Ok(seen(&home).split('\r').any(|line| wanted.iter().all(|words| line.contains(words))))
    });
    terminal.end()?;
    shown.with_context(|| seen(&home))
}

/// The log, the live line and the messages of a sink share the terminal, which must show each warning as a whole line.
#[test]
fn live_line_tears_no_log_line() -> Result<()> {
    let config = "[streams.cases]\nhandler = \"faulty\"\n\
                  source = { kind = \"file\", path = \"events.ndjson\" }\n\
                  [sinks.faulty]\nkind = \"file\"\npath = \"-\"\n";
    let home = Home::new(&["faulty"], config)?;
    home.write("events.ndjson", "")?;
    let mut terminal = Terminal::start(&home)?;
    wait_until("the live line", || Ok(seen(&home).contains("settled 0")))?;
    let mut events = Vec::new();
    let mut wanted = BTreeSet::new();
    for sequence in (1..=100).step_by(2) {
        for key in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
            let warning = format!("warning-{key}-{sequence}");
            let print = json!({ "do": "print", "err": format!("{warning}\n") });
            events.push(line(key, sequence, &print));
            events.push(line(key, sequence + 1, &json!({ "do": "emit" })));
            wanted.insert((warning, format!("key=\"{key}\" sequence={sequence}")));
        }
    }
    home.append("events.ndjson", text(&events))?;
    wait_until("all events", || Ok(seen(&home).contains("settled 1,000")))?;
    terminal.end()?;
    let output = seen(&home);
    let mut found = BTreeSet::new();
    // A line of the terminal begins after the host has erased the row of the live line.
    for shown in output.split("\r\n").filter_map(|shown| shown.rsplit("\r\x1b[2K").next()) {
        if let Some((time, rest)) = shown.split_once("  WARN warning-") {
            ensure!(time.starts_with("20") && time.ends_with('Z'), "{shown:?}");
            let warning = rest.split(' ').next().unwrap_or_default();
            let end = rest.find("key=").map(|at| rest[at..].to_owned()).context("a key")?;
            found.insert((format!("warning-{warning}"), end));
        }
    }
    ensure!(found == wanted, "missing: {:?}", wanted.difference(&found).collect::<Vec<_>>());
    Ok(())
}

/// The program behind the terminal stops, so that the terminal accepts no data, as after Ctrl-S. The host must execute
/// the events nevertheless, although it has log lines and a live line to show.
#[test]
fn stopped_terminal_does_not_stop_a_run() -> Result<()> {
    let home = Home::new(&["faulty"], &flood_config())?;
    home.write("events.ndjson", "")?;
    let mut terminal = Terminal::start(&home)?;
    wait_until("the live line", || Ok(seen(&home).contains("settled 0")))?;
    terminal.signal("STOP")?;
    wait_until("a stopped terminal", || Ok(all_threads_stopped(terminal.script.id())))?;
    home.append("events.ndjson", flood())?;
    wait_until("the message after all lines", || Ok(home.lines("out.ndjson") == 1))?;
    terminal.signal("CONT")?;
    let count_dropped = |output: &str| output.lines().filter_map(dropped_lines).sum::<u64>();
    wait_until("the number of dropped lines", || Ok(count_dropped(&seen(&home)) > 0))?;
    terminal.end()?;
    let output = seen(&home);
    let shown = output.lines().filter(|line| line.contains(&flood_line())).count() as u64;
    let dropped = count_dropped(&output);
    // Besides the lines of the flood, the host may have dropped a few other lines.
    ensure!(
        shown < FLOOD_LINES && shown + dropped >= FLOOD_LINES,
        "{shown} lines shown, {dropped} dropped"
    );
    Ok(())
}
