//! A host for which a name resolves as a test says: the host runs in a mount namespace with an `/etc/hosts` of its own.

use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::host::Home;

/// The address at which the servers of tests listen by default.
pub const FIRST_ADDRESS: &str = "127.0.0.1";
/// Mounts files of the home over the system's files, and executes the host.
const SCRIPT: &str =
    "mount --bind hosts /etc/hosts && mount --bind nsswitch /etc/nsswitch.conf && exec \"$@\"";

/// A name that a test resolves.
pub struct Name {
    name: &'static str,
    /// The command that starts a program in a mount namespace of its own.
    unshare: Vec<String>,
}

impl Name {
    /// Creates a name. Returns `None` if the system does not allow a mount namespace.
    pub fn new(name: &'static str) -> Result<Option<Self>> {
        Ok(unshare()?.map(|unshare| Self { name, unshare }))
    }

    /// Resolves the name to [`FIRST_ADDRESS`] for a host in this home. Returns the program that starts the host in its
    /// namespace, for [`Service::start_by`](crate::service::Service::start_by).
    pub fn prepare(&self, home: &Home) -> Result<Vec<String>> {
        fs::write(home.path("nsswitch"), "hosts: files\n")?;
        self.resolve(home, Some(FIRST_ADDRESS))?;
        let shell = ["sh", "-c", SCRIPT, "sh"].map(str::to_owned);
        Ok(self.unshare.iter().cloned().chain(shell).collect())
    }

    /// Resolves the name to an address or to nothing.
    pub fn resolve(&self, home: &Home, to: Option<&str>) -> Result<()> {
        let mut text = format!("{FIRST_ADDRESS} localhost\n");
        if let Some(address) = to {
            writeln!(text, "{address} {}", self.name)?;
        }
        // Writes to the same file: a new file would not be visible at the mount point.
        Ok(fs::write(home.path("hosts"), text)?)
    }
}

/// Returns the command that starts a program in a mount namespace of its own, or `None` if the system does not allow
/// one.
fn unshare() -> Result<Option<Vec<String>>> {
    for flags in ["-m", "-rm"] {
        let mut command = Command::new("unshare");
        command.args([flags, "sh", "-c", "mount --bind /etc/hosts /etc/hosts"]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => {
                return Ok(Some(vec!["unshare".to_owned(), flags.to_owned()]));
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}
