//! The sources of the SDKs: their files, their digest, and copies of them for builds that write beside their sources.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};

use super::super::root;

/// Files that every component depends on, in addition to the sources of its SDK.
const SHARED_SOURCES: [&str; 4] =
    ["wit", "runtime/wrap/src", "xtask/src/setup/languages.rs", "xtask/src/setup/languages"];

/// Replaces the copy of a folder of sources. Keeps the installed packages of the copy.
pub(super) fn copy_sources(from: &str, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in to.read_dir()? {
        let path = entry?.path();
        if path.is_file() {
            fs::remove_file(path)?;
        } else if path.file_name() != Some(OsStr::new("node_modules")) {
            fs::remove_dir_all(path)?;
        }
    }
    for file in source_files(from)? {
        let copy = to.join(file.strip_prefix(from)?);
        fs::create_dir_all(copy.parent().context("a file in a folder")?)?;
        fs::copy(root().join(&file), &copy)
            .with_context(|| format!("cannot copy {}", file.display()))?;
    }
    Ok(())
}

/// Returns the SHA-256 of the names and contents of all sources on which the components of an SDK depend.
pub(super) fn digest(folders: &[&str]) -> Result<String> {
    let mut files = Vec::new();
    for folder in folders.iter().chain(&SHARED_SOURCES) {
        files.extend(source_files(folder)?);
    }
    digest_of(root(), &files)
}

/// Returns the SHA-256 of the names and contents of files. The names are relative to `base`.
fn digest_of(base: &Path, files: &[PathBuf]) -> Result<String> {
    let mut digest = Sha256::new();
    for file in files {
        let content =
            fs::read(base.join(file)).with_context(|| format!("cannot read {}", file.display()))?;
        digest.update(format!("{}\0{}\0", file.display(), content.len()));
        digest.update(content);
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat())
}

/// Returns the files of a folder of the workspace, without the files that Git ignores. The names are relative to the
/// root of the workspace.
fn source_files(folder: &str) -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.arg(folder).output().context("cannot start git")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout)?;
    let files = names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    // Git also lists files that were removed since the last commit.
    let files: Vec<PathBuf> = files.filter(|file| root().join(file).is_file()).collect();
    ensure!(!files.is_empty(), "the folder {folder} is missing");
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_depends_on_names_and_contents() -> Result<()> {
        let folder = std::env::temp_dir().join(format!("ordain-digest-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("a"), "one")?;
        fs::write(folder.join("b"), "one")?;
        fs::write(folder.join("c"), "two")?;
        let digests = ["a", "b", "c"].map(|name| digest_of(&folder, &[PathBuf::from(name)]));
        fs::remove_dir_all(&folder)?;
        let [first, second, third] = digests;
        let (first, second, third) = (first?, second?, third?);
        assert!(first != second && second != third && first != third);
        Ok(())
    }

    #[test]
    fn sources_are_files_of_the_folder() -> Result<()> {
        assert_eq!(source_files("wit")?, [PathBuf::from("wit/handler.wit")]);
        let error = source_files("no such folder").expect_err("an error").to_string();
        assert_eq!(error, "the folder no such folder is missing");
        Ok(())
    }
}
