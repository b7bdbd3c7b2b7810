//! Where the programs of RabbitMQ and Erlang are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::find;

/// Where packages put RabbitMQ: those in the PATH may change the user, and want to be root for it.
const PLACES: [&str; 2] = ["/usr/lib/rabbitmq/lib", "/opt/homebrew/opt/rabbitmq"];

/// What a broker is run by.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) server: PathBuf,
    pub(super) ctl: PathBuf,
    pub(super) epmd: PathBuf,
}

impl Programs {
    pub(super) fn find() -> Result<Self> {
        let folder = PLACES.iter().find_map(|place| folder(Path::new(place)));
        let folder = folder.or_else(|| Some(find("rabbitmq-server").ok()?.parent()?.to_owned()));
        let folder = folder
            .context("there is no `rabbitmq-server`: run `cargo xtask test`, which installs it")?;
        let (server, ctl) = (folder.join("rabbitmq-server"), folder.join("rabbitmqctl"));
        Ok(Self { server, ctl, epmd: find("epmd")? })
    }
}

/// The folder of scripts in a package, whose version is in its path.
fn folder(place: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(place).ok()?.flatten().map(|entry| entry.path().join("sbin"));
    let mut folders: Vec<PathBuf> = versions.chain([place.join("sbin")]).collect();
    folders.retain(|folder| folder.join("rabbitmq-server").is_file());
    folders.sort();
    folders.pop()
}
