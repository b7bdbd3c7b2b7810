//! Tests of a run on a terminal. The terminal must show a live status line with the progress of the run, and a paused
//! terminal must not stop the run.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use ordain_tests::host::{Home, binary};
use ordain_tests::log::{in_turn, text};
use ordain_tests::service::wait_until;
use ordain_tests::tally;

/// Starts a run on a pseudo-terminal, which the tool `script` of util-linux provides. The file `seen` of the home gets
/// the output of the terminal.
fn run_on_terminal(home: &Home) -> Result<Child> {
    let run = format!("stty cols 160; exec {} run", binary()?.display());
    Command::new("script")
        .args(["--quiet", "--flush", "--command", &run, "seen"])
        .current_dir(home.folder())
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("`script` of util-linux is needed for a terminal")
}

#[test]
fn live_line_shows_progress() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    let lines = in_turn(7, 6);
    home.write("events.ndjson", text(&lines) + &lines[0] + "\nno event\n")?;
    let mut terminal = run_on_terminal(&home)?;
    let wanted = ["settled 42", "duplicates 1", "dead 1", "idle 7"];
    let shown = wait_until("the live line", || {
        let seen = home.read("seen");
        Ok(seen.split('\r').any(|line| wanted.iter().all(|words| line.contains(words))))
    });
    // The test sends Ctrl-C instead of only closing the terminal, because a process that ignores SIGHUP, as under
    // `nohup`, would not end.
    terminal.stdin.take().context("an input")?.write_all(b"\x03")?;
    wait_until("the end of the process", || Ok(terminal.try_wait()?.is_some()))?;
    shown.with_context(|| home.read("seen"))
}

/// The user pauses the terminal by Ctrl-S. The host must execute events nevertheless, although it has log lines and a
/// status line to show.
#[test]
fn paused_terminal_does_not_stop_a_run() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", "")?;
    let mut terminal = run_on_terminal(&home)?;
    let mut keyboard = terminal.stdin.take().context("an input")?;
    let shown = wait_until("the live line", || Ok(home.read("seen").contains("settled 0")));
    keyboard.write_all(b"\x13")?;
    let lines = in_turn(50, 6);
    // Each of the other lines is no event, so the host logs it.
    home.append("events.ndjson", lines.join("\nno event\n") + "\n")?;
    let processed = wait_until("all messages", || Ok(home.lines("out.ndjson") == lines.len()));
    // Ctrl-Q resumes the terminal, and Ctrl-C ends the host.
    keyboard.write_all(b"\x11\x03")?;
    wait_until("the end of the process", || Ok(terminal.try_wait()?.is_some()))?;
    shown.and(processed).with_context(|| home.read("seen"))
}
