//! Runs the tests that each SDK contains. The tests of the SDK for Rust run with all other tests in Rust.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ordain_tests::plugins::root;
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

#[test]
fn every_sdk_has_the_wit_of_the_host() -> Result<()> {
    let wit = fs::read_to_string(root().join("wit/handler.wit"))?;
    for copy in ["sdk/js/wit/handler.wit", "sdk/python/ordain/wit/handler.wit"] {
        assert_eq!(fs::read_to_string(root().join(copy))?, wit, "{copy}");
    }
    Ok(())
}
