//! The archive: the program and the files beside it, in one folder.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::Release;
use super::stage::Stage;
use crate::setup::run;

/// The files of the archive, with their paths in the archive.
const FILES: [(&str, &str); 11] = [
    ("ordain", "ordain"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("THIRD-PARTY-NOTICES.txt", "THIRD-PARTY-NOTICES.txt"),
    ("ordain.cdx.json", "ordain.cdx.json"),
    ("ordain.bash", "completions/ordain.bash"),
    ("_ordain", "completions/_ordain"),
    ("ordain.fish", "completions/ordain.fish"),
    ("ordain.1", "man/ordain.1"),
    ("ordain.service", "systemd/ordain.service"),
    ("ordain.toml", "systemd/ordain.toml"),
];

pub(super) fn build(stage: &Stage, release: &Release, out: &Path) -> Result<()> {
    let name = release.name();
    let folder = stage.beside(&name);
    for (file, path) in FILES {
        let mode = if file == "ordain" { 0o755 } else { 0o644 };
        stage.install(file, &folder.join(path), mode)?;
    }
    run(Command::new("tar")
        .args(["--create", "--format=gnu", "--sort=name", "--owner=0", "--group=0"])
        .args(["--numeric-owner", "--use-compress-program=gzip -9 -n"])
        .arg(format!("--mtime=@{}", release.epoch))
        .arg("--directory")
        .arg(folder.parent().context("a folder")?)
        .arg("--file")
        .arg(out.join(format!("{name}.tar.gz")))
        .arg(&name))
}
