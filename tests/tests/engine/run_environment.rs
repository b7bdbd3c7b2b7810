//! Tests of the environment of the process: environment variables, and folders for compiled handlers.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use ordain_tests::host::{Home, binary};
use ordain_tests::log::{by_key, in_turn, text};
use ordain_tests::tally;

/// Returns a home with events, the command that executes these events, and the lines of the events. The command has no
/// environment variables.
fn home_and_command() -> Result<(Home, Command, Vec<String>)> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    let lines = in_turn(2, 3);
    home.write("events.ndjson", text(&lines))?;
    let mut command = Command::new(binary()?);
    command.current_dir(home.folder()).args(["run", "--once"]).stdin(Stdio::null()).env_clear();
    Ok((home, command, lines))
}

/// A supervisor may start the host without any environment variable, or with variables that other programs read and
/// that have invalid values. None of these variables may change the result of a run.
#[test]
fn variables_of_other_programs_change_nothing() -> Result<()> {
    let foreign = [
        ("TZ", "nowhere"),
        ("LC_ALL", "xx_YY.none"),
        ("HOME", "/nonexistent"),
        ("RUST_LOG", "!,=,"),
    ];
    for variables in [&[][..], &foreign] {
        let (home, mut command, lines) = home_and_command()?;
        let output = command.envs(variables.iter().copied()).output()?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{variables:?}: {}: {log}", output.status);
        tally::check(&by_key(&lines)?, &home.read("out.ndjson"))?;
    }
    Ok(())
}

/// The host can write neither to the cache of compiled handlers nor to the folder for temporary files. Another program
/// may make a folder writable, so the exit code must be 75. The folder that the variable `TMPDIR` names is sufficient.
#[test]
fn start_without_a_folder_for_compiled_handlers_is_temporary() -> Result<()> {
    let (home, mut command, lines) = home_and_command()?;
    // Permissions do not stop the user root, so the test puts a file at the path of the cache.
    home.write("plugins/.cache", "")?;
    let output = command.env("TMPDIR", home.path("missing")).output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(75), "{}: {log}", output.status);
    ensure!(log.contains("cannot be compiled: Ordain cannot use the cache folder"), "{log}");
    std::fs::create_dir(home.path("missing"))?;
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}
