//! Runs a new project of each language but Rust, whose template the test program `engine` tests: the commands of the
//! project's README, the development run, the scripted tests and a run of the host. All templates contain the same
//! sample events, and their handlers have the same effects.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ordain_tests::compilers::native_commands;
use ordain_tests::host::copy_folder;
use serde_json::{Value, json};

use super::tools::{shell, shell_with_errors};

const NAME: &str = "my-account";

/// The template of a language.
struct Template {
    /// The value of `--lang`.
    language: &'static str,
    /// The output of native tests that pass.
    tested: &'static str,
    /// A command that the README describes outside its first block.
    check: &'static str,
}

#[test]
fn new_javascript_project_works() -> Result<()> {
    works(&Template { language: "js", tested: "pass 3", check: "true" })
}

#[test]
fn new_typescript_project_works() -> Result<()> {
    works(&Template { language: "ts", tested: "pass 3", check: "npm run check" })
}

#[test]
fn new_python_project_works() -> Result<()> {
    works(&Template { language: "python", tested: "Ran 3 tests", check: "true" })
}

#[test]
fn new_go_project_works() -> Result<()> {
    works(&Template { language: "go", tested: "ok  \t", check: "go vet ./..." })
}

#[test]
fn new_c_project_works() -> Result<()> {
    works(&Template { language: "c", tested: "all tests passed", check: "true" })
}

fn works(template: &Template) -> Result<()> {
    let home = tempfile::tempdir()?;
    sequenced_project_works(template, home.path())
        .and_then(|project| fifo_project_works(template, &project, home.path()))
        .with_context(|| format!("`ordain new --lang {}`", template.language))
}

/// Creates a project, and runs everything that its README describes. Returns the folder of the project.
fn sequenced_project_works(template: &Template, home: &Path) -> Result<PathBuf> {
    shell(home, &format!("ordain new --lang {} {NAME}", template.language))?;
    let project = home.join(NAME);
    let readme = fs::read_to_string(project.join("README.md"))?;
    let native = native_commands(&readme).context("the README has no commands")?;
    let native = shell_with_errors(&project, &native)?;
    ensure!(native.contains(template.tested), "{:?} is not in\n{native}", template.tested);
    shell(&project, template.check)?;

    let printed = shell(&project, "ordain dev --once --json")?;
    let rows = printed.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    check_outcomes(&rows)?;
    // The development run has built the handler.
    let tested = shell(&project, "ordain test --no-build")?;
    ensure!(tested.contains("3 passed, 0 failed"), "{tested}");
    check_messages(&shell(&project, "ordain run --once")?)?;
    let dead = shell(&project, &format!("ordain dead list {NAME}"))?;
    ensure!(dead.contains("the balance is only 500 cents"), "{dead}");
    Ok(project)
}

/// Creates a project whose events have no sequences. Its handler is that of `sequenced`, and is not built again.
fn fifo_project_works(template: &Template, sequenced: &Path, home: &Path) -> Result<()> {
    let home = home.join("fifo");
    fs::create_dir(&home)?;
    shell(&home, &format!("ordain new --lang {} {NAME} --ordering fifo", template.language))?;
    let project = home.join(NAME);
    let config = fs::read_to_string(project.join("ordain.toml"))?;
    ensure!(config.contains("\nordering = \"fifo\"\n"), "{config}");
    let events = fs::read_to_string(project.join("events.ndjson"))?;
    ensure!(events.contains("\"subject\"") && !events.contains("\"sequence\""), "{events}");
    copy_folder(&sequenced.join("plugins"), &project.join("plugins"))?;
    let tested = shell(&project, "ordain test --no-build")?;
    ensure!(tested.contains("3 passed, 0 failed"), "{tested}");
    check_messages(&shell(&project, "ordain run --once")?)
}

/// Checks the rows of `ordain dev --once --json` for the sample events.
fn check_outcomes(rows: &[Value]) -> Result<()> {
    let of_anna = rows.iter().filter(|row| row["key"] == "anna");
    let states: Vec<_> = of_anna.map(|row| row["outcome"]["state"].clone()).collect();
    let balance = |cents: u64| json!({ "balance_cents": cents });
    ensure!(states == [1000, 700, 750].map(balance), "{states:?}");
    let reason = "the balance is only 500 cents";
    ensure!(rows.iter().any(|row| row["outcome"]["reject"] == reason), "{rows:?}");
    let totals = rows.last().context("the totals")?;
    ensure!(totals["applied"] == 4 && totals["rejected"] == 1, "{totals}");
    Ok(())
}

/// Checks the messages of a run over the sample events.
fn check_messages(printed: &str) -> Result<()> {
    let mut balances = Vec::new();
    for line in printed.lines() {
        let message: Value = serde_json::from_str(line)?;
        if message["subject"] == "anna" {
            balances.push(message["data"]["balance_cents"].clone());
        }
    }
    ensure!(balances == [1000, 700, 750] && printed.lines().count() == 4, "{printed}");
    Ok(())
}
