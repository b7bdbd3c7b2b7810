//! `cargo xtask graph`: prints the crates of the runtime by floor (layer), with their dependencies. Two kinds of
//! dependencies are errors: a dependency that does not lead to a lower floor, and a dependency on a crate that
//! `KEPT_OUT` forbids.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::setup::{cargo, output};

/// The floors, from the lowest. A crate depends only on crates of lower floors.
const FLOORS: [&[&str]; 11] = [
    &["ordain-core"],
    &["ordain-util", "ordain-wrap"],
    &["ordain-store"],
    &["ordain-store-redis", "ordain-store-embedded"],
    &["ordain-config"],
    &["ordain-cloudevents"],
    &["ordain-amqp", "ordain-wasm", "ordain-generate"],
    &["ordain-publish", "ordain-demo"],
    &["ordain-engine"],
    &["ordain-http"],
    &["ordain-project"],
];

/// The composition root, above all floors.
const ROOT: &str = "ordain";

/// For each package, the packages that must not be in its dependency tree. `wasmtime` and `axum` would slow down the
/// builds of the fuzzer, and of programs that use the library `ordain-publisher`. `fjall` would slow down the builds of
/// programs that use this library. `tokio` would allow the core to do I/O.
const KEPT_OUT: [(&str, &[&str]); 3] = [
    ("ordain-publisher", &["wasmtime", "axum", "fjall"]),
    ("ordain-fuzz-targets", &["wasmtime", "axum"]),
    ("ordain-core", &["tokio"]),
];

/// Prints and checks the graph.
pub(crate) fn graph() -> Result<()> {
    let edges = edges()?;
    let mut errors = Vec::new();
    for (height, floor) in FLOORS.iter().enumerate().rev() {
        for name in *floor {
            let dependencies =
                edges.get(*name).with_context(|| format!("the workspace has no crate {name}"))?;
            println!("{height}  {name} -> {}", list(dependencies));
            errors.extend(dependencies.iter().filter_map(|to| upward(name, height, to)));
        }
    }
    let known: BTreeSet<&str> = FLOORS.iter().copied().flatten().copied().chain([ROOT]).collect();
    let runtime = edges.keys().filter(|name| is_runtime(name));
    let unknown = runtime.filter(|name| !known.contains(name.as_str()));
    errors.extend(unknown.map(|name| {
        format!("crate {name} has no floor: add it to `FLOORS` in xtask/src/graph.rs")
    }));
    for (package, kept_out) in KEPT_OUT {
        let tree = packages(package)?;
        let found = kept_out.iter().filter(|name| tree.contains(**name));
        errors.extend(found.map(|name| format!("{package} must not depend on {name}")));
        println!("{package}: {} packages, without {}", tree.len(), kept_out.join(", "));
    }
    if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("\n")) }
}

/// Returns whether a crate with this name must have a floor: a crate of the runtime, except `ROOT`.
fn is_runtime(name: &str) -> bool {
    let others = ["bench", "fuzz-targets", "model", "publisher", "sdk", "servers", "sim", "tests"];
    name.strip_prefix("ordain-").is_some_and(|rest| !others.contains(&rest))
}

/// Returns an error text if the dependency of `from` on `to` does not lead to a floor below `height`, the floor of
/// `from`.
fn upward(from: &str, height: usize, to: &str) -> Option<String> {
    let below = FLOORS[..height].iter().any(|floor| floor.contains(&to));
    (!below).then(|| format!("{from} depends on {to}, which is not on a lower floor"))
}

fn list(names: &BTreeSet<String>) -> String {
    let names: Vec<&str> =
        names.iter().map(|name| name.strip_prefix("ordain-").unwrap_or(name)).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Reads the dependencies between workspace crates. Omits the dependencies of tests and of build scripts.
fn edges() -> Result<BTreeMap<String, BTreeSet<String>>> {
    let output = output(cargo("metadata").args(["--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&output)?;
    let packages = metadata["packages"].as_array().context("no packages in the metadata")?;
    let names: BTreeSet<&str> =
        packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut edges = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().context("a package without a name")?;
        let dependencies = package["dependencies"].as_array().context("no dependencies")?;
        let of_code = dependencies.iter().filter(|dependency| dependency["kind"].is_null());
        let to = of_code.filter_map(|dependency| dependency["name"].as_str());
        let to = to.filter(|to| names.contains(to)).map(ToOwned::to_owned);
        edges.insert(name.to_owned(), to.collect());
    }
    Ok(edges)
}

/// Reads the names of all packages in the dependency tree of a package.
fn packages(package: &str) -> Result<BTreeSet<String>> {
    let mut tree = cargo("tree");
    tree.args(["--package", package, "--edges", "normal,build", "--prefix", "none"]);
    let output = output(tree.args(["--format", "{p}"]))?;
    let names = output.lines().filter_map(|line| line.split(' ').next());
    Ok(names.filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect())
}

#[test]
fn upward_edge_is_an_error() {
    assert!(upward("ordain-store", 2, "ordain-engine").is_some());
    assert!(upward("ordain-store", 2, "ordain-store").is_some());
    assert_eq!(upward("ordain-engine", 8, "ordain-store"), None);
    assert!(is_runtime("ordain-engine") && !is_runtime("ordain-tests") && !is_runtime("orders"));
}
