//! Installs the files of a release into empty systems, and runs the program there as a user without rights.

mod projects;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Release, SUMS, build};
use crate::setup::{announce, output, run, target_dir};
use crate::tests::{bootstrap, is_linux_root};
use projects::check_projects;

/// The release of Debian in which the files are installed.
const SUITE: &str = "trixie";
/// The number of events of each demo.
const EVENTS: &str = "50000";
/// The user without rights.
const USER: &str = "visitor";

/// Builds the files of a release, and checks them. Without root rights, checks only that two builds make the same
/// files.
pub(crate) fn check() -> Result<()> {
    let work = target_dir().join("dist-check");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    let files = work.join("files");
    build(&files)?;
    let first = fs::read(files.join(SUMS))?;
    build(&files)?;
    ensure!(fs::read(files.join(SUMS))? == first, "two builds of the same commit differ");
    run(Command::new("sha256sum").args(["--quiet", "--check", SUMS]).current_dir(&files))?;

    if !is_linux_root()? {
        announce("only root on Linux can install the files into an empty system");
        return Ok(());
    }
    let empty = empty_system()?;
    let system = |name: &str| -> Result<System> {
        let system = System { folder: work.join(name) };
        run(Command::new("cp").args(["--archive"]).arg(&empty).arg(&system.folder))?;
        run(Command::new("cp").args(["--archive"]).arg(&files).arg(system.folder.join("dist")))?;
        system.sh(&format!("useradd --create-home {USER}"))?;
        Ok(system)
    };
    check_package(&system("package")?)?;
    check_archive(&system("archive")?)?;
    fs::remove_dir_all(&work)?;
    Ok(())
}

/// Returns the folder of a system with only the essential packages of Debian.
fn empty_system() -> Result<PathBuf> {
    let folder = target_dir().join("servers").join("empty");
    let complete = folder.join("ordain-complete");
    if !complete.exists() {
        bootstrap(SUITE, &folder)?;
        fs::write(complete, "")?;
    }
    Ok(folder)
}

/// Installs, uses and removes the package. The service's command must work with the installed configuration as the
/// service's user. Also runs the demo in the system of the container image.
fn check_package(system: &System) -> Result<()> {
    announce("the package in an empty system");
    system.sh("dpkg --install /dist/ordain_*.deb > /dev/null")?;
    check_unit(&system.folder)?;
    system.check_demo(&format!("su {USER} -c 'ordain demo --events {EVENTS} --json'"))?;
    system.sh("test -z \"$(ls /tmp)\"").context("the demo left files in /tmp")?;
    check_projects(system, "ordain")?;

    announce("the configuration of the package, and the user of the service");
    // The ids of the messages differ between two stores, so the comparison leaves them out.
    system.sh("su --shell /bin/sh ordain -c 'set -e; cd /var/lib/ordain; \
         ordain demo --events 20000 --keep demo --json > demo.json; \
         cp demo/plugins/orders.wasm plugins/; cp demo/events.ndjson .; \
         ordain --log error run --once --json /etc/ordain/ordain.toml > run.json; \
         contents() { grep --only-matching datacontenttype.\\* $1 | sort | sha256sum; }; \
         test \"$(contents receipts.ndjson)\" = \"$(contents demo/receipts.ndjson)\"'")?;
    system.sh(&format!("! su {USER} -c 'cat /etc/ordain/environment' 2> /dev/null"))?;

    announce("the container image");
    system.sh("sh /dist/image-root /image && mkdir /image/proc /image/dev")?;
    let demo = format!("/usr/bin/ordain demo --events {EVENTS} --json");
    system.check_demo(&format!(
        "mount -t proc proc /image/proc && mount --rbind /dev /image/dev && chroot --userspec=65532:65532 /image {demo}"
    ))?;

    system.sh("dpkg --purge ordain 2> /dev/null > /dev/null")?;
    system.sh("! test -e /usr/bin/ordain && ! test -e /etc/ordain/ordain.toml")?;
    system.sh("test -e /var/lib/ordain/store").context("the removal deleted the state")
}

/// Unpacks the archive and runs the program, without an installation.
fn check_archive(system: &System) -> Result<()> {
    announce("the archive in an empty system");
    let name = Release::current()?.name();
    system.sh(&format!("tar -xzf /dist/{name}.tar.gz -C /opt"))?;
    system
        .check_demo(&format!("su {USER} -c '/opt/{name}/ordain demo --events {EVENTS} --json'"))?;
    check_projects(system, &format!("/opt/{name}/ordain"))?;
    system.sh(&format!("bash -n /opt/{name}/completions/ordain.bash"))?;
    for file in ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY-NOTICES.txt", "ordain.cdx.json"] {
        system.sh(&format!("test -s /opt/{name}/{file}"))?;
    }
    Ok(())
}

/// Checks the unit with systemd, if this machine has systemd.
fn check_unit(system: &Path) -> Result<()> {
    let verify = Command::new("systemd-analyze").arg("--version").output();
    if !verify.is_ok_and(|output| output.status.success()) {
        announce("this machine has no `systemd-analyze`: the unit is not checked");
        return Ok(());
    }
    // The check also reads the units of the system, so it needs the program of the unit at its path.
    let unit = fs::read_to_string(system.join("usr/lib/systemd/system/ordain.service"))?;
    let program = system.join("usr/bin/ordain");
    let unit = unit.replace("/usr/bin/ordain", &program.display().to_string());
    let copy = system.join("ordain.service");
    fs::write(&copy, unit)?;
    let verified = output(Command::new("systemd-analyze").arg("verify").arg(&copy));
    fs::remove_file(copy)?;
    verified.context("the unit is invalid").map(drop)
}

/// A system in a folder.
struct System {
    folder: PathBuf,
}

impl System {
    /// Returns a command that runs a script of the shell in the system.
    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("unshare");
        let enter = "mount -t proc proc \"$1/proc\" && mount --rbind /dev \"$1/dev\" && \
                     exec chroot \"$1\" sh -e -c \"$2\"";
        command.args(["--mount", "--propagation", "private", "sh", "-c", enter, "sh"]);
        command.arg(&self.folder).arg(script).env_clear();
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    fn sh(&self, script: &str) -> Result<()> {
        run(&mut self.command(script))
    }

    /// Runs a script as the user without rights, in the home folder of this user. Returns the standard output. The
    /// script must not contain single quotes.
    fn output_of_user(&self, script: &str) -> Result<String> {
        output(&mut self.command(&format!("su {USER} -c 'set -e; cd; {script}'")))
    }

    /// Runs a script that prints the result of a demo, which must be correct.
    fn check_demo(&self, script: &str) -> Result<()> {
        let report = output(&mut self.command(script)).context("the demo failed")?;
        let report: Value = serde_json::from_str(&report)?;
        ensure!(report["correct"] == true, "the demo is incorrect: {report:#}");
        ensure!(report["kills"].as_array().is_some_and(|kills| kills.len() == 3), "{report:#}");
        Ok(())
    }
}

#[test]
fn documented_unit_is_the_packaged_unit() -> Result<()> {
    let root = crate::setup::root();
    let page = fs::read_to_string(root.join("docs/guide/deploying.md"))?;
    let unit = fs::read_to_string(root.join("packaging/ordain.service"))?;
    let block = page.split("```ini\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(block, Some(unit.as_str()));
    Ok(())
}
