//! The files that both the archive and the package contain, in a folder.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::packages::Packages;
use super::{Release, bill, notices};
use crate::setup::{output, root, run};

/// A folder for the files of a release.
pub(super) struct Stage {
    folder: PathBuf,
}

impl Stage {
    /// Creates the files in a new folder below `work`.
    pub(super) fn create(
        work: &Path,
        program: &Path,
        packages: &Packages,
        release: &Release,
    ) -> Result<Self> {
        if work.exists() {
            fs::remove_dir_all(work)?;
        }
        let folder = work.join("stage");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let stage = Self { folder };
        let binary = stage.file("ordain");
        run(Command::new("strip").args(["--strip-all", "-o"]).arg(&binary).arg(program))?;
        let completions = [
            ("bash", "ordain.bash"),
            ("zsh", "_ordain"),
            ("fish", "ordain.fish"),
            ("man", "ordain.1"),
        ];
        for (format, name) in completions {
            let text = output(Command::new(&binary).args(["completions", format]))?;
            fs::write(stage.file(name), text)?;
        }
        fs::write(stage.file("ordain.cdx.json"), bill::bill(packages, release))?;
        fs::write(stage.file("THIRD-PARTY-NOTICES.txt"), notices::notices(packages)?)?;
        for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
            fs::copy(root().join(name), stage.file(name))?;
        }
        for name in ["ordain.service", "ordain.toml", "environment"] {
            fs::copy(packaging(name), stage.file(name))?;
        }
        Ok(stage)
    }

    /// Returns the path of a file.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the folder beside this one in which a format is prepared.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.folder.with_file_name(name)
    }

    /// Copies a file to a path below `to`, with these permissions. Creates the folders of the path.
    pub(super) fn install(&self, name: &str, to: &Path, mode: u32) -> Result<()> {
        install(&self.file(name), to, mode)
    }
}

/// Returns the path of a file in the folder `packaging`.
pub(super) fn packaging(name: &str) -> PathBuf {
    root().join("packaging").join(name)
}

/// Copies a file, with these permissions. Creates the folders of its new path, which all users can read.
pub(super) fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let folder = to.parent().context("a file without a folder")?;
    run(Command::new("install").args(["-d", "-m", "755"]).arg(folder))?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}
