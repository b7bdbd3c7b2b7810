//! Finds or installs the servers that tests start, the linter of the Redis scripts, and the programs that run other
//! clients of RabbitMQ. This module must never change a server that was already installed or is running, because tests
//! use their own ports and folders.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{announce, run};

/// A version: major, minor, patch.
type Version = [u32; 3];

/// A program that the tests or the checks of scripts start.
struct Server {
    program: &'static str,
    /// Returns the output in which the program prints its version; `None` if the program is missing.
    version: fn() -> Result<Option<String>>,
    /// The oldest supported version.
    least: Version,
    /// Name of the program's package in Debian and Ubuntu.
    apt: &'static str,
    /// Name of the program's package in Homebrew.
    brew: &'static str,
    /// The service that an installation of the package may start; `None` if the package has no service.
    service: Option<&'static str>,
}

/// Redis. The same program also runs as a Sentinel (`redis-server --sentinel`).
const REDIS: Server = Server {
    program: "redis-server",
    version: || printed("redis-server", "--version"),
    least: [7, 0, 0],
    apt: "redis-server",
    brew: "redis",
    service: Some("redis-server"),
};

/// The linter of the scripts that run in Redis.
const LUACHECK: Server = Server {
    program: "luacheck",
    version: || printed("luacheck", "--version"),
    least: [0, 23, 0],
    apt: "lua-check",
    brew: "luacheck",
    service: None,
};

/// The programs that tests start.
const SERVERS: [Server; 3] = [
    REDIS,
    // In Debian, only root can make RabbitMQ print its version. `rabbit_version` instead finds the version in the name
    // of a folder.
    Server {
        program: "rabbitmq-server",
        version: || Ok(ordain_servers::rabbit_version()),
        least: [3, 10, 0],
        apt: "rabbitmq-server",
        brew: "rabbitmq",
        service: Some("rabbitmq-server"),
    },
    // The tests create the certificates of TLS servers with this program.
    Server {
        program: "openssl",
        version: || printed("openssl", "version"),
        least: [1, 1, 1],
        apt: "openssl",
        brew: "openssl",
        service: None,
    },
];

/// The programs that install and run the clients in `tests/clients`.
const CLIENT_PROGRAMS: [Server; 4] = [
    Server {
        program: "python3",
        version: python_version,
        least: [3, 11, 0],
        apt: "python3-venv",
        brew: "python",
        service: None,
    },
    Server {
        program: "node",
        version: || {
            // The output has the form `v20.1.0`.
            let printed = printed("node", "--version")?;
            Ok(printed.map(|version| version.trim_start_matches('v').to_owned()))
        },
        least: [18, 0, 0],
        apt: "nodejs",
        brew: "node",
        service: None,
    },
    Server {
        program: "npm",
        version: || printed("npm", "--version"),
        least: [9, 0, 0],
        apt: "npm",
        brew: "node",
        service: None,
    },
    // The client for Ruby, with Ruby itself.
    Server {
        program: "Bunny for Ruby",
        version: bunny_version,
        least: [2, 19, 0],
        apt: "ruby-bunny",
        brew: "ruby && gem install bunny",
        service: None,
    },
];

/// The program that builds the examples in C.
const MAKE: Server = Server {
    program: "make",
    version: || {
        // The output has the form `GNU Make 4.3`.
        let printed = printed("make", "--version")?;
        Ok(printed.and_then(|version| version.lines().next().map(str::to_owned)))
    },
    least: [3, 81, 0],
    apt: "make",
    brew: "make",
    service: None,
};

/// Finds the servers, and installs the missing servers if possible. A version that is too old is an error.
pub(crate) fn servers() -> Result<()> {
    find(&SERVERS)
}

/// Finds or installs the programs that check the scripts of the Redis store.
pub(crate) fn lua_programs() -> Result<()> {
    find(&[REDIS, LUACHECK])
}

/// Finds or installs the programs that install and run the clients in `tests/clients`.
pub(super) fn client_programs() -> Result<()> {
    find(&CLIENT_PROGRAMS)
}

/// Finds or installs the programs that install and run the compilers of other languages than Rust.
pub(super) fn compiler_programs() -> Result<()> {
    let [python, node, npm, _] = CLIENT_PROGRAMS;
    find(&[python, node, npm, MAKE])
}

/// Returns the version of Python; `None` if Python or its module for virtual environments is missing.
fn python_version() -> Result<Option<String>> {
    let program = "import ensurepip, platform, venv; print(platform.python_version())";
    interpreted("python3", ["-c", program])
}

/// Returns the version of Bunny; `None` if Ruby or Bunny is missing.
fn bunny_version() -> Result<Option<String>> {
    interpreted("ruby", ["-e", "require 'bunny'; puts Bunny::VERSION"])
}

/// Runs an interpreter with arguments that contain a program. Returns the output of the program; `None` if the
/// interpreter or a library that the program loads is missing.
fn interpreted(interpreter: &str, args: [&str; 2]) -> Result<Option<String>> {
    match Command::new(interpreter).args(args).output() {
        Ok(output) if output.status.success() => {
            Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot start {interpreter}")),
    }
}

fn find(servers: &[Server]) -> Result<()> {
    let mut found = Vec::new();
    for server in servers {
        if (server.version)()?.is_none() {
            install(server)?;
        }
        let version = (server.version)()?;
        let version = version
            .with_context(|| format!("{} is installed but not in the PATH", server.program))?;
        found.push(format!("{} {}", server.program, format_version(checked(server, &version)?)));
    }
    announce(&format!("found: {}", found.join(", ")));
    Ok(())
}

/// Returns the output of a program that prints its version; `None` if the program is missing.
fn printed(program: &str, arg: &str) -> Result<Option<String>> {
    match Command::new(program).arg(arg).output() {
        Ok(output) => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot start {program}")),
    }
}

/// Returns the version of a program. A version that is too old is an error.
fn checked(server: &Server, printed: &str) -> Result<Version> {
    let Server { program, least, .. } = server;
    let version = version_in(printed);
    let version = version
        .with_context(|| format!("the output of {program} contains no version: {printed:?}"))?;
    ensure!(
        version >= *least,
        "{program} {} is too old: {}",
        format_version(version),
        advice(server)
    );
    Ok(version)
}

/// Returns the version in the first word that contains a version, such as `v=7.0.15` or `1.1.1w`.
fn version_in(text: &str) -> Option<Version> {
    text.split_whitespace().find_map(|word| {
        let mut parts = word.strip_prefix("v=").unwrap_or(word).split('.').map(|part| {
            let end = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
            part[..end].parse().ok()
        });
        Some([parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)])
    })
}

fn format_version(version: Version) -> String {
    version.map(|part| part.to_string()).join(".")
}

/// Returns advice for a person who must install the program.
fn advice(server: &Server) -> String {
    let Server { apt, brew, .. } = server;
    let least = format_version(server.least);
    format!("install {least} or later, `sudo apt-get install {apt}` or `brew install {brew}`")
}

fn install(server: &Server) -> Result<()> {
    let Server { program, apt, .. } = server;
    let can = is_root() && Command::new("apt-get").arg("--version").output().is_ok();
    if !can {
        bail!("{program} is missing: {}", advice(server));
    }
    announce(&format!("installing {apt} with apt-get because {program} is missing"));
    run(apt_get().arg("update"))?;
    run(apt_get().args(["install", "--yes", "--no-install-recommends", apt]))
        .with_context(|| advice(server))?;
    server.service.map_or(Ok(()), disable)
}

fn apt_get() -> Command {
    let mut apt_get = Command::new("apt-get");
    // On a system without systemd, the installation of a package starts no service in this run level.
    apt_get.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    apt_get
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

/// Stops the service of a package that was just installed. With systemd, also disables the service.
fn disable(service: &str) -> Result<()> {
    // The folder exists only if systemd is running. An installed systemd that does not run has no such folder.
    if Path::new("/run/systemd/system").is_dir() {
        announce(&format!("disabling the service {service}: tests start their own server"));
        return run(Command::new("systemctl").args(["disable", "--now", service]));
    }
    let service_command = |action: &str| {
        let mut command = Command::new("service");
        command.args([OsStr::new(service), OsStr::new(action)]);
        command
    };
    if service_command("status").output().is_ok_and(|status| status.status.success()) {
        announce(&format!("stopping the service {service}: tests start their own server"));
        return run(&mut service_command("stop"));
    }
    announce(&format!("the service {service} is not running: tests start their own server"));
    Ok(())
}

#[test]
fn version_is_parsed() {
    let redis = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1a2b3c\n";
    assert_eq!(version_in(redis), Some([7, 0, 15]));
    assert_eq!(version_in("Redis server v=8.2 sha=0"), Some([8, 2, 0]));
    assert_eq!(version_in("Redis server v=7.4-rc1 sha=0"), Some([7, 4, 0]));
    assert_eq!(version_in("Redis server v=255.255.255 sha=0"), Some([255, 255, 255]));
    assert_eq!(version_in("OpenSSL 1.1.1w  11 Sep 2023"), Some([1, 1, 1]));
    assert_eq!(version_in("3.10.8\n"), Some([3, 10, 8]));
    assert_eq!(version_in("Redis server"), None);
    assert_eq!(version_in(""), None);
}

#[test]
fn older_version_is_rejected_with_the_version_found() -> Result<()> {
    let redis = &SERVERS[0];
    assert_eq!(checked(redis, "Redis server v=7.0.0 sha=0")?, [7, 0, 0]);
    let error = checked(redis, "Redis server v=6.2.14 sha=0").expect_err("an old version");
    let error = error.to_string();
    for part in ["6.2.14", "7.0.0", "sudo apt-get install redis-server", "brew install redis"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(checked(redis, "no version").is_err());
    Ok(())
}
