//! Tests of unusable files in the plugins folder. The active handler version must stay active. The log, the list of
//! handlers and a metric must report the file and the reason why the file is unusable.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use ordain_servers::wait_until;
use ordain_tests::guests::{guest, importing};
use ordain_tests::host::Home;
use ordain_tests::log::{in_turn, text};
use ordain_tests::plugins::plugin_with_note;
use ordain_tests::service::Service;
use serde_json::Value;
use wasm_encoder::{
    CodeSection, ComponentSection as _, Function, FunctionSection, Module, ModuleSection,
    TypeSection,
};

use super::support::{handlers, metric, remove, stream, until_runs};

const CONFIG: &str = r#"
[plugins]
timeout = "200ms"
[streams.cases]
handler = "tally"
source = { kind = "file", path = "events.ndjson" }
[sinks.tally]
kind = "file"
path = "out.ndjson"
"#;

fn home() -> Result<Home> {
    let home = Home::new(&[], CONFIG)?;
    home.write("plugins/tally@1.0.0.wasm", plugin_with_note("tally", "1")?)?;
    home.write("events.ndjson", text(&in_turn(3, 3)))?;
    Ok(home)
}

/// Waits until the list of handlers shows a file in this state. Returns the row of the file.
fn until_listed(service: &mut Service, file: &str, state: &str) -> Result<Value> {
    let mut found = Value::Null;
    let what = format!("{file} in state {state}");
    wait_until(&what, || {
        let rows = handlers(service)?;
        let row =
            rows.iter().find(|row| row["path"].as_str().is_some_and(|path| path.ends_with(file)));
        found = row.cloned().unwrap_or_default();
        Ok(found["state"] == state)
    })
    .with_context(|| found.to_string())?;
    Ok(found)
}

#[test]
fn unusable_file_changes_nothing_and_is_reported() -> Result<()> {
    let home = home()?;
    let mut service = Service::start(&home, &["run"])?;
    until_runs(&mut service, "tally@1.0.0")?;
    let good = plugin_with_note("tally", "9")?;
    let cases: [(&str, Vec<u8>, &str); 10] = [
        ("empty", Vec::new(), "is empty"),
        ("text", b"not a component".to_vec(), "is no WebAssembly"),
        ("module", b"\0asm\x01\0\0\0".to_vec(), "is a core module"),
        ("cut", good[..good.len() / 2].to_vec(), "damaged, truncated"),
        ("world", guest("wrong-name")?, "without a function `handle`"),
        ("type", guest("wrong-type")?, "a wrong type of `handle`"),
        ("import", importing("wasi:http/types@0.2.0"), "imports `wasi:http/types@0.2.0`"),
        ("memory", guest("large")?, "`plugins.memory`"),
        ("endless", guest("endless-start")?, "`plugins.timeout`"),
        ("trap", guest("trap-start")?, "does not start"),
    ];
    for (number, (name, bytes, reason)) in cases.iter().enumerate() {
        let file = format!("tally@9.{number}.0.wasm");
        home.write(&format!("plugins/{file}"), bytes)?;
        let row = until_listed(&mut service, &file, "broken")?;
        ensure!(
            row["reason"].as_str().is_some_and(|words| words.contains(reason)),
            "{name}: {row}"
        );
        service.until_says(reason)?;
        let seen = stream(&mut service)?;
        ensure!(seen["handler"] == "tally@1.0.0" && seen["generation"] == 1, "{name}: {seen}");
    }
    let refused = metric(&mut service, r#"ordain_handler_files_refused{handler="tally"}"#)?;
    ensure!(refused == Some(cases.len() as u64), "{refused:?}");

    // The name of this file has no valid version.
    home.write("plugins/tally@nine.wasm", &good)?;
    service.until_says("`nine` after the @ is not a valid version")?;
    let refused = metric(&mut service, r#"ordain_handler_files_refused{handler=""}"#)?;
    ensure!(refused == Some(1), "{refused:?}");

    // The file of the active version gets other content, and later its original content again.
    home.write("plugins/tally@1.0.0.wasm", plugin_with_note("tally", "other")?)?;
    let row = until_listed(&mut service, "tally@1.0.0.wasm", "broken")?;
    let advice = "during development, name the file tally.wasm, without a version";
    let has_advice = |words: &str| words.contains("has other content") && words.contains(advice);
    ensure!(row["reason"].as_str().is_some_and(has_advice), "{row}");
    home.write("tally@1.0.0.wasm", plugin_with_note("tally", "third")?)?;
    let output = home.output(&["plugins", "check", "tally@1.0.0.wasm"])?;
    ensure!(output.status.code() == Some(78), "{output:?}");
    ensure!(has_advice(&String::from_utf8_lossy(&output.stdout)), "{output:?}");
    home.write("plugins/tally@1.0.0.wasm", plugin_with_note("tally", "1")?)?;
    until_listed(&mut service, "tally@1.0.0.wasm", "active")?;
    ensure!(stream(&mut service)?["generation"] == 1);

    // A usable file replaces the damaged file of version 9.0.0.
    home.write("plugins/tally@9.0.0.wasm", &good)?;
    until_runs(&mut service, "tally@9.0.0")?;
    service.end()
}

/// A start must skip an unusable version, and must fail if no version is usable.
#[test]
fn start_uses_highest_usable_version() -> Result<()> {
    let home = home()?;
    home.write("plugins/tally@2.0.0.wasm", "nonsense")?;
    let mut service = Service::start(&home, &["run"])?;
    until_runs(&mut service, "tally@1.0.0")?;
    service.until_says("using a lower version")?;
    service.end()?;
    remove(&home, "1.0.0")?;
    let output = home.output(&["run", "--once"])?;
    ensure!(output.status.code() == Some(78), "{output:?}");
    ensure!(String::from_utf8_lossy(&output.stderr).contains("is no WebAssembly"), "{output:?}");
    Ok(())
}

/// If the file of a version has other content at the next start, the host must record a new rollout in the store.
#[test]
fn changed_content_at_start_is_new_rollout() -> Result<()> {
    let home = home()?;
    home.run_once()?;
    let digest = |home: &Home| -> Result<(Value, Value)> {
        let rows = home.rows(&["keys", "list", "cases", "--json"])?;
        Ok((rows[0]["version_digest"].clone(), rows[0]["version_generation"].clone()))
    };
    let before = digest(&home)?;
    ensure!(before.1 == 1, "{before:?}");
    fs::write(home.path("plugins/tally@1.0.0.wasm"), plugin_with_note("tally", "other")?)?;
    home.append("events.ndjson", text(&in_turn(3, 6)[9..]))?;
    home.run_once()?;
    let after = digest(&home)?;
    ensure!(after.1 == 2 && after.0 != before.0, "{before:?} {after:?}");
    Ok(())
}

/// If the host cannot write to the cache folder, the compiler process must use a temporary folder instead.
#[test]
fn host_runs_without_writable_cache_folder() -> Result<()> {
    let home = home()?;
    // Permissions do not stop the user root, so the test puts a file at the path of the folder.
    home.write("plugins/.cache", "")?;
    let mut service = Service::start(&home, &["run"])?;
    until_runs(&mut service, "tally@1.0.0")?;
    service.until_says("cache of compiled handlers")?;
    home.write("plugins/tally@2.0.0.wasm", plugin_with_note("tally", "2")?)?;
    until_runs(&mut service, "tally@2.0.0")?;
    service.end()
}

/// If an error of the machine prevents the host from reading the file of the active version, the host must not roll
/// back. The host must try again until it can read the file.
#[test]
fn unreadable_file_of_active_version_is_waited_for() -> Result<()> {
    let home = Home::new(&[], CONFIG)?;
    home.write("events.ndjson", "")?;
    home.write("plugins/tally@1.0.0.wasm", plugin_with_note("tally", "1")?)?;
    home.write("plugins/tally@2.0.0.wasm", plugin_with_note("tally", "2")?)?;
    let mut service = Service::start(&home, &["run"])?;
    until_runs(&mut service, "tally@2.0.0")?;
    service.end()?;
    // The file becomes a symbolic link into a mount that is missing.
    let path = home.path("plugins/tally@2.0.0.wasm");
    let away = home.path("away.wasm");
    fs::rename(&path, &away)?;
    std::os::unix::fs::symlink("../mount/tally.wasm", &path)?;
    let mut service = Service::start(&home, &["run"])?;
    service.until_says("handler version missing")?;
    let seen = stream(&mut service)?;
    ensure!(seen["generation"] == 1 && seen["handler"] == "tally@2.0.0", "{seen}");
    ensure!(
        seen["missing"].as_str().is_some_and(|words| words.contains("cannot be read")),
        "{seen}"
    );
    fs::create_dir(home.path("mount"))?;
    fs::rename(&away, home.path("mount/tally.wasm"))?;
    until_runs(&mut service, "tally@2.0.0")?;
    service.end()?;

    fs::remove_dir_all(home.path("mount"))?;
    fs::remove_file(home.path("plugins/tally@1.0.0.wasm"))?;
    let output = home.output(&["run"])?;
    ensure!(
        output.status.code() == Some(75),
        "the exit code must be 75, because the file may return: {output:?}"
    );
    Ok(())
}

/// A handler must start even if a killed process left its cache file unfinished, and even if other users may change the
/// cache folder.
#[test]
fn untrusted_or_unfinished_cache_stops_no_handler() -> Result<()> {
    let home = home()?;
    ensure!(home.output(&["check"])?.status.success());
    let mut entries = Vec::new();
    for of_version in fs::read_dir(home.path("plugins/.cache/modules"))? {
        for entry in fs::read_dir(of_version?.path())? {
            entries.push(entry?.path());
        }
    }
    let entry = entries.iter().find(|path| path.extension().is_none()).context("an entry")?;
    fs::remove_file(entry)?;
    let unfinished = fs::File::create(entry.with_extension("wip-atomic-write-mod"))?;
    unfinished.set_modified(SystemTime::now() - Duration::from_mins(2))?;
    let output = home.output(&["check"])?;
    ensure!(output.status.success() && entry.exists(), "{output:?}");

    for open in ["plugins", "plugins/.cache"] {
        let path = home.path(open);
        let before = fs::metadata(&path)?.permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        let output = home.output(&["check"])?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success() && stderr.contains("cache of compiled handlers"),
            "{open}: {stderr}"
        );
        ensure!(stderr.contains("chmod"), "{open}: {stderr}");
        fs::set_permissions(&path, before)?;
    }
    Ok(())
}

/// If a host is killed during a compilation, its compiler process must end too, and the next host must start.
#[test]
fn killed_host_leaves_no_compiler() -> Result<()> {
    let home = home()?;
    let mut service = Service::start(&home, &["run"])?;
    until_runs(&mut service, "tally@1.0.0")?;
    let mut component = plugin_with_note("tally", "large")?;
    let mut types = TypeSection::new();
    let mut functions = FunctionSection::new();
    let mut code = CodeSection::new();
    types.ty().function([], []);
    // This file takes seconds to compile. The next start does not wait for the compilation, because the version of the
    // file is lower than the active version.
    for _ in 0..200_000 {
        functions.function(0);
        let mut function = Function::new([]);
        function.instructions().end();
        code.function(&function);
    }
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&code);
    ModuleSection(&module).append_to_component(&mut component);
    home.write("plugins/tally@0.1.0.wasm", component)?;
    let children = format!("/proc/{0}/task", service.id());
    let compilers = || -> Result<Vec<String>> {
        let mut found = Vec::new();
        for task in fs::read_dir(&children).into_iter().flatten() {
            let ids = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
            found.extend(ids.split_whitespace().map(str::to_owned));
        }
        Ok(found)
    };
    wait_until("a compiler process", || Ok(!compilers()?.is_empty()))?;
    // At its start, the compiler process registers with the operating system to be ended when the host ends. This pause
    // is long enough for the registration.
    std::thread::sleep(Duration::from_millis(300));
    let compiler_ids = compilers()?;
    ensure!(!compiler_ids.is_empty(), "the compilation ended too early");
    service.kill()?;
    let runs = |id: &String| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z")
    };
    wait_until("the end of the compiler process", || Ok(!compiler_ids.iter().any(runs)))?;
    let mut service = Service::start(&home, &["run"])?;
    until_runs(&mut service, "tally@1.0.0")?;
    service.end()
}
