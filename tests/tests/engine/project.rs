//! Tests of the commands for projects: `ordain new`, `ordain test` and `ordain dev`.

mod development;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use ordain_tests::host::{Home, binary};
use ordain_tests::plugins::{plugin, plugin_with_note, root, target_dir};
use serde_json::{Value, json};

/// The configuration of a project with the handler `faulty`. The build copies the component that the file `src/which`
/// names, and fails if this file is empty.
const CONFIG: &str = r#"
[streams.cases]
handler = "faulty"
source = { kind = "amqp", queue = "cases", exchange = "cases", key = "header:key" }
retry = { attempts = 2 }

[broker]
url = "amqp://no-such-host"

[sinks.faulty]
kind = "amqp"
exchange = "out"
routing_key = "{key}"

[dev]
build = "cp $(cat src/which) plugins/faulty.wasm"
events = "events.ndjson"
"#;

/// Makes a project whose build copies the component `faulty`.
fn project(events: &[String]) -> Result<Home> {
    let home = Home::new(&[], CONFIG)?;
    fs::create_dir(home.path("src"))?;
    fs::create_dir(home.path("tests"))?;
    fs::copy(plugin("faulty")?, home.path("first.wasm"))?;
    fs::write(home.path("second.wasm"), plugin_with_note("faulty", "second")?)?;
    home.write("src/which", "first.wasm")?;
    home.write("events.ndjson", events.concat())?;
    Ok(home)
}

/// Returns the line of an event with a command for the handler `faulty`.
fn event(key: &str, sequence: u64, command: &Value) -> String {
    let event = json!({
        "specversion": "1.0", "id": format!("{key}/{sequence}"), "source": "/test", "type": "case",
        "subject": key, "sequence": sequence.to_string(), "data": command,
    });
    format!("{event}\n")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn values(output: &Output) -> Vec<Value> {
    let lines = text(&output.stdout);
    let parsed = lines.lines().map(|line| serde_json::from_str(line).expect("a line of JSON"));
    parsed.collect()
}

#[test]
fn invalid_project_is_not_created() -> Result<()> {
    let home = Home::new(&[], "")?;
    for (args, part) in [
        (["new", "--lang", "rust", "Account"], "lower-case letters"),
        (["new", "--lang", "rust", "match"], "reserved"),
        (["new", "--lang", "rust", "plugins/.."], "no name of a project"),
        (["new", "--lang", "cobol", "account"], "possible values"),
        (["new", "--lang", "rust", "full"], "not empty"),
    ] {
        fs::create_dir_all(home.path("full/inner"))?;
        let output = home.output(&args)?;
        let log = text(&output.stderr);
        ensure!(output.status.code() == Some(2) && log.contains(part), "{args:?}: {log}");
    }
    ensure!(!home.path("Account").exists() && !home.path("account").exists());
    Ok(())
}

/// A new project in Rust. Its builds use the versions in this repository's `Cargo.lock`, and the output of builds in
/// earlier tests.
struct RustProject {
    folder: PathBuf,
}

impl RustProject {
    fn create(home: &Home, options: &[&str]) -> Result<Self> {
        let created =
            home.printed(&[&["new", "--lang", "rust", "my-account", "--json"], options].concat())?;
        let created: Value = serde_json::from_str(&created)?;
        assert_eq!(created["name"], "my-account");
        let folder = home.path("my-account");
        fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
        Ok(Self { folder })
    }

    fn output(&self, program: &Path, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).args(args).stdin(Stdio::null());
        command.env("CARGO_TARGET_DIR", target_dir()?.join("new-project"));
        Ok(command.output()?)
    }

    /// Runs `ordain` in the project. The command must succeed.
    fn ordain(&self, args: &[&str]) -> Result<Output> {
        let output = self.output(&binary()?, args)?;
        ensure!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        Ok(output)
    }

    /// Runs the scripted tests and the sample events, and checks the outcomes.
    fn check_runs(&self) -> Result<()> {
        let tested = self.ordain(&["test"])?;
        ensure!(text(&tested.stdout).contains("3 passed, 0 failed"), "{}", text(&tested.stdout));

        let rows = values(&self.ordain(&["dev", "--once", "--json"])?);
        let of_anna = rows.iter().filter(|row| row["key"] == "anna");
        let states: Vec<_> = of_anna.map(|row| row["outcome"]["state"].to_string()).collect();
        let balance = |cents: u64| json!({ "balance_cents": cents }).to_string();
        assert_eq!(states, [balance(1000), balance(700), balance(750)]);
        let reason = "the balance is only 500 cents";
        ensure!(rows.iter().any(|row| row["outcome"]["reject"] == reason), "{rows:?}");
        let totals = rows.last().context("the totals")?;
        assert_eq!((&totals["applied"], &totals["rejected"]), (&json!(4), &json!(1)));

        // The same project runs with `ordain run`, which ignores the section [dev].
        let ran = self.ordain(&["run", "--once"])?;
        assert_eq!(text(&ran.stdout).lines().count(), 4);
        Ok(())
    }
}

#[test]
fn new_rust_project_builds_tests_and_runs() -> Result<()> {
    let home = Home::new(&[], "")?;
    let project = RustProject::create(&home, &[])?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let native = project.output(Path::new(&cargo), &["test", "--quiet"])?;
    ensure!(native.status.success(), "{}", text(&native.stderr));
    ensure!(text(&native.stdout).contains("1 passed"), "{}", text(&native.stdout));
    project.check_runs()
}

#[test]
fn new_fifo_project_has_events_without_sequences_and_runs() -> Result<()> {
    let home = Home::new(&[], "")?;
    let project = RustProject::create(&home, &["--ordering", "fifo"])?;
    ensure!(home.read("my-account/ordain.toml").contains("\nordering = \"fifo\"\n"));
    for file in ["events.ndjson", "tests/first.ndjson"] {
        let events = home.read(&format!("my-account/{file}"));
        ensure!(events.contains("\"subject\"") && !events.contains("\"sequence\""), "{events}");
    }
    project.check_runs()
}

#[test]
fn scripted_test_reports_every_difference_with_its_place() -> Result<()> {
    let home = project(&[])?;
    let script = [
        event("a", 2, &json!({ "do": "emit" })),
        "{\"expect\":{\"messages\":[{\"sink\":\"faulty\"},{\"sink\":\"faulty\"}]}}\n".into(),
        event("a", 1, &json!({ "do": "put", "bytes": 3 })),
        "{\"expect\":{\"messages\":[]}}\n".into(),
        event("b", 1, &json!({ "do": "reject", "reason": "too late" })),
        "{\"expect\":{\"reject\":\"late\"}}\n".into(),
        event("c", 1, &json!({ "do": "retry", "reason": "later" })),
        "{\"expect\":{\"retry\":\"later\"}}\n".into(),
        event("c", 2, &json!({ "do": "ok" })),
        "{\"expect\":{\"not_executed\":\"parked at sequence 1\"}}\n".into(),
        event("d", 1, &json!({ "do": "panic", "text": "ouch" })),
        "{\"expect\":{\"fault\":\"ouch\"}}\n".into(),
        event("e", 2, &json!({ "do": "ok" })),
        "{\"expect\":{\"not_executed\":\"sequence 1\"}}\n".into(),
        "no event\n".into(),
        "{\"expect\":{\"not_executed\":\"unreadable\"}}\n".into(),
        event("f", 1, &json!({ "do": "complete" })),
        "{\"expect\":{\"complete\":true}}\n".into(),
        event("f", 1, &json!({ "do": "complete" })),
        "{\"expect\":{\"not_executed\":\"repeat\"}}\n".into(),
        event("f", 2, &json!({ "do": "ok" })),
        "{\"expect\":{\"not_executed\":\"after-end\"}}\n".into(),
    ];
    home.write("tests/first.ndjson", script.concat())?;
    let output = home.output(&["test"])?;
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}{}", text(&output.stderr));
    ensure!(printed.contains("10 passed, 1 failed"), "{printed}");
    ensure!(printed.contains("tests/first.ndjson:2: case of a (sequence 2)"), "{printed}");
    ensure!(printed.contains("\n  -     },\n"), "{printed}");

    let rows = values(&home.output(&["test", "--json", "--no-build"])?);
    assert_eq!(rows[0]["status"], "failed");
    assert_eq!(rows[0]["line"], 1);
    assert_eq!(
        rows.last(),
        Some(&json!({ "passed": 10, "failed": 1, "unchecked": 0, "updated": 0 }))
    );

    let updated = home.printed(&["test", "--update"])?;
    ensure!(updated.contains("10 passed, 0 failed, 1 updated"), "{updated}");
    let passed = home.printed(&["test"])?;
    ensure!(passed.contains("11 passed, 0 failed"), "{passed}");
    // The expectations that were met are unchanged.
    let file = home.read("tests/first.ndjson");
    ensure!(file.lines().skip(2).eq(script.concat().lines().skip(2)), "{file}");
    Ok(())
}

#[test]
fn fault_without_an_expectation_fails_the_test() -> Result<()> {
    let home = project(&[])?;
    let script = event("a", 1, &json!({ "do": "ok" })) + &event("b", 1, &json!({ "do": "trap" }));
    home.write("tests/trap.ndjson", script)?;
    let output = home.output(&["test"])?;
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    ensure!(printed.contains("tests/trap.ndjson:2"), "{printed}");
    ensure!(printed.contains("0 passed, 1 failed, 1 without an expectation"), "{printed}");
    home.write("tests/trap.ndjson", "{\"expect\":{\"state\":1}}\n")?;
    let invalid = home.output(&["test"])?;
    let log = text(&invalid.stderr);
    ensure!(
        invalid.status.code() == Some(1) && log.contains("trap.ndjson:1: an expectation"),
        "{log}"
    );
    Ok(())
}

#[test]
fn run_for_development_shows_each_outcome() -> Result<()> {
    let events = [
        event("a", 2, &json!({ "do": "emit" })),
        event("a", 1, &json!({ "do": "put", "bytes": 3 })),
        event("b", 1, &json!({ "do": "log", "lines": 1, "bytes": 5 })),
        event("b", 2, &json!({ "do": "reject" })),
        event("c", 1, &json!({ "do": "panic", "text": "ouch" })),
        event("d", 3, &json!({ "do": "ok" })),
        "no event\n".to_owned(),
    ];
    let home = project(&events)?;
    let output = home.output(&["dev", "--once"])?;
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}{}", text(&output.stderr));
    for part in [
        "cases/a 1  case\n",
        "cases/a 2  case\n  the state stays the same\n  -> faulty  faulty",
        "  INFO  ",
        "  rejected: requested\n",
        "cases/c 1  case\n  fault (error): panicked at",
        "cases/c 1  case  (attempt 2)\n",
        "cases/c: the key is parked at sequence 1",
        "cases/d: the key is parked at sequence 1",
        "dead letter, unreadable: not a CloudEvent in JSON",
        "3 applied, 1 rejected, 2 faults; built in ",
    ] {
        ensure!(printed.contains(part), "{part:?} is not in\n{printed}");
    }
    ensure!(!printed.contains('\u{1b}'), "{printed}");

    let rows = values(&home.output(&["dev", "--once", "--json"])?);
    let emitted = rows.iter().find(|row| row["key"] == "a" && row["sequence"] == 2);
    let emitted = emitted.context("the event that emits")?;
    assert_eq!(emitted["outcome"]["messages"][0]["sink"], "faulty");
    assert_eq!(
        emitted["before"],
        emitted["outcome"].as_object().map_or(json!({}), |outcome| {
            outcome
                .iter()
                .filter(|(name, _)| name.starts_with("state"))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        })
    );
    Ok(())
}
