//! Tests of the README: the commands and files of the section "Your own handler" must work exactly as they are printed,
//! and the demo must print the lines that the section "Try it" contains.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ordain_tests::host::binary;
use ordain_tests::plugins::{root, target_dir};
use serde_json::Value;

/// Returns a section of the README.
fn section(heading: &str) -> Result<String> {
    let readme = fs::read_to_string(root().join("README.md"))?;
    let (_, section) = readme
        .split_once(&format!("## {heading}\n"))
        .with_context(|| format!("the section {heading:?} is missing"))?;
    let (section, _) = section.split_once("\n## ").context("no section follows")?;
    Ok(section.to_owned())
}

/// Returns the fenced blocks of a section: the files by name, and the commands in order.
fn blocks(section: &str) -> Result<(BTreeMap<String, String>, Vec<String>)> {
    let mut files = BTreeMap::new();
    let mut commands = Vec::new();
    let parts: Vec<&str> = section.split("```").collect();
    for pair in parts.chunks_exact(2) {
        let (language, block) = pair[1].split_once('\n').context("a block has no lines")?;
        if language == "sh" {
            commands.push(block.to_owned());
            continue;
        }
        // The line before a block contains the name of the file.
        let line = pair[0].trim_end().lines().last().unwrap_or_default();
        let name = line.split('`').nth(1).context("a block has no file name before it")?;
        files.insert(name.to_owned(), block.to_owned());
    }
    Ok((files, commands))
}

/// Runs shell commands with the built `ordain` in the path. Returns their standard output.
fn shell(folder: &Path, commands: &str) -> Result<String> {
    let host = binary()?;
    let host = host.parent().context("the host's folder")?.display();
    let path = format!("{host}:{}", std::env::var("PATH")?);
    let mut shell = Command::new("sh");
    shell.current_dir(folder).args(["-e", "-c", commands]).env("PATH", path);
    let output = shell.env_remove("CARGO_TARGET_DIR").output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{commands}: {log}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn own_handler_of_the_readme_works() -> Result<()> {
    let (files, commands) = blocks(&section("Your own handler")?)?;
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["events.ndjson", "ordain.toml", "src/lib.rs"]);
    let [new, run] = &commands[..] else { panic!("{commands:?}") };

    let home = tempfile::tempdir()?;
    shell(home.path(), new)?;
    let project = home.path().join("visits");
    for (name, text) in &files {
        ensure!(project.join(name).exists(), "the project has no {name}");
        fs::write(project.join(name), text)?;
    }
    // The build uses the versions in this repository's `Cargo.lock`, and the build output of earlier runs of this test.
    fs::copy(root().join("Cargo.lock"), project.join("Cargo.lock"))?;
    let cache = target_dir()?.join("readme");
    fs::create_dir_all(&cache)?;
    std::os::unix::fs::symlink(&cache, project.join("target"))?;

    // Leaves out the installation of the compilation target. The target is already installed, because all tests with
    // handlers need it.
    let run = run.replace("rustup target add wasm32-wasip2\n", "");
    let printed = shell(&project, &run)?;
    ensure!(printed.contains("test a_visit_is_counted ... ok"), "{printed}");
    ensure!(printed.contains("ordain.toml is valid"), "{printed}");
    let messages = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_anna = messages
        .filter(|message| message["subject"] == "anna")
        .map(|message| message["data"].to_string());
    assert_eq!(of_anna.collect::<Vec<_>>(), [r#"["/",1]"#, r#"["/cart",2]"#], "{printed}");
    Ok(())
}

/// The numbers that depend on the speed of the machine may differ, and all other numbers may not.
#[test]
fn demo_prints_the_output_of_the_readme() -> Result<()> {
    let section = section("Try it")?;
    let shown = section.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let shown = without_measured_numbers(shown.context("the output is missing")?);
    let command = section.lines().find(|line| line.starts_with("ordain demo"));
    let home = tempfile::tempdir()?;
    let printed = shell(home.path(), command.context("the command is missing")?)?;
    let printed = without_measured_numbers(&printed);
    let mut rest = printed.as_str();
    for part in shown.split("…\n") {
        let (_, after) = rest
            .split_once(part)
            .with_context(|| format!("the demo did not print\n{part}in\n{printed}"))?;
        rest = after;
    }
    Ok(())
}

/// Removes everything but letters from the lines with numbers that differ between two runs of the demo.
fn without_measured_numbers(output: &str) -> String {
    let is_measured = |line: &str| {
        ["  killed after ", "  events per second "].iter().any(|start| line.starts_with(start))
    };
    let line = |line: &str| {
        let mut line = line.to_owned();
        if is_measured(&line) {
            line.retain(char::is_alphabetic);
        }
        line + "\n"
    };
    output.lines().map(line).collect()
}
