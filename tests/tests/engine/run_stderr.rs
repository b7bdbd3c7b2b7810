//! Tests of the standard error of a host. If the host cannot write to its standard error, the host must continue,
//! although its log lines are lost. A reader that continues to read must get every line.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_tests::faulty;
use ordain_tests::host::Home;
use ordain_tests::http::metric;
use ordain_tests::log::{line, text};
use ordain_tests::service::{Service, wait_until};
use serde_json::json;

/// Returns a home with three keys. For the first key, the handler only logs. For the second key, the handler emits
/// messages. The third key becomes parked.
fn home() -> Result<Home> {
    let home = Home::new(&["faulty"], faulty::CONFIG)?;
    let mut events = Vec::new();
    for sequence in 1..=100 {
        events.push(line("talks", sequence, &json!({ "do": "log", "lines": 20, "bytes": 100 })));
        events.push(line("emits", sequence, &json!({ "do": "emit" })));
        events.push(line("fails", sequence, &json!({ "do": "trap" })));
    }
    home.write("events.ndjson", events.join("\n"))?;
    Ok(home)
}

#[test]
fn stderr_on_a_full_disk_does_not_stop_a_run() -> Result<()> {
    let home = home()?;
    for args in
        [&["run", "--once"][..], &["keys", "why", "cases", "absent"], &["run", "absent"], &["odd"]]
    {
        let mut command = home.ordain(args)?;
        let status = command.stderr(File::options().write(true).open("/dev/full")?).status()?;
        let right = match args {
            ["run", "--once"] => 0,
            ["keys", ..] => 1,
            ["odd"] => 2,
            _ => 78,
        };
        ensure!(status.code() == Some(right), "{args:?}: {status}");
    }
    ensure!(home.lines("out.ndjson") == 100, "{} messages", home.lines("out.ndjson"));
    Ok(())
}

#[test]
fn closed_stderr_does_not_stop_a_run() -> Result<()> {
    let home = home()?;
    for format in ["text", "json"] {
        let mut command = home.ordain(&["run", "--once", "--log-format", format])?;
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        drop(child.stderr.take().context("standard error is no pipe")?);
        let status = child.wait()?;
        ensure!(status.success(), "{format}: {status}");
        ensure!(home.lines("out.ndjson") == 100, "{} messages", home.lines("out.ndjson"));
        std::fs::remove_dir_all(home.path("ordain-data"))?;
        std::fs::remove_file(home.path("out.ndjson"))?;
    }
    Ok(())
}

/// The settings for a handler that logs up to 1 MiB for each event.
pub(super) fn flood_config() -> String {
    format!("[plugins]\nlog = \"1MiB\"\n{}", faulty::CONFIG)
}

pub(super) const FLOOD_LINES: u64 = 20_000;

pub(super) fn flood_line() -> String {
    "x".repeat(1_000)
}

/// Returns the events of a key for which the handler logs [`FLOOD_LINES`] lines, together more than 20 MB: more than
/// the host, a pipe or a terminal can hold. For the last event, the handler emits a message.
pub(super) fn flood() -> String {
    let log = json!({ "do": "log", "lines": 1_000, "bytes": flood_line().len(), "level": "warn" });
    let last = FLOOD_LINES / 1_000 + 1;
    let mut events: Vec<_> = (1..last).map(|sequence| line("talks", sequence, &log)).collect();
    events.push(line("talks", last, &json!({ "do": "emit" })));
    text(&events)
}

/// Returns the number of dropped lines if a line of the log reports dropped lines.
pub(super) fn dropped_lines(line: &str) -> Option<u64> {
    line.split_once("log lines dropped: ")?.1.rsplit_once("lines=")?.1.trim().parse().ok()
}

/// The test never reads the log. The host must execute all events and end, in both formats of the log.
#[test]
fn unread_stderr_does_not_stop_a_run() -> Result<()> {
    for format in ["text", "json"] {
        let home = Home::new(&["faulty"], &flood_config())?;
        home.write("events.ndjson", flood())?;
        let args = ["--log", "debug", "--log-format", format, "run", "--once"];
        let mut child = home.ordain(&args)?.stderr(Stdio::piped()).spawn()?;
        let ended = wait_until("the end of the run", || Ok(child.try_wait()?.is_some()));
        // Only a failed test kills the host.
        let _ = child.kill();
        ended?;
        let status = child.wait()?;
        ensure!(status.success(), "{format}: {status}");
        ensure!(home.lines("out.ndjson") == 1, "{format}: no message");
    }
    Ok(())
}

/// A reader pauses until the host has dropped lines. The log must then contain the number of dropped lines, and the
/// metric must count them.
#[test]
fn paused_reader_gets_the_number_of_dropped_lines() -> Result<()> {
    let home = Home::new(&["faulty"], &flood_config())?;
    home.write("events.ndjson", "")?;
    let mut child = home.ordain(&["run"])?.stderr(Stdio::piped()).spawn()?;
    let checked = check_paused_reader(&home, &mut child);
    // Only a failed test kills the host.
    let _ = child.kill();
    checked
}

fn check_paused_reader(home: &Home, child: &mut Child) -> Result<()> {
    let mut log = BufReader::new(child.stderr.take().context("standard error is no pipe")?);
    let mut first = String::new();
    while !first.contains("admin listening on http://") {
        first.clear();
        ensure!(log.read_line(&mut first)? > 0, "the log contains no address");
    }
    let address = first.split_once("http://").context("an address")?.1.trim();
    let address: SocketAddr = address.parse()?;
    home.append("events.ndjson", flood())?;
    wait_until("the message after all lines", || Ok(home.lines("out.ndjson") == 1))?;
    let counted = metric(address, "ordain_log_lines_dropped_total")?.context("a metric")?;
    ensure!(counted > 0, "the host has dropped no line");

    let (sender, reports) = mpsc::channel();
    let reader = thread::spawn(move || count_flood_lines(log, &sender));
    let mut reported = reports.recv_timeout(Duration::from_mins(1)).context("no report")?;
    let stopped = Command::new("kill").arg(child.id().to_string()).status()?;
    ensure!(stopped.success(), "{stopped}");
    wait_until("the end of the run", || Ok(child.try_wait()?.is_some()))?;
    let status = child.wait()?;
    ensure!(status.success(), "{status}");
    let read = reader.join().ok().context("the reader has panicked")??;
    reported += reports.iter().sum::<u64>();
    ensure!(reported >= counted, "{reported} lines reported, {counted} counted");
    // Besides the lines of the flood, the host may have dropped a few other lines.
    ensure!(
        read < FLOOD_LINES && read + reported >= FLOOD_LINES,
        "{read} read, {reported} dropped"
    );
    Ok(())
}

/// Returns the number of lines of a flood in the rest of the log. For each line that reports dropped lines, sends the
/// number of the dropped lines to `reports`.
fn count_flood_lines(log: BufReader<ChildStderr>, reports: &mpsc::Sender<u64>) -> Result<u64> {
    let flood_line = flood_line();
    let mut count = 0;
    for line in log.lines() {
        let line = line?;
        count += u64::from(line.contains(&flood_line));
        if let Some(lines) = dropped_lines(&line) {
            reports.send(lines)?;
        }
    }
    Ok(count)
}

/// The size of each read of the slow reader, and the pause after each read. The reader therefore reads at most 16 MiB
/// per second.
const SLOW_READ_BYTES: u64 = 800 << 10;
const SLOW_READ_PAUSE: Duration = Duration::from_millis(50);

/// The reader reads more slowly than the handler logs, and never stops for long. The host must wait for this reader and
/// lose no line.
#[test]
fn slow_reader_loses_no_log_line() -> Result<()> {
    let home = Home::new(&["faulty"], &flood_config())?;
    home.write("events.ndjson", flood())?;
    let mut child = home.ordain(&["run", "--once"])?.stderr(Stdio::piped()).spawn()?;
    let mut stderr = child.stderr.take().context("standard error is no pipe")?;
    let mut log = Vec::new();
    while stderr.by_ref().take(SLOW_READ_BYTES).read_to_end(&mut log)? > 0 {
        thread::sleep(SLOW_READ_PAUSE);
    }
    let status = child.wait()?;
    ensure!(status.success(), "{status}");
    let log = String::from_utf8(log)?;
    ensure!(!log.contains("log lines dropped"), "the host reports dropped lines");
    let lines = log.lines().filter(|line| line.contains(&flood_line())).count() as u64;
    ensure!(lines == FLOOD_LINES, "{lines} lines of {FLOOD_LINES}");
    Ok(())
}

/// The log of a burst goes to a file, and through a pipe to `cat`. The whole burst for `cat` has room in the queue, so
/// the host must lose no line even if `cat` gets little processor time.
#[test]
fn burst_of_log_lines_is_complete() -> Result<()> {
    let through_cat = ["sh", "-c", "\"$0\" \"$@\" 2>&1 >/dev/null | cat >&2"].map(str::to_owned);
    for (by, events) in [(&[][..], 100), (&through_cat[..], 20)] {
        let home = Home::new(&["faulty"], &flood_config())?;
        let log = json!({ "do": "log", "lines": 1_000, "bytes": 50 });
        let event = |number: u64| line(&format!("k{}", number % 10), number / 10 + 1, &log);
        home.write("events.ndjson", text(&(0..events).map(event).collect::<Vec<_>>()))?;
        let mut service = Service::start_by(&home, by, &["run", "--once"])?;
        let status = service.wait()?;
        let log = service.stderr();
        ensure!(status.success() && log.contains("settled with effect"), "{status}");
        let lines = log.lines().filter(|line| line.contains(&"x".repeat(50))).count() as u64;
        ensure!(lines == events * 1_000, "{lines} lines of {events} events");
        ensure!(!log.contains("log lines dropped"), "the host reports dropped lines");
    }
    Ok(())
}
