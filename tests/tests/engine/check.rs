//! Tests of `ordain check`, which reports the errors that would make a start fail, and of `ordain plugins list`, which
//! lists unusable handlers.

use anyhow::{Context as _, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::in_turn;
use ordain_tests::tally;
use serde_json::Value;

/// Runs `ordain check` and `ordain run`, which must both exit with `code`. Returns the standard error of each.
fn refusals(home: &Home, code: i32) -> Result<[String; 2]> {
    let stderr_of = |args: &[&str]| -> Result<String> {
        let output = home.output(args)?;
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(code), "{args:?}: {}: {stderr}", output.status);
        Ok(stderr)
    };
    Ok([stderr_of(&["check"])?, stderr_of(&["--log", "warn", "run", "--once"])?])
}

#[test]
fn check_and_start_report_the_same_file_errors() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    let [check, run] = refusals(&home, 75)?;
    ensure!(check == run && check.contains("events.ndjson cannot be read"), "{check}\n{run}");
    std::fs::create_dir(home.path("events.ndjson"))?;
    let [check, run] = refusals(&home, 78)?;
    ensure!(check == run && check.contains("is not a regular file"), "{check}\n{run}");

    std::fs::remove_dir(home.path("events.ndjson"))?;
    home.write("events.ndjson", "")?;
    for (sink, code) in [("absent/out.ndjson", 75), ("plugins", 78), ("ordain.toml/out", 78)] {
        home.write("ordain.toml", tally::CONFIG.replace("out.ndjson", sink))?;
        let [check, run] = refusals(&home, code)?;
        ensure!(check == run, "{check}\n{run}");
        ensure!(check.contains(&format!("sinks.tally.path: {sink} ")), "{check}");
        ensure!(check.contains("Use a "), "{check}");
    }
    home.write("ordain.toml", tally::CONFIG.replace("out.ndjson", "new.ndjson"))?;
    ensure!(home.output(&["check"])?.status.success(), "`check` rejects a valid configuration");
    ensure!(!home.path("new.ndjson").exists(), "check created a file");
    Ok(())
}

/// A sink that wrote to the configuration or to a handler would destroy the file, and the next start would fail.
#[test]
fn sink_that_writes_to_a_file_of_the_process_is_refused() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", in_turn(1, 1).join("\n") + "\n")?;
    let handler = std::fs::read(home.path("plugins/tally.wasm"))?;
    std::os::unix::fs::symlink("ordain.toml", home.path("link"))?;
    std::fs::hard_link(home.path("plugins/tally.wasm"), home.path("other-name"))?;
    for (sink, purpose) in [
        ("ordain.toml", "the configuration"),
        ("./plugins/../link", "the configuration"),
        ("plugins/tally.wasm", "a handler"),
        ("other-name", "a handler"),
        ("plugins/tally@9.0.0.wasm", "a handler"),
    ] {
        let config = tally::CONFIG.replace("out.ndjson", sink);
        home.write("ordain.toml", &config)?;
        let [check, run] = refusals(&home, 78)?;
        ensure!(check == run, "{check}\n{run}");
        let words = format!("sinks.tally.path: {sink} is the file of {purpose}: ");
        ensure!(check.contains(&words), "{check}");
        ensure!(home.read("ordain.toml").starts_with(&config), "the configuration has changed");
        ensure!(std::fs::read(home.path("plugins/tally.wasm"))? == handler, "{sink}");
    }
    Ok(())
}

#[test]
fn configuration_can_be_named_by_argument_or_option() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", "")?;
    std::fs::rename(home.path("ordain.toml"), home.path("other.toml"))?;
    for command in [&["check"][..], &["run", "--once"]] {
        for (named, code) in [(&[][..], 78), (&["other.toml"], 0), (&["--config", "other.toml"], 0)]
        {
            let output = home.output(&[command, named].concat())?;
            let stderr = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.code() == Some(code), "{command:?} {named:?}: {stderr}");
        }
        let both = [command, &["other.toml", "--config", "other.toml"]].concat();
        assert_eq!(home.output(&both)?.status.code(), Some(2));
    }
    Ok(())
}

/// Runs `ordain check --json`. Returns the exit code, and the errors in the printed report.
fn errors(home: &Home) -> Result<(Option<i32>, Vec<Value>)> {
    let output = home.output(&["check", "--json"])?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    Ok((output.status.code(), report["errors"].as_array().context("errors")?.clone()))
}

#[test]
fn failed_check_prints_json() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    let (code, missing) = errors(&home)?;
    ensure!(code == Some(75) && missing.len() == 1, "{missing:?}");
    ensure!(missing[0]["setting"] == "streams.cases.source.path", "{missing:?}");
    ensure!(missing[0]["line"] == 4 && missing[0]["file"] == "ordain.toml", "{missing:?}");

    home.write("events.ndjson", "")?;
    let (code, none) = errors(&home)?;
    ensure!(code == Some(0) && none.is_empty(), "{none:?}");

    home.write("plugins/tally.wasm", "no wasm")?;
    let (code, handler) = errors(&home)?;
    ensure!(code == Some(78) && handler.len() == 1 && handler[0]["line"].is_null(), "{handler:?}");
    let message = handler[0]["message"].as_str().context("a message")?;
    ensure!(message.contains("plugins/tally.wasm: is no WebAssembly"), "{message}");

    let wrong = tally::CONFIG.replace("handler =", "handlr =");
    home.write("ordain.toml", format!("{wrong}\n[runtime]\nworkers = 0\n"))?;
    let (code, several) = errors(&home)?;
    ensure!(code == Some(78) && several.len() > 2, "{several:?}");
    ensure!(several.iter().any(|error| error["setting"] == "runtime.workers"), "{several:?}");

    home.write("ordain.toml", "no TOML")?;
    let (code, syntax) = errors(&home)?;
    ensure!(code == Some(78) && syntax[0]["line"] == 1, "{syntax:?}");
    std::fs::remove_file(home.path("ordain.toml"))?;
    let (code, absent) = errors(&home)?;
    ensure!(code == Some(78) && absent[0]["line"].is_null(), "{absent:?}");
    Ok(())
}

#[test]
fn handler_is_checked_without_a_configuration() -> Result<()> {
    let home = Home::new(&["tally"], "")?;
    std::fs::remove_file(home.path("ordain.toml"))?;
    let check = |args: &[&str]| -> Result<(Option<i32>, String)> {
        let output = home.output(&[&["plugins", "check"], args].concat())?;
        Ok((output.status.code(), String::from_utf8([output.stdout, output.stderr].concat())?))
    };
    let (code, text) = check(&["plugins/tally.wasm"])?;
    ensure!(code == Some(0) && text.contains("can be used as tally"), "{text}");
    // Without a configuration, the check also needs no folder of handlers.
    std::fs::rename(home.path("plugins"), home.path("built"))?;
    let (code, text) = check(&["built/tally.wasm", "--json"])?;
    ensure!(code == Some(0) && text.contains("\"reason\":null"), "{text}");
    std::fs::rename(home.path("built"), home.path("plugins"))?;
    home.write("plugins/empty.wasm", "")?;
    let (code, text) = check(&["plugins/empty.wasm", "--json"])?;
    ensure!(code == Some(78) && text.contains("is empty"), "{text}");
    // A configuration that the command line names must exist.
    let (code, text) = check(&["plugins/tally.wasm", "--config", "absent.toml"])?;
    ensure!(code == Some(78) && text.contains("absent.toml: cannot be read"), "{text}");
    // If a configuration exists, the check applies its limits.
    home.write("ordain.toml", format!("[plugins]\nmemory = \"1MiB\"\n{}", tally::CONFIG))?;
    let (code, text) = check(&["plugins/tally.wasm"])?;
    ensure!(code == Some(78) && text.contains("plugins.memory"), "{text}");
    Ok(())
}

#[test]
fn invalid_handler_files_are_listed_as_broken() -> Result<()> {
    let home = Home::new(&["tally", "faulty"], tally::CONFIG)?;
    let whole = std::fs::read(home.path("plugins/tally.wasm"))?;
    home.write("plugins/tally@1.0.0.wasm", &whole)?;
    home.write("plugins/tally@2.0.0.wasm", &whole[..whole.len() / 2])?;
    home.write("plugins/empty.wasm", "")?;
    let rows = home.rows(&["plugins", "list", "--json"])?;
    let handlers = rows[0]["handlers"].as_array().cloned().unwrap_or_default();
    let column = |part: &str| -> Vec<String> {
        handlers
            .iter()
            .map(|handler| handler[part].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(column("state"), ["broken", "unused", "older", "active", "broken"], "{rows:?}");
    let names = column("handler");
    ensure!(names[0] == "empty" && names[3..] == ["tally@1.0.0", "tally@2.0.0"], "{names:?}");
    ensure!(names[1].starts_with("faulty+") && names[2].starts_with("tally+"), "{names:?}");
    let reasons = column("reason");
    ensure!(reasons[0].contains("is empty") && reasons[4].contains("truncated"), "{reasons:?}");
    let text = String::from_utf8(home.output(&["plugins", "list"])?.stdout)?;
    ensure!(text.contains("plugins/empty.wasm: is empty"), "{text}");
    home.write("events.ndjson", "")?;
    // A start skips a damaged file, even if this file has the highest version. `check` must report the damage as an
    // error.
    let output = home.output(&["check"])?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(78) && stderr.contains("tally@2.0.0.wasm: is damaged"),
        "{stderr}"
    );
    // `plugins check` reports a faulty file that is not in the plugins folder yet.
    std::fs::create_dir(home.path("staged"))?;
    home.write("staged/tally@3.0.0.wasm", &whole)?;
    home.write("staged/tally@three.wasm", &whole)?;
    let good = home.output(&["plugins", "check", "staged/tally@3.0.0.wasm"])?;
    let stdout = String::from_utf8_lossy(&good.stdout);
    ensure!(
        good.status.success() && stdout.contains("can be used as tally@3.0.0 (SHA-256"),
        "{stdout}"
    );
    let staged = [
        "staged/tally@three.wasm",
        "plugins/empty.wasm",
        "staged/tally@3.0.0.wasm",
        "no.wasm",
        "staged/visits-0.1.2.wasm",
    ];
    let output = home.output(&[&["plugins", "check", "--json"], &staged[..]].concat())?;
    ensure!(output.status.code() == Some(78), "{output:?}");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let results: Vec<&str> = stdout.lines().collect();
    for (line, reason) in [
        (0, "is not a valid version"),
        (1, "is empty"),
        (2, "\"reason\":null"),
        (3, "cannot be read"),
        (4, "; write an @ before the version: rename the file to visits@0.1.2.wasm"),
    ] {
        ensure!(results[line].contains(reason), "{results:?}");
    }
    Ok(())
}
