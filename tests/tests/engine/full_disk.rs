//! A disk that takes no more while the host runs: it ends and says why, and once there is room
//! again it goes on, and the output is exact.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ordain_tests::host::{Home, binary};
use ordain_tests::log::{by_key, real_or_generated};
use ordain_tests::tally;

/// How far any file may be written, in units of 512 bytes: less than all commits need.
const LIMIT: u64 = 1_024;
/// The store looks after five seconds whether a write that does not come back ever will.
const PATIENCE: Duration = Duration::from_mins(1);

/// Runs it where files may not grow beyond the limit. The signal that comes with it is ignored,
/// so that writes fail as on a full disk.
fn run_limited(home: &Home) -> Result<(Option<i32>, String)> {
    let limited = format!("trap '' XFSZ; ulimit -f {LIMIT}; exec \"$0\" \"$@\"");
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
        if started.elapsed() > PATIENCE {
            child.kill()?;
            bail!("it has not ended after {PATIENCE:?}: {}", home.read("log"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_full_disk_ends_the_process_and_loses_nothing() -> Result<()> {
    let lines = real_or_generated()?;
    let home = Home::new(&["tally"], tally::CONFIG)?;
    // The store is made, and the handler compiled, while there is room.
    home.write("events.ndjson", lines[..10].join("\n") + "\n")?;
    home.run_once()?;
    home.write("events.ndjson", lines.join("\n") + "\n")?;

    let (code, log) = run_limited(&home)?;
    assert_eq!(code, Some(1), "{log}");
    let error = log.lines().find(|line| line.starts_with("error: ")).context(log.clone())?;
    for words in
        ["ordain-data has failed", "File too large", "is lost", "free space", "start again"]
    {
        ensure!(error.contains(words), "without {words:?}: {log}");
    }
    ensure!(error.matches("has failed").count() == 1, "it says so more than once: {log}");
    let written = home.read("out.ndjson").lines().count();
    ensure!(written < lines.len(), "all was written before the disk was full");
    println!("{written} of {} messages were written when the disk was full", lines.len());

    home.run_once()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}
