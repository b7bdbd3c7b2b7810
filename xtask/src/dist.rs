//! `cargo xtask dist`: builds the files of a release. From the same commit, compiler, system and folders, each build
//! makes the same files. The program contains the paths of its sources on this machine, for the messages of panics.

mod archive;
mod bill;
mod check;
mod deb;
mod notices;
mod packages;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::setup::{announce, host, output, root, target_dir};
use packages::Packages;
use stage::Stage;

pub(crate) use check::check;

#[derive(Debug, Args)]
pub(crate) struct DistArgs {
    /// The folder for the files; default: the folder `dist` of cargo's output.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Check the files instead, as `ci` does: install them into empty systems, run the demo there, and create projects.
    #[arg(long, conflicts_with = "out")]
    check: bool,
}

/// The version, the architecture, and the date of a release.
struct Release {
    version: &'static str,
    /// The time of the commit, in seconds since the Unix epoch. All files have this time.
    epoch: String,
}

impl Release {
    /// The architecture, as cargo names it.
    const ARCHITECTURE: &str = std::env::consts::ARCH;

    fn current() -> Result<Self> {
        let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(epoch) => epoch,
            Err(_) => {
                output(Command::new("git").current_dir(root()).args(["log", "-1", "--format=%ct"]))?
            }
        };
        Ok(Self { version: env!("CARGO_PKG_VERSION"), epoch: epoch.trim().to_owned() })
    }

    /// Returns the name of the archive without its ending.
    fn name(&self) -> String {
        format!("ordain-{}-{}-linux", self.version, Self::ARCHITECTURE)
    }
}

pub(crate) fn dist(args: &DistArgs) -> Result<()> {
    if args.check {
        return check();
    }
    let out = args.out.clone().unwrap_or_else(|| target_dir().join("dist"));
    build(&out)?;
    announce(&format!("the files of the release are in {}", out.display()));
    Ok(())
}

/// Builds the files of a release into `out`, which must be new, empty, or the result of an earlier build.
fn build(out: &Path) -> Result<()> {
    let release = Release::current()?;
    let program = host()?;
    announce("packaging");
    if out.exists() {
        remove_earlier(out)?;
    }
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let packages = Packages::of_program()?;
    let work = target_dir().join("dist-work");
    let stage = Stage::create(&work, &program, &packages, &release)?;
    archive::build(&stage, &release, out)?;
    deb::build(&stage, &release, out)?;
    fs::copy(stage.file("ordain.cdx.json"), out.join(format!("{}.cdx.json", release.name())))?;
    for file in ["Containerfile", "image-root"] {
        fs::copy(root().join("packaging").join(file), out.join(file))?;
    }
    fs::remove_dir_all(&work)?;
    sums(out)
}

/// Removes the files of an earlier build. Returns an error if the folder is not the result of a build.
fn remove_earlier(out: &Path) -> Result<()> {
    let is_empty = fs::read_dir(out)?.next().is_none();
    anyhow::ensure!(
        is_empty || out.join(SUMS).exists(),
        "{} contains other files: name a new or empty folder with --out",
        out.display()
    );
    for entry in fs::read_dir(out)? {
        let path = entry?.path();
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// The file with the checksums of all other files.
const SUMS: &str = "SHA256SUMS";

fn sums(out: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(out)? {
        names.push(entry?.file_name());
    }
    names.sort();
    let sums = output(Command::new("sha256sum").current_dir(out).args(names))?;
    Ok(fs::write(out.join(SUMS), sums)?)
}
