//! The packages of which the program consists, with their licences and dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::setup::{cargo, output, root};

/// The name and the version of a package.
pub(super) type PackageName = (String, String);

/// A package of the program.
pub(super) struct Package {
    /// The licence as an SPDX expression; `None` if the package names none.
    pub(super) licence: Option<String>,
    pub(super) repository: Option<String>,
    /// The SHA-256 checksum of the package in the registry; `None` for a package of this repository.
    pub(super) checksum: Option<String>,
    pub(super) folder: PathBuf,
    pub(super) dependencies: BTreeSet<PackageName>,
}

/// The packages of the program, by name and version.
pub(super) struct Packages(pub(super) BTreeMap<PackageName, Package>);

/// The package of the program.
pub(super) const PROGRAM: &str = "ordain";

impl Packages {
    /// Reads the packages that are linked into the program: not those of tests, build scripts and macros.
    pub(super) fn of_program() -> Result<Self> {
        let metadata = output(cargo("metadata").args(["--format-version", "1"]))?;
        let metadata: Value = serde_json::from_str(&metadata)?;
        let names = tree()?;
        let checksums = checksums()?;
        let edges = dependencies(&metadata)?;
        let mut packages = BTreeMap::new();
        for package in array(&metadata["packages"])? {
            let name = name(package)?;
            if !names.contains(&name) {
                continue;
            }
            let text = |field: &str| package[field].as_str().map(ToOwned::to_owned);
            let manifest = PathBuf::from(text("manifest_path").context("no manifest")?);
            let linked = edges.get(&name).into_iter().flatten();
            packages.insert(
                name.clone(),
                Package {
                    // Some packages separate alternatives by a slash, as cargo once did.
                    licence: text("license").map(|licence| licence.replace('/', " OR ")),
                    repository: text("repository"),
                    checksum: checksums.get(&name).cloned(),
                    folder: manifest.parent().context("no folder")?.to_owned(),
                    dependencies: linked.filter(|to| names.contains(*to)).cloned().collect(),
                },
            );
        }
        Ok(Self(packages))
    }

    /// Returns the packages that are not part of this repository's own code.
    pub(super) fn third_party(&self) -> impl Iterator<Item = (&PackageName, &Package)> {
        self.0.iter().filter(|((name, _), _)| !is_own(name))
    }
}

/// Returns whether a package is part of this repository's own code.
pub(super) fn is_own(name: &str) -> bool {
    name == PROGRAM || name.starts_with("ordain-")
}

/// Returns the names of the packages in the program.
fn tree() -> Result<BTreeSet<PackageName>> {
    let mut tree = cargo("tree");
    tree.args(["--package", PROGRAM, "--edges", "normal,no-proc-macro", "--prefix", "none"]);
    let lines = output(tree.args(["--format", "{p}"]))?;
    let name = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    };
    Ok(lines.lines().filter_map(name).collect())
}

/// Returns the dependencies of each package, for all platforms and features.
fn dependencies(metadata: &Value) -> Result<BTreeMap<PackageName, BTreeSet<PackageName>>> {
    let mut names = BTreeMap::new();
    for package in array(&metadata["packages"])? {
        names.insert(package["id"].as_str().context("no id")?, name(package)?);
    }
    let package_name = |id: &Value| names.get(id.as_str().unwrap_or_default()).cloned();
    let mut edges = BTreeMap::new();
    for node in array(&metadata["resolve"]["nodes"])? {
        let from = package_name(&node["id"]).context("a package without metadata")?;
        let is_linked = |to: &&Value| {
            let kinds = to["dep_kinds"].as_array();
            kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
        };
        let to = array(&node["deps"])?.iter().filter(is_linked);
        edges.insert(from, to.filter_map(|to| package_name(&to["pkg"])).collect());
    }
    Ok(edges)
}

/// Reads the checksums of packages from `Cargo.lock`.
fn checksums() -> Result<BTreeMap<PackageName, String>> {
    let lock = fs::read_to_string(root().join("Cargo.lock"))?;
    Ok(lock.split("[[package]]").filter_map(checksum).collect())
}

/// Returns the name and the checksum of a package in `Cargo.lock`.
fn checksum(entry: &str) -> Option<(PackageName, String)> {
    let value = |name: &str| {
        let prefix = format!("{name} = \"");
        let line = entry.lines().find_map(|line| line.strip_prefix(&prefix))?;
        line.strip_suffix('"').map(ToOwned::to_owned)
    };
    Some(((value("name")?, value("version")?), value("checksum")?))
}

fn name(package: &Value) -> Result<PackageName> {
    let text = |field: &str| package[field].as_str().map(ToOwned::to_owned);
    text("name").zip(text("version")).context("a package without a name or a version")
}

fn array(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().context("unexpected metadata of cargo")
}

#[test]
fn checksum_is_read() {
    let entry =
        "\nname = \"anyhow\"\nversion = \"1.0.0\"\nsource = \"registry\"\nchecksum = \"ab\"\n";
    let anyhow = ("anyhow".to_owned(), "1.0.0".to_owned());
    assert_eq!(checksum(entry), Some((anyhow, "ab".to_owned())));
    assert_eq!(checksum("\nname = \"ordain\"\nversion = \"0.1.0\"\n"), None);
}
