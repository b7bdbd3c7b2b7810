//! A test of the README's section "Your own handler". The commands and files of the section must work exactly as they
//! are printed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ordain_tests::host::binary;
use ordain_tests::plugins::{root, target_dir};
use serde_json::Value;

/// Returns the fenced blocks of the section "Your own handler": the files by name, and the commands in order.
fn blocks() -> Result<(BTreeMap<String, String>, Vec<String>)> {
    let readme = fs::read_to_string(root().join("README.md"))?;
    let (_, section) =
        readme.split_once("## Your own handler").context("the section is missing")?;
    let (section, _) = section.split_once("\n## ").context("no section follows")?;
    let mut files = BTreeMap::new();
    let mut commands = Vec::new();
    let parts: Vec<&str> = section.split("```").collect();
    for pair in parts.chunks_exact(2) {
        let (language, block) = pair[1].split_once('\n').context("a block has no lines")?;
        if language == "sh" {
            commands.push(block.to_owned());
            continue;
        }
        // The paragraph before a block begins with the name of the file.
        let paragraph = pair[0].trim_end().rsplit("\n\n").next().unwrap_or_default();
        let name = paragraph
            .trim_start()
            .split('`')
            .nth(1)
            .context("a block has no file name before it")?;
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
    let (files, commands) = blocks()?;
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["Cargo.toml", "events.ndjson", "ordain.toml", "src/lib.rs"]);
    let [_new, build, _host, run] = &commands[..] else { panic!("{commands:?}") };

    let home = tempfile::tempdir()?;
    fs::create_dir(home.path().join("src"))?;
    for (name, text) in &files {
        let sdk = root().join("sdk/rust").display().to_string();
        fs::write(home.path().join(name), text.replace("../ordain/sdk/rust", &sdk))?;
    }
    // The build uses the versions in this repository's `Cargo.lock`, and the build output of earlier runs of this test.
    fs::copy(root().join("Cargo.lock"), home.path().join("Cargo.lock"))?;
    let cache = target_dir()?.join("readme");
    fs::create_dir_all(&cache)?;
    std::os::unix::fs::symlink(&cache, home.path().join("target"))?;

    // Leaves out the installation of the compilation target. The target is already installed, because all tests with
    // handlers need it.
    let build = build.replace("rustup target add wasm32-wasip2\n", "");
    let tested = shell(home.path(), &build)?;
    ensure!(tested.contains("test a_visit_is_counted ... ok"), "{tested}");
    let printed = shell(home.path(), run)?;
    ensure!(printed.contains("ordain.toml is valid"), "{printed}");
    let messages = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_anna = messages
        .filter(|message| message["subject"] == "anna")
        .map(|message| message["data"].to_string());
    assert_eq!(of_anna.collect::<Vec<_>>(), [r#"["/",1]"#, r#"["/cart",2]"#], "{printed}");
    Ok(())
}
