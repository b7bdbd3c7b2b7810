//! The test programs of the workspace. Cargo builds the programs, but does not run them: each step runs the programs
//! that it needs.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::setup::{announce, cargo, remove_package_variables};

/// The arguments of each cargo command that builds tests. Commands with these arguments share one build. Only the tests
/// of the simulator have a build of their own.
pub(super) const WORKSPACE: [&str; 4] = ["--release", "--workspace", "--exclude", "ordain-sim"];
/// The folder of the package whose tests explore models.
const MODEL_FOLDER: &str = "tests/model";

/// A program with tests. Programs with unit tests sort before programs with integration tests.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TestProgram {
    is_integration: bool,
    /// The folder of the package, in which the program runs.
    folder: PathBuf,
    /// The name of cargo's target, such as `ordain_core` or `broker`.
    name: String,
    pub(super) executable: PathBuf,
}

impl TestProgram {
    /// Returns the program that a message of cargo reports; `None` if the message reports no test program.
    fn from_message(message: &Value) -> Option<Self> {
        if message["profile"]["test"] != true {
            return None;
        }
        let manifest = PathBuf::from(message["manifest_path"].as_str()?);
        Some(Self {
            is_integration: message["target"]["kind"][0] == "test",
            folder: manifest.parent()?.to_owned(),
            name: message["target"]["name"].as_str()?.to_owned(),
            executable: message["executable"].as_str()?.into(),
        })
    }

    /// Returns whether the program contains the integration tests in the file `{name}.rs`.
    pub(super) fn is_integration_test(&self, name: &str) -> bool {
        self.is_integration && self.name == name
    }

    /// Returns whether the tests explore models. These tests need much processor time, and no server.
    pub(super) fn explores_models(&self) -> bool {
        self.folder.ends_with(MODEL_FOLDER)
    }

    /// Returns a command that runs the program as `cargo test` does.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        remove_package_variables(&mut command);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Builds all test programs except those of the simulator. Returns the programs with unit tests before the others.
pub(super) fn build() -> Result<Vec<TestProgram>> {
    announce("building the tests");
    let mut build = cargo("test");
    build.args(WORKSPACE).args(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = build.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("cargo cannot build the tests");
    }
    let lines = output.stdout.split(|byte| *byte == b'\n');
    let messages = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let mut programs: Vec<TestProgram> =
        messages.filter_map(|message| TestProgram::from_message(&message)).collect();
    programs.sort();
    Ok(programs)
}

#[test]
fn test_programs_are_found_in_the_messages_of_cargo() {
    let message = |kind: &str, name: &str, is_test: bool| {
        serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/ordain/tests/model/Cargo.toml",
            "target": { "kind": [kind], "name": name },
            "profile": { "test": is_test },
            "executable": format!("/ordain/target/release/deps/{name}-1"),
        })
    };
    let program = TestProgram::from_message(&message("test", "queue", true)).expect("a program");
    assert!(program.is_integration_test("queue") && program.explores_models());
    let folder = std::path::Path::new("/ordain/tests/model");
    assert_eq!(program.command().get_current_dir(), Some(folder));
    let units = TestProgram::from_message(&message("lib", "queue", true)).expect("a program");
    assert!(!units.is_integration_test("queue") && units < program);
    assert_eq!(TestProgram::from_message(&message("bin", "ordain", false)), None);
    assert_eq!(TestProgram::from_message(&serde_json::json!({ "reason": "build-finished" })), None);
}
