//! Tests of `ordain plugins wrap`, which makes a component of a core module, and of `ordain plugins check` for a module
//! and for a component that exceeds a limit.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use ordain_tests::guests::guest;
use ordain_tests::host::Home;
use ordain_tests::log::{in_turn, text};
use serde_json::Value;

/// A configuration with the handler `fault`.
const CONFIG: &str = r#"
[streams.cases]
handler = "fault"
source = { kind = "file", path = "events.ndjson" }
retry = { on_exhausted = "skip" }
"#;

/// Runs a command, and returns its exit code and its output.
fn run(home: &Home, args: &[&str]) -> Result<(Option<i32>, String)> {
    let output = home.output(args)?;
    Ok((output.status.code(), String::from_utf8([output.stdout, output.stderr].concat())?))
}

#[test]
fn module_becomes_a_handler() -> Result<()> {
    let home = Home::new(&[], CONFIG)?;
    home.write("core.wasm", guest("fault-core")?)?;
    home.write("events.ndjson", text(&in_turn(1, 1)))?;
    // The command creates the folder.
    fs::remove_dir(home.path("plugins"))?;
    let args = ["plugins", "wrap", "core.wasm", "-o", "plugins/fault@1.0.0.wasm", "--json"];
    let row: Value = serde_json::from_str(&home.printed(&args)?)?;
    let component = fs::read(home.path("plugins/fault@1.0.0.wasm"))?;
    assert_eq!(row["path"], "plugins/fault@1.0.0.wasm");
    assert_eq!(row["size"], component.len());
    assert_eq!(fs::read_dir(home.path("plugins"))?.count(), 1, "a draft remains");
    let mode = fs::metadata(home.path("plugins/fault@1.0.0.wasm"))?.permissions().mode();
    let others = mode & 0o077;
    ensure!(others & 0o044 == 0o044 || others == 0, "the service cannot read mode {mode:o}");

    home.run_once()?;
    let letters = home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == 1 && letters[0]["cause"] == "error", "{letters:?}");
    ensure!(letters[0]["error"].as_str() == Some(r#"{"n":1}"#), "{letters:?}");
    let (_, text) = run(&home, &["plugins", "check", "plugins/fault@1.0.0.wasm"])?;
    ensure!(text.contains(&format!("SHA-256 {}", row["digest"].as_str().unwrap_or("?"))), "{text}");
    Ok(())
}

#[test]
fn file_that_cannot_be_wrapped_is_refused_and_writes_nothing() -> Result<()> {
    let home = Home::new(&[], CONFIG)?;
    home.write("core.wasm", guest("fault-core")?)?;
    home.write("component.wasm", guest("fault")?)?;
    let cases = [
        ("component.wasm", "plugins/fault.wasm", 78, "component.wasm: is a component already"),
        ("core.wasm", "plugins/fault-1.0.0.wasm", 78, "fault@1.0.0.wasm"),
        ("core.wasm", "plugins/fault", 78, "is not the name of a handler's file"),
        ("ordain.toml", "plugins/fault.wasm", 78, "ordain.toml: is not a WebAssembly module"),
        ("absent.wasm", "plugins/fault.wasm", 1, "absent.wasm: cannot be read"),
        ("core.wasm", "core.wasm/fault.wasm", 1, "core.wasm/fault.wasm: cannot be written"),
    ];
    for (module, output, code, words) in cases {
        let (found, text) = run(&home, &["plugins", "wrap", module, "-o", output])?;
        ensure!(found == Some(code) && text.contains(words), "{module} {output}: {found:?} {text}");
    }
    assert_eq!(fs::read_dir(home.path("plugins"))?.count(), 0);
    Ok(())
}

#[test]
fn module_in_the_folder_of_handlers_is_refused_with_the_command() -> Result<()> {
    let home = Home::new(&[], CONFIG)?;
    home.write("events.ndjson", "")?;
    home.write("plugins/fault@1.0.0.wasm", guest("fault-core")?)?;
    let (code, text) = run(&home, &["run", "--once"])?;
    let command = "plugins wrap --output=plugins/fault@1.0.0.wasm plugins/fault@1.0.0.wasm";
    ensure!(code == Some(78) && text.contains(&format!("`ordain {command}`")), "{text}");
    // The command works as it is printed.
    home.printed(&command.split(' ').collect::<Vec<_>>())?;
    let (code, text) = run(&home, &["run", "--once"])?;
    ensure!(code == Some(0), "{text}");
    Ok(())
}

#[test]
fn exceeded_limit_of_the_engine_is_named() -> Result<()> {
    let home = Home::new(&[], CONFIG)?;
    home.write("large@1.0.0.wasm", guest("large-table")?)?;
    let (code, text) = run(&home, &["plugins", "check", "large@1.0.0.wasm"])?;
    for part in ["exceeds a limit of Ordain that no setting raises", "65537", "65536"] {
        ensure!(code == Some(78) && text.contains(part), "{text}");
    }
    ensure!(!text.contains("damaged"), "{text}");
    Ok(())
}

#[test]
fn check_needs_no_folder_of_handlers() -> Result<()> {
    let home = Home::new(&[], CONFIG)?;
    home.write("fault@1.0.0.wasm", guest("fault")?)?;
    fs::remove_dir(home.path("plugins"))?;
    let (code, text) = run(&home, &["plugins", "check", "fault@1.0.0.wasm"])?;
    ensure!(code == Some(0) && text.contains("can be used as fault@1.0.0"), "{text}");
    Ok(())
}
