//! The servers that tests start for themselves, and the linter of their scripts. A server that was on
//! the machine before is never touched, nor one that runs on it: tests use ports and folders of their
//! own.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{run, say};

/// Major, minor, patch.
type Version = [u32; 3];

/// A program that tests or lints start.
struct Server {
    program: &'static str,
    /// What says its version; nothing where it is missing.
    version: fn() -> Result<Option<String>>,
    /// The oldest that will do.
    least: Version,
    /// Its package in Debian and Ubuntu, and in Homebrew.
    apt: &'static str,
    brew: &'static str,
    /// The service that the package would start on the machine's own port.
    service: Option<&'static str>,
}

/// `redis-server --sentinel` is the Sentinel, so that nothing else is needed for one.
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
    // Its own scripts may want to be another user, even to tell the version.
    Server {
        program: "rabbitmq-server",
        version: || Ok(ordain_servers::rabbit_version()),
        least: [3, 10, 0],
        apt: "rabbitmq-server",
        brew: "rabbitmq",
        service: Some("rabbitmq-server"),
    },
    // Makes the certificates of a server that speaks TLS.
    Server {
        program: "openssl",
        version: || printed("openssl", "version"),
        least: [1, 1, 1],
        apt: "openssl",
        brew: "openssl",
        service: None,
    },
];

/// Looks for the servers, installs those that are missing where that can be done, and refuses those
/// that are too old.
pub(crate) fn servers() -> Result<()> {
    find(&SERVERS)
}

/// Finds or installs the programs that check the scripts of the store in Redis.
pub(crate) fn lua_programs() -> Result<()> {
    find(&[REDIS, LUACHECK])
}

fn find(servers: &[Server]) -> Result<()> {
    let mut found = Vec::new();
    for server in servers {
        if (server.version)()?.is_none() {
            install(server)?;
        }
        let version = (server.version)()?;
        let version = version.with_context(|| {
            format!("{} is installed, and not to be found in the PATH", server.program)
        })?;
        found.push(format!("{} {}", server.program, shown(checked(server, &version)?)));
    }
    say(&format!("found: {}", found.join(", ")));
    Ok(())
}

/// What a program prints of its version; nothing where it is missing.
fn printed(program: &str, arg: &str) -> Result<Option<String>> {
    match Command::new(program).arg(arg).output() {
        Ok(output) => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot start {program}")),
    }
}

/// The version of a program, which must be new enough.
fn checked(server: &Server, printed: &str) -> Result<Version> {
    let Server { program, least, .. } = server;
    let version = version_in(printed);
    let version =
        version.with_context(|| format!("what {program} says names no version: {printed:?}"))?;
    ensure!(
        version >= *least,
        "{program} {} was found, which is too old: {}",
        shown(version),
        advice(server)
    );
    Ok(version)
}

/// The first word that is a version, such as `v=7.0.15` or `1.1.1w`.
fn version_in(text: &str) -> Option<Version> {
    text.split_whitespace().find_map(|word| {
        let mut parts = word.strip_prefix("v=").unwrap_or(word).split('.').map(|part| {
            let end = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
            part[..end].parse().ok()
        });
        Some([parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)])
    })
}

fn shown(version: Version) -> String {
    version.map(|part| part.to_string()).join(".")
}

/// How a person gets it.
fn advice(server: &Server) -> String {
    let Server { apt, brew, .. } = server;
    let least = shown(server.least);
    format!("install {least} or later, `sudo apt-get install {apt}` or `brew install {brew}`")
}

fn install(server: &Server) -> Result<()> {
    let Server { program, apt, .. } = server;
    let can = is_root() && Command::new("apt-get").arg("--version").output().is_ok();
    if !can {
        bail!("{program} is missing: {}", advice(server));
    }
    say(&format!("installing {apt} by apt-get, as {program} is missing"));
    run(apt_get().arg("update"))?;
    run(apt_get().args(["install", "--yes", "--no-install-recommends", apt]))
        .with_context(|| advice(server))?;
    server.service.map_or(Ok(()), disable)
}

fn apt_get() -> Command {
    let mut apt_get = Command::new("apt-get");
    // In this run level packages start no services, where there is no systemd.
    apt_get.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    apt_get
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

/// Ends the service that came with a package that has just been installed.
fn disable(service: &str) -> Result<()> {
    // That is where systemd runs, and not only is installed.
    if Path::new("/run/systemd/system").is_dir() {
        say(&format!("disabling the machine's service {service}: tests start their own"));
        return run(Command::new("systemctl").args(["disable", "--now", service]));
    }
    let service_command = |action: &str| {
        let mut command = Command::new("service");
        command.args([OsStr::new(service), OsStr::new(action)]);
        command
    };
    if service_command("status").output().is_ok_and(|status| status.status.success()) {
        say(&format!("stopping the machine's service {service}: tests start their own"));
        return run(&mut service_command("stop"));
    }
    say(&format!("the machine's service {service} was not started: tests start their own"));
    Ok(())
}

#[test]
fn versions_are_read() {
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
fn an_older_version_is_refused_with_what_was_found() -> Result<()> {
    let redis = &SERVERS[0];
    assert_eq!(checked(redis, "Redis server v=7.0.0 sha=0")?, [7, 0, 0]);
    let error = checked(redis, "Redis server v=6.2.14 sha=0").expect_err("it is too old");
    let error = error.to_string();
    for part in ["6.2.14", "7.0.0", "sudo apt-get install redis-server", "brew install redis"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(checked(redis, "no version").is_err());
    Ok(())
}
