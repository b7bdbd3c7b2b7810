//! Runs tests against the servers of another release of Debian. As root on Linux, the command installs the release into
//! a folder of its own. The command builds the tests outside of this folder, and runs them with this folder as their
//! root folder (`chroot`). Without root rights, or on another system, the command runs the tests with the servers in
//! the `PATH`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::{counted, finish, programs, threads};
use crate::setup::{announce, root, run, target_dir};

/// Test programs, each with filters: only tests whose paths contain one of the filters run. If the list of filters is
/// empty, all tests of the program run.
type TestPrograms = &'static [(&'static str, &'static [&'static str])];

/// The age at which the command replaces an installation of Debian unstable. Debian changes the packages of unstable
/// every day; the packages of the other releases keep their versions.
const UNSTABLE_AGE_LIMIT: Duration = Duration::from_hours(24);

/// A release whose servers the tests use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ServerRelease {
    /// `RabbitMQ` 3.10 and Redis 7.0.
    Debian12,
    /// `RabbitMQ` 4.0 and Redis 8.0.
    Debian13,
    /// Valkey 8.1 in place of Redis.
    Debian13Valkey,
    /// The packages of Debian unstable.
    Unstable,
}

impl ServerRelease {
    fn name(self) -> &'static str {
        match self {
            Self::Debian12 => "debian12",
            Self::Debian13 => "debian13",
            Self::Debian13Valkey => "debian13-valkey",
            Self::Unstable => "unstable",
        }
    }

    fn suite(self) -> &'static str {
        match self {
            Self::Debian12 => "bookworm",
            Self::Debian13 | Self::Debian13Valkey => "trixie",
            Self::Unstable => "sid",
        }
    }

    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Debian13Valkey => &["valkey-server"],
            _ => &["rabbitmq-server", "redis-server"],
        }
    }

    /// Returns the tests that use the servers of this release: the tests of the broker (except for Valkey), and the
    /// tests of the Redis store. The tests of other clients are absent, because the release lacks these clients.
    fn programs(self) -> TestPrograms {
        const BROKER: &[&str] = &[
            "broker::amqp::",
            "broker::chain::",
            "broker::gaps::",
            "broker::ingress::",
            "broker::instances::",
            "broker::lost_numbers::",
            "broker::publish::",
            "broker::rotated_sinks::",
            "broker::swap::",
        ];
        match self {
            Self::Debian13Valkey => &[("store_redis", &[])],
            _ => &[("broker", BROKER), ("store_redis", &[])],
        }
    }

    /// Returns the basic tests, which `cargo xtask ci` runs: a part of the tests that `programs` returns.
    fn basic_programs(self) -> TestPrograms {
        const STORE: &[&str] = &["single_server::", "cluster::", "failover::", "rights::"];
        // A whole test name in this list stands for one test whose result depends on the version of RabbitMQ.
        const BROKER: &[&str] = &[
            "amqp::basic::",
            "amqp::connect::",
            "amqp::forms::",
            "amqp::topology::",
            "amqp::publish::refused_message_delays_only_its_key",
            "amqp::publish::queue_that_never_confirmed_delays_only_its_keys",
            "amqp::refused::user_with_narrow_rights_can_run",
            "amqp::stopped::queue_of_rabbitmq_3_is_used_under_rabbitmq_4",
        ];
        match self {
            Self::Debian13Valkey => &[("store_redis", STORE)],
            _ => &[("broker", BROKER), ("store_redis", STORE)],
        }
    }
}

/// The releases that the basic tests use: Debian 13, first with Redis, then with Valkey.
const BASIC_RELEASES: [ServerRelease; 2] = [ServerRelease::Debian13, ServerRelease::Debian13Valkey];

/// Installs the servers of the basic tests, if this user may install a release.
pub(crate) fn install_basics() -> Result<()> {
    if is_linux_root()? {
        for release in BASIC_RELEASES {
            install(release)?;
        }
    }
    Ok(())
}

/// Runs the basic tests with the servers of Debian 13.
pub(crate) fn test_basics() -> Result<()> {
    for release in BASIC_RELEASES {
        run_programs(release, release.basic_programs(), None)?;
    }
    Ok(())
}

/// Runs the tests of a release. With `filter`, runs only the tests whose paths contain the filter.
pub(super) fn test(release: ServerRelease, filter: Option<&str>) -> Result<()> {
    run_programs(release, release.programs(), filter)
}

fn run_programs(
    release: ServerRelease,
    programs: TestPrograms,
    filter: Option<&str>,
) -> Result<()> {
    let folder = if is_linux_root()? { Some(install(release)?) } else { None };
    if folder.is_none() {
        announce("only root on Linux can install a release: testing with the servers in the PATH");
    }
    let built = programs::build()?;
    let mut passed = 0;
    for (program, parts) in programs {
        let found = built.iter().find(|found| found.is_integration_test(program));
        let executable =
            &found.with_context(|| format!("cargo built no test {program}"))?.executable;
        announce(&format!("{program} with the servers of {}", release.name()));
        let mut tests = match &folder {
            Some(folder) => inside(folder, executable),
            None => Command::new(executable),
        };
        tests.current_dir(root().join("tests"));
        tests.env("RUST_TEST_THREADS", threads().to_string());
        match filter {
            Some(filter) => tests.arg(filter),
            None => tests.args(*parts),
        };
        passed += counted(&mut tests)?;
    }
    let names: Vec<&str> = programs.iter().map(|(name, _)| *name).collect();
    let place = format!(" in the programs that use the servers ({})", names.join(", "));
    finish(filter, &place, passed)
}

/// Returns whether this process may mount file systems, and change its root folder.
pub(crate) fn is_linux_root() -> Result<bool> {
    let id = Command::new("id").arg("-u").output().context("cannot start `id`")?;
    Ok(cfg!(target_os = "linux") && id.stdout.trim_ascii() == b"0")
}

/// Returns whether an installation is up to date. `complete` is the file that the installation wrote at its end.
fn is_up_to_date(release: ServerRelease, complete: &Path) -> bool {
    let Ok(file) = fs::metadata(complete) else { return false };
    let age = file.modified().ok().and_then(|written_at| written_at.elapsed().ok());
    release != ServerRelease::Unstable || age.is_some_and(|age| age < UNSTABLE_AGE_LIMIT)
}

/// Installs the essential packages of a release of Debian into a folder, which is created again.
pub(crate) fn bootstrap(suite: &str, folder: &Path) -> Result<()> {
    if Command::new("debootstrap").arg("--version").stdout(Stdio::null()).status().is_err() {
        run(Command::new("apt-get").args(["install", "--yes", "--quiet", "debootstrap"]))?;
    }
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    run(Command::new("debootstrap")
        .args(["--variant=minbase", suite])
        .arg(folder)
        .stdout(Stdio::null()))
}

/// Installs a release into a folder, if no installation of an earlier call is up to date. Returns the folder.
fn install(release: ServerRelease) -> Result<PathBuf> {
    let folder = target_dir().join("servers").join(release.name());
    let complete = folder.join("ordain-complete");
    if is_up_to_date(release, &complete) {
        return Ok(folder);
    }
    announce(&format!("installing the servers of {} into {}", release.name(), folder.display()));
    bootstrap(release.suite(), &folder)?;
    // This script forbids the packages to start their services.
    let policy = folder.join("usr/sbin/policy-rc.d");
    fs::write(&policy, "#!/bin/sh\nexit 101\n")?;
    fs::set_permissions(&policy, fs::Permissions::from_mode(0o755))?;
    // With these files, programs in the folder resolve host names as the system does, including `localhost`.
    for file in ["etc/resolv.conf", "etc/hosts"] {
        fs::copy(Path::new("/").join(file), folder.join(file))?;
    }
    // Some tests compile a library with `cc`. The HTTP client of Erlang needs root certificates, also without TLS.
    let packages =
        [&["ca-certificates", "openssl", "procps", "gcc", "libc6-dev"], release.packages()]
            .concat()
            .join(" ");
    // The package index of a mirror that is rarely updated may have expired. `apt-get` still checks the signature of
    // the index.
    let install = format!(
        "apt-get update --quiet --option Acquire::Check-Valid-Until=false && \
         apt-get install --yes --quiet --no-install-recommends {packages}"
    );
    run(Command::new("chroot")
        .arg(&folder)
        .args(["sh", "-c", &install])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::null()))?;
    if release == ServerRelease::Debian13Valkey {
        // The tests start the server by the name `redis-server`.
        symlink("valkey-server", folder.join("usr/bin/redis-server"))?;
    }
    fs::write(complete, "")?;
    Ok(folder)
}

/// Returns a command that runs a program with the folder of another release as its root folder. The program finds the
/// project, cargo's output, `/tmp`, `/dev` and `/proc` at their usual paths.
fn inside(folder: &Path, program: &Path) -> Command {
    let mut script = String::from("set -e\n");
    let target = target_dir();
    let shared = [root(), &target, Path::new("/tmp"), Path::new("/dev")];
    for path in shared {
        script += &format!("mkdir -p \"$1{0}\"; mount --rbind \"{0}\" \"$1{0}\"\n", path.display());
    }
    script += "mount -t proc proc \"$1/proc\"\n";
    script += "folder=$1 directory=$2; shift 2\n";
    script += "exec chroot \"$folder\" sh -c 'cd \"$0\" && exec \"$@\"' \"$directory\" \"$@\"\n";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
    command.arg(folder).arg(root().join("tests")).arg(program);
    // The tests must create their temporary files in `/tmp`, the folder that both root folders share.
    command.env("TMPDIR", "/tmp");
    command
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn only_installation_of_unstable_becomes_outdated() {
        let complete = std::env::temp_dir().join(format!("ordain-complete-{}", std::process::id()));
        let releases = [ServerRelease::Debian13, ServerRelease::Unstable];
        let found = || releases.map(|release| is_up_to_date(release, &complete));
        assert_eq!(found(), [false, false]);
        let file = fs::File::create(&complete).expect("a file");
        assert_eq!(found(), [true, true]);
        file.set_modified(SystemTime::now() - 2 * UNSTABLE_AGE_LIMIT).expect("the time");
        assert_eq!(found(), [true, false]);
        fs::remove_file(&complete).expect("the file");
    }
}
