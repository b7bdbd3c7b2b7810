//! Tests of `ordain demo`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ordain_tests::host::binary;
use ordain_tests::plugins::plugin;
use serde_json::Value;
use tempfile::TempDir;

/// The smallest number of events of a demo.
const EVENTS: &str = "20000";

/// Runs a demo whose temporary files are in `folder`.
fn demo(folder: &Path, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(binary()?);
    command.args(["demo", "--events", EVENTS]).args(args).env("TMPDIR", folder);
    Ok(command.stdin(Stdio::null()).output()?)
}

/// Returns the report of a demo that printed JSON.
fn report(output: &Output) -> Result<Value> {
    let log = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).with_context(|| format!("no report: {log}"))
}

fn is_empty(folder: &Path) -> Result<bool> {
    Ok(fs::read_dir(folder)?.next().is_none())
}

#[test]
fn demo_is_correct_and_removes_its_files() -> Result<()> {
    let folder = TempDir::new()?;
    let output = demo(folder.path(), &[])?;
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert_eq!(printed.matches("killed after").count(), 3, "{printed}");
    ensure!(printed.contains("\nCORRECT."), "{printed}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(is_empty(folder.path())?);
    Ok(())
}

/// The handler of the demo and the handler `plugins/orders` are different programs with the same behaviour.
#[test]
fn handler_in_rust_has_the_same_result() -> Result<()> {
    let folder = TempDir::new()?;
    let orders = plugin("orders")?;
    let orders = orders.to_str().context("a path in UTF-8")?;
    let mut reports = Vec::new();
    for args in [&["--json"][..], &["--json", "--handler", orders]] {
        let output = demo(folder.path(), args)?;
        let report = report(&output)?;
        assert_eq!((output.status.code(), &report["correct"]), (Some(0), &Value::Bool(true)));
        reports.push((report["receipts"].clone(), report["rejected"].clone()));
    }
    assert_eq!(reports[0], reports[1]);
    Ok(())
}

/// A handler with a wrong step: a delivered order cannot be refunded.
#[test]
fn wrong_result_is_found_and_fails() -> Result<()> {
    let folder = TempDir::new()?;
    let kept = folder.path().join("kept");
    let kept_path = kept.to_str().context("a path in UTF-8")?;
    assert_eq!(demo(folder.path(), &["--keep", kept_path])?.status.code(), Some(0));
    assert!(!kept.join("scratch").exists());

    // The table of the possible next steps, for each status.
    let steps = b"\x02\x44\x48\x50\x20\x80\x80\x00";
    let mut handler = fs::read(kept.join("plugins/orders.wasm"))?;
    let table = handler.windows(steps.len()).position(|bytes| bytes == steps);
    handler[table.context("no table of steps")? + 5] = 0;
    let wrong = folder.path().join("wrong.wasm");
    fs::write(&wrong, handler)?;
    let wrong = wrong.to_str().context("a path in UTF-8")?;

    let output = demo(folder.path(), &["--handler", wrong])?;
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    ensure!(printed.contains("\nINCORRECT\n  order "), "{printed}");
    ensure!(printed.contains("more differences"), "{printed}");

    let output = demo(folder.path(), &["--handler", wrong, "--json"])?;
    let report = report(&output)?;
    assert_eq!((output.status.code(), &report["correct"]), (Some(1), &Value::Bool(false)));
    assert_eq!(report["differences"].as_array().map(Vec::len), Some(11));
    Ok(())
}

#[test]
fn kept_folder_must_be_empty() -> Result<()> {
    let folder = TempDir::new()?;
    fs::write(folder.path().join("notes"), "mine")?;
    let path = folder.path().to_str().context("a path in UTF-8")?;
    let output = demo(folder.path(), &["--keep", path])?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    ensure!(error.contains("is not empty: name a new or empty folder"), "{error}");
    assert_eq!(fs::read_dir(folder.path())?.count(), 1);
    Ok(())
}

#[test]
fn missing_temporary_folder_is_explained() -> Result<()> {
    let folder = TempDir::new()?;
    let output = demo(&folder.path().join("missing"), &[])?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    ensure!(error.contains("set TMPDIR") && error.contains("No such file"), "{error}");
    Ok(())
}

/// Time limit for the end of the demo after a signal.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn interrupted_demo_removes_its_files() -> Result<()> {
    let folder = TempDir::new()?;
    let mut demo = Command::new(binary()?)
        .args(["demo", "--events", "2000000"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let started = Instant::now();
    while is_empty(folder.path())? {
        ensure!(started.elapsed() < EXIT_TIMEOUT, "the demo has not started");
        std::thread::sleep(Duration::from_millis(5));
    }
    let killed = Command::new("kill").args(["-INT", &demo.id().to_string()]).status()?;
    assert!(killed.success());
    let status = demo.wait()?;
    assert_eq!(status.code(), Some(1));
    assert!(started.elapsed() < EXIT_TIMEOUT && is_empty(folder.path())?);
    Ok(())
}
