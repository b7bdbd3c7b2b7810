//! Locations of the programs of RabbitMQ and Erlang.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::find;

/// Packages install RabbitMQ's programs in these folders. Tests prefer the scripts there, because the scripts in the
/// PATH may change the user, which requires root.
const PLACES: [&str; 2] = ["/usr/lib/rabbitmq/lib", "/opt/homebrew/opt/rabbitmq"];

#[derive(Debug)]
pub(super) struct Programs {
    pub(super) server: PathBuf,
    pub(super) epmd: PathBuf,
}

impl Programs {
    pub(super) fn find() -> Result<Self> {
        let folder = scripts().context(
            "`rabbitmq-server` is not installed: run `cargo xtask test`, which installs it",
        )?;
        Ok(Self { server: folder.join("rabbitmq-server"), epmd: find("epmd")? })
    }
}

/// Returns the version of the installed RabbitMQ, such as `3.10.8`, or `None` if RabbitMQ or Erlang is missing. The
/// version comes from the name of a folder, because `rabbitmqctl version` in Debian requires root.
pub fn rabbit_version() -> Option<String> {
    find("erl").and(find("epmd")).ok()?;
    let plugins = fs::read_dir(scripts()?.parent()?.join("plugins")).ok()?.flatten();
    let mut names = plugins.filter_map(|entry| entry.file_name().into_string().ok());
    names.find_map(|name| {
        let version = name.strip_prefix("rabbit-")?.trim_end_matches(".ez");
        version.starts_with(|first: char| first.is_ascii_digit()).then(|| version.to_owned())
    })
}

/// Returns the folder of RabbitMQ's scripts, or `None` if RabbitMQ is not installed.
fn scripts() -> Option<PathBuf> {
    let packaged = PLACES.iter().find_map(|place| folder(Path::new(place)));
    // `rabbitmq-server` in the PATH may be a symbolic link. Its target is in the folder of RabbitMQ's scripts.
    let linked = || fs::canonicalize(find("rabbitmq-server").ok()?).ok();
    packaged.or_else(|| Some(linked()?.parent()?.to_owned()))
}

/// Some packages have one folder for each version: the function then returns the last folder by name.
fn folder(place: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(place).ok()?.flatten().map(|entry| entry.path().join("sbin"));
    let mut folders: Vec<PathBuf> = versions.chain([place.join("sbin")]).collect();
    folders.retain(|folder| folder.join("rabbitmq-server").is_file());
    folders.sort();
    folders.pop()
}

#[test]
fn version_is_found_without_starting_a_program() {
    let version = rabbit_version().expect("RabbitMQ is installed");
    let mut parts = version.split('.').map(str::parse::<u32>);
    assert!(matches!((parts.next(), parts.next()), (Some(Ok(3..)), Some(Ok(_)))), "{version}");
}
