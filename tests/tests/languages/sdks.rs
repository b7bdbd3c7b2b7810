//! Runs the tests that each SDK contains. The tests of the SDK for Rust run with all other tests in Rust; this module
//! checks its package.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ordain_tests::plugins::{root, target_dir};
use tempfile::TempDir;

use super::tools::{copy_sources, shell_with_errors, tools};

/// A copy of the sources of an SDK, because the tests write beside the sources.
struct SdkCopy {
    language: &'static str,
    repository: TempDir,
}

impl SdkCopy {
    fn new(language: &'static str, folders: &[&str]) -> Result<Self> {
        let repository = tempfile::tempdir()?;
        copy_sources(folders, repository.path())?;
        Ok(Self { language, repository })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.repository.path().join(name)
    }

    /// Runs tests in a folder. The tests must succeed, and print all of these texts.
    fn test(&self, folder: &str, commands: &str, parts: &[&str]) -> Result<()> {
        let printed = shell_with_errors(&self.path(folder), commands)
            .with_context(|| format!("the tests of the SDK for {} fail", self.language))?;
        let missing: Vec<_> = parts.iter().filter(|part| !printed.contains(**part)).collect();
        ensure!(missing.is_empty(), "{}: {missing:?} is not in\n{printed}", self.language);
        Ok(())
    }
}

#[test]
fn sdk_for_javascript_passes_its_tests() -> Result<()> {
    let sdk = SdkCopy::new("JavaScript", &["sdk/js"])?;
    let packages = tools()?.join("sdk/js");
    symlink(packages.join("sdk/node_modules"), sdk.path("sdk/js/node_modules"))?;
    sdk.test("sdk/js", "npm test", &["fail 0", "skipped 0"])?;
    sdk.test("sdk/js", "npm run check", &["tsc"])?;
    // From here on, the packages of SpiderMonkey are in a folder above the SDK, as in a project.
    symlink(packages.join("node_modules"), sdk.path("sdk/node_modules"))?;
    sdk.test("sdk/js", "npm run test:components", &["fail 0", "skipped 0"])
}

#[test]
fn sdk_for_python_passes_its_tests() -> Result<()> {
    let sdk = SdkCopy::new("Python", &["sdk/python"])?;
    let python = tools()?.join("sdk/python/python/bin/python");
    let unittest = format!("{} -m unittest", python.display());
    sdk.test("sdk/python", &unittest, &["\nRan ", "\nOK\n"])
}

#[test]
fn sdk_for_go_passes_its_tests() -> Result<()> {
    let sdk = SdkCopy::new("Go", &["sdk/go"])?;
    let tested = ["ok  \tordain\t", "ok  \tordain/internal/component\t"];
    sdk.test("sdk/go", "go vet ./...\nGOOS=wasip1 GOARCH=wasm go vet .\ngo test ./...", &tested)?;
    sdk.test("sdk/go/examples/orders", "go vet ./...\ngo test ./...", &["ok  \torders\t"])?;
    sdk.test("sdk/go/examples/conformance", "go vet ./...", &[])
}

#[test]
fn sdk_for_c_passes_its_tests() -> Result<()> {
    let sdk = SdkCopy::new("C", &["sdk/c"])?;
    let programs = ["build/sdk_test", "build/cpp_test", "build/json_fuzz", "build/orders_test"];
    sdk.test("sdk/c", "make test", &programs)
}

#[test]
fn example_in_zig_passes_its_tests() -> Result<()> {
    let sdk = SdkCopy::new("Zig", &["sdk/c", "sdk/zig"])?;
    sdk.test("sdk/zig/examples/orders", "make test", &[])
}

/// A package that lacked a file would compile in this repository, but not after its download from a registry.
#[test]
fn package_of_rust_sdk_compiles_to_a_component() -> Result<()> {
    let output_folder = target_dir()?.join("package");
    let mut package =
        cargo(&["package", "--no-verify", "--allow-dirty", "--package", "ordain-sdk"]);
    let warnings = text(package.current_dir(root()).arg("--target-dir").arg(&output_folder))?;
    ensure!(warnings.is_empty(), "{warnings}");
    let unpacked = tempfile::tempdir()?;
    let name = concat!("ordain-sdk-", env!("CARGO_PKG_VERSION"));
    let archive = output_folder.join("package").join(format!("{name}.crate"));
    text(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(unpacked.path()))?;
    let folder = unpacked.path().join(name);
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
        ensure!(folder.join(file).is_file(), "the package has no {file}");
    }
    // The build of a new project has already compiled the libraries.
    let mut build = cargo(&["build", "--release", "--target", "wasm32-wasip2"]);
    text(build.current_dir(&folder).arg("--target-dir").arg(target_dir()?.join("new-project")))?;
    Ok(())
}

/// Returns a command of cargo that reaches no registry.
fn cargo(options: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(options).args(["--quiet", "--offline"]);
    cargo
}

/// Runs a command, which must succeed. Returns the text that it writes to standard error.
fn text(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let written = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{command:?}: {}\n{written}", output.status);
    Ok(written)
}

#[test]
fn every_sdk_has_the_wit_of_the_host() -> Result<()> {
    let wit = fs::read_to_string(root().join("wit/handler.wit"))?;
    for copy in
        ["sdk/js/wit/handler.wit", "sdk/python/ordain/wit/handler.wit", "sdk/rust/wit/handler.wit"]
    {
        assert_eq!(fs::read_to_string(root().join(copy))?, wit, "{copy}");
    }
    Ok(())
}
