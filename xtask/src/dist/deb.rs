//! The package for Debian and Ubuntu.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::Release;
use super::stage::{Stage, install, packaging};
use crate::setup::{output, run};

/// The files of the package, with their paths in the system.
const FILES: [(&str, &str); 10] = [
    ("ordain", "usr/bin/ordain"),
    ("ordain.service", "usr/lib/systemd/system/ordain.service"),
    ("ordain.toml", "etc/ordain/ordain.toml"),
    ("environment", "etc/ordain/environment"),
    ("ordain.bash", "usr/share/bash-completion/completions/ordain"),
    ("_ordain", "usr/share/zsh/vendor-completions/_ordain"),
    ("ordain.fish", "usr/share/fish/vendor_completions.d/ordain.fish"),
    ("THIRD-PARTY-NOTICES.txt", "usr/share/doc/ordain/THIRD-PARTY-NOTICES.txt"),
    ("ordain.cdx.json", "usr/share/doc/ordain/ordain.cdx.json"),
    ("ordain.1", "usr/share/man/man1/ordain.1"),
];

/// The scripts that run at an installation or a removal.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

pub(super) fn build(stage: &Stage, release: &Release, out: &Path) -> Result<()> {
    let folder = stage.beside("deb");
    for (file, path) in FILES {
        let mode = if file == "ordain" { 0o755 } else { 0o644 };
        stage.install(file, &folder.join(path), mode)?;
    }
    run(Command::new("gzip").args(["-9", "-n"]).arg(folder.join("usr/share/man/man1/ordain.1")))?;
    fs::write(folder.join("usr/share/doc/ordain/copyright"), copyright(stage)?)?;

    let control = folder.join("DEBIAN");
    for script in SCRIPTS {
        install(&packaging("debian").join(script), &control.join(script), 0o755)?;
    }
    let conffiles = FILES.iter().filter(|(_, path)| path.starts_with("etc/"));
    let conffiles = conffiles.map(|(_, path)| format!("/{path}\n")).collect::<Vec<_>>().concat();
    fs::write(control.join("conffiles"), conffiles)?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))
        .context("the package needs the programs of Debian: install `dpkg`")?;
    let architecture = architecture.trim();
    let kib = FILES.iter().filter_map(|(file, _)| stage.file(file).metadata().ok());
    let kib = kib.map(|file| file.len()).sum::<u64>() >> 10;
    let libc = newest_libc(&fs::read(stage.file("ordain"))?)
        .context("the program names no version of the C library")?;
    let version = release.version;
    let fields = format!(
        "Package: ordain\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: The Ordain authors <ordain@localhost>\n\
         Installed-Size: {kib}\n\
         Depends: libc6 (>= 2.{libc}), libgcc-s1, passwd\n\
         Recommends: ca-certificates\n\
         Section: net\n\
         Priority: optional\n\
         Description: ordered, exactly-once event handlers in WebAssembly\n \
         Ordain runs handlers, compiled to WebAssembly, over streams of events: in\n \
         order within a key, in parallel across keys, and exactly once.\n"
    );
    fs::write(control.join("control"), fields)?;
    // The rights must not depend on the `umask` of this process.
    run(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(&folder))?;
    let name = format!("ordain_{version}_{architecture}.deb");
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(&folder)
        .arg(out.join(name))
        .env("SOURCE_DATE_EPOCH", &release.epoch)
        .stdout(std::process::Stdio::null()))
}

fn copyright(stage: &Stage) -> Result<String> {
    let text = |name: &str| fs::read_to_string(stage.file(name));
    Ok(format!(
        "Ordain is available under the Apache License 2.0 or the MIT License, at your choice. THIRD-PARTY-NOTICES.txt \
         lists the licences of the libraries in the program.\n\n{}\n\n{}",
        text("LICENSE-MIT")?,
        text("LICENSE-APACHE")?
    ))
}

/// Returns the second part of the newest version of the GNU C library that a program requires, such as 36 for version
/// 2.36. The program contains the names of the versions as texts.
fn newest_libc(program: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"GLIBC_2.";
    let starts = program.windows(NAME.len()).enumerate().filter(|(_, bytes)| *bytes == NAME);
    let versions = starts.filter_map(|(at, _)| {
        let rest = &program[at + NAME.len()..];
        let digits: String = rest
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .map(|byte| *byte as char)
            .collect();
        digits.parse().ok()
    });
    versions.max()
}

#[test]
fn newest_version_of_the_c_library_is_found() {
    assert_eq!(newest_libc(b"\0GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0"), Some(34));
    assert_eq!(newest_libc(b"static"), None);
}
