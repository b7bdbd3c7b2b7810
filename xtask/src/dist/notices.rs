//! The notices about third-party software: the licences of all packages in the program, with their texts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::packages::{Package, Packages};

/// The beginnings of the names of files with licences.
const NAMES: [&str; 5] = ["licen", "copying", "copyright", "notice", "unlicense"];
/// The endings of the names of files that contain a licence, but are programs.
const CODE: [&str; 4] = ["rs", "c", "h", "py"];
/// The depth of folders in a package in which licences of copied libraries are found.
const DEPTH: usize = 4;

/// Returns the notices of the program.
pub(super) fn notices(packages: &Packages) -> Result<String> {
    let mut list = String::new();
    // Most packages have one of a few texts, so each text lists its packages.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((name, version), package) in packages.third_party() {
        let licence = package.licence.as_deref().unwrap_or("see its text below");
        list += &format!("{name} {version}: {licence}\n");
        for text in licence_texts(package)? {
            let users = texts.entry(text).or_default();
            let user = format!("{name} {version}");
            if !users.contains(&user) {
                users.push(user);
            }
        }
    }
    let mut notices = format!(
        "Ordain contains the standard library of Rust (Apache-2.0 OR MIT), and the following packages. The texts of \
         their licences are below.\n\n{list}"
    );
    let mut texts: Vec<(String, Vec<String>)> = texts.into_iter().collect();
    texts.sort_by(|left, right| left.1.cmp(&right.1).then_with(|| left.0.cmp(&right.0)));
    for (text, users) in texts {
        notices += &format!("\n{}\n{}\n\n{text}\n", "=".repeat(80), users.join(", "));
    }
    Ok(notices)
}

/// Reads the licences in the folder of a package, without blank lines at their start and end.
fn licence_texts(package: &Package) -> Result<Vec<String>> {
    let mut files = Vec::new();
    find(&package.folder, DEPTH, &mut files)
        .with_context(|| format!("cannot read {}", package.folder.display()))?;
    files.sort();
    let read = |file: &PathBuf| -> Result<String> {
        let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(String::from_utf8_lossy(&text).replace("\r\n", "\n").trim().to_owned())
    };
    files.iter().map(read).collect()
}

fn find(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if depth > 1 {
                find(&path, depth - 1, files)?;
            }
        } else if is_licence(&entry.file_name().to_string_lossy()) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_licence(name: &str) -> bool {
    let name = name.to_lowercase();
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    NAMES.iter().any(|start| name.starts_with(start))
        && !ending.is_some_and(|ending| CODE.contains(&ending))
}

#[test]
fn licences_are_found_by_name() {
    for name in ["LICENSE", "LICENSE-MIT", "LICENCE.txt", "COPYING", "NOTICE", "license.md"] {
        assert!(is_licence(name), "{name}");
    }
    for name in ["README.md", "license.rs", "Cargo.toml"] {
        assert!(!is_licence(name), "{name}");
    }
}
