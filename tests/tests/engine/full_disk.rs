//! Tests of a disk that becomes full while the host runs. The process must end and report the reason. When space is
//! free again, the next run must continue, and the output must be exact.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ordain_tests::host::{Home, binary};
use ordain_tests::log::{by_key, real_or_generated};
use ordain_tests::tally;

/// The limit on the size of each file, in the unit of the shell's `ulimit -f`: 512 or 1,024 bytes. The commits of the
/// test do not fit into files of this size.
const FILE_LIMIT_BLOCKS: u64 = 1_024;
/// The time limit for the end of the process. When a write does not finish, the store waits five seconds before it
/// checks whether the storage engine still works.
const EXIT_TIMEOUT: Duration = Duration::from_mins(1);

/// Runs the host with a limit on the size of files. The shell makes the host ignore the signal that the system sends at
/// the limit, so writes fail as on a full disk.
fn run_limited(home: &Home) -> Result<(Option<i32>, String)> {
    let limited = format!("trap '' XFSZ; ulimit -f {FILE_LIMIT_BLOCKS}; exec \"$0\" \"$@\"");
    let mut child = Command::new("sh")
        .current_dir(home.folder())
        .args(["-c", &limited])
        .arg(binary()?)
        .args(["--log", "error", "run", "--once"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(home.path("log"))?)
        .spawn()?;
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status.code(), home.read("log")));
        }
        if started.elapsed() > EXIT_TIMEOUT {
            child.kill()?;
            bail!("the process has not ended after {EXIT_TIMEOUT:?}: {}", home.read("log"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn full_disk_ends_the_process_and_loses_nothing() -> Result<()> {
    let lines = real_or_generated()?;
    let home = Home::new(&["tally"], tally::CONFIG)?;
    // A first run creates the store and compiles the handler, without a limit.
    home.write("events.ndjson", lines[..10].join("\n") + "\n")?;
    home.run_once()?;
    home.write("events.ndjson", lines.join("\n") + "\n")?;

    let (code, log) = run_limited(&home)?;
    assert_eq!(code, Some(1), "{log}");
    let error = log.lines().find(|line| line.starts_with("error: ")).context(log.clone())?;
    for words in
        ["ordain-data has failed", "File too large", "is lost", "free space", "start again"]
    {
        ensure!(error.contains(words), "the error lacks {words:?}: {log}");
    }
    ensure!(
        error.matches("has failed").count() == 1,
        "the error is reported more than once: {log}"
    );
    let written = home.read("out.ndjson").lines().count();
    ensure!(written < lines.len(), "all messages were written before the disk was full");
    println!("{written} of {} messages were written when the disk was full", lines.len());

    home.run_once()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}
