//! A test of a run on a terminal. The terminal must show a live status line with the progress of the run.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use ordain_tests::host::{Home, binary};
use ordain_tests::log::{in_turn, text};
use ordain_tests::service::wait_until;
use ordain_tests::tally;

#[test]
fn live_line_shows_progress() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    let lines = in_turn(7, 6);
    home.write("events.ndjson", text(&lines) + &lines[0] + "\nno event\n")?;
    // The tool `script` of util-linux provides a pseudo-terminal.
    let run = format!("stty cols 160; exec {} run", binary()?.display());
    let mut terminal = Command::new("script")
        .args(["--quiet", "--flush", "--command", &run, "seen"])
        .current_dir(home.folder())
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("`script` of util-linux is needed for a terminal")?;
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
