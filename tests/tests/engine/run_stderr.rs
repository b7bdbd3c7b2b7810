//! Tests of a host that cannot write to its standard error. The host must continue, although its log lines are lost.

use std::fs::File;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::line;
use serde_json::json;

const CONFIG: &str = r#"
[streams.cases]
handler = "faulty"
source = { kind = "file", path = "events.ndjson" }

[sinks.faulty]
kind = "file"
path = "out.ndjson"
"#;

/// Returns a home with three keys. For the first key, the handler only logs. For the second key, the handler emits
/// messages. The third key becomes parked.
fn home() -> Result<Home> {
    let home = Home::new(&["faulty"], CONFIG)?;
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
