//! Creates projects in an empty system, which has no compilers. This machine builds the handler of one project, and the
//! program in the empty system runs this handler in the projects of all languages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{System, USER};
use crate::setup::{announce, output, remove_package_variables, root, target_dir, wasm_target};

/// The values of the option `--lang` of `ordain new`.
const LANGUAGES: [&str; 6] = ["rust", "js", "ts", "python", "go", "c"];

/// The language whose handler is built: cargo already has all packages that the handler needs.
const BUILT_LANGUAGE: &str = "rust";

/// The number of messages that the sample events cause. All templates have the same events, and handlers with the same
/// behaviour.
const MESSAGES: usize = 4;

/// Creates and runs a project in each language. `program` is the program `ordain` in the system.
pub(super) fn check_projects(system: &System, program: &str) -> Result<()> {
    announce("new projects in the empty system");
    for language in LANGUAGES {
        create(system, program, language)?;
    }
    let handler = build(&folder(system, BUILT_LANGUAGE))?;
    for language in LANGUAGES.into_iter().filter(|language| *language != BUILT_LANGUAGE) {
        let plugins = folder(system, language).join("plugins");
        fs::create_dir_all(&plugins)?;
        fs::copy(&handler, plugins.join("account.wasm"))?;
    }
    // This process has created the new files as root.
    system.sh(&format!("chown --recursive {USER} /home/{USER}"))?;
    for language in LANGUAGES {
        let messages = system.output_of_user(&format!(
            "cd {language}/account; {program} plugins check plugins/account.wasm > /dev/null; \
             {program} check > /dev/null; {program} --log error run --once"
        ))?;
        let messages = messages.lines().count();
        ensure!(messages == MESSAGES, "{language}: the run printed {messages} messages");
    }
    let tests = format!("cd {BUILT_LANGUAGE}/account; {program} test --no-build");
    let tests = system.output_of_user(&tests)?;
    ensure!(tests.contains(" 0 failed"), "the scripted tests: {tests}");
    Ok(())
}

/// Returns the folder of a project, as a path of this machine.
fn folder(system: &System, language: &str) -> PathBuf {
    system.folder.join("home").join(USER).join(language).join("account")
}

/// Creates a project, which must contain all files that the command lists.
fn create(system: &System, program: &str, language: &str) -> Result<()> {
    let new =
        format!("mkdir {language}; {program} new --json --lang {language} {language}/account");
    let created: Value = serde_json::from_str(&system.output_of_user(&new)?)?;
    let files = created["files"].as_array().context("the files of the project")?;
    ensure!(!files.is_empty(), "{language}: no files");
    for file in files.iter().filter_map(Value::as_str) {
        let content = fs::read(folder(system, language).join(file))
            .with_context(|| format!("{language}: the project has no {file}"))?;
        ensure!(!content.is_empty(), "{language}: {file} is empty");
    }
    Ok(())
}

/// Builds the handler of a project and runs the scripted tests on this machine, without a registry. Returns the file of
/// the handler.
fn build(project: &Path) -> Result<PathBuf> {
    wasm_target()?;
    // With the versions in this file, cargo needs only packages that it has already downloaded.
    fs::copy(root().join("Cargo.lock"), project.join("Cargo.lock"))?;
    let mut test = Command::new(target_dir().join("release/ordain"));
    remove_package_variables(&mut test);
    test.current_dir(project).arg("test").env("CARGO_NET_OFFLINE", "true");
    output(test.env("CARGO_TARGET_DIR", target_dir().join("new-project")))?;
    Ok(project.join("plugins/account.wasm"))
}
