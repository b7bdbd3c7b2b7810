//! A host with its own links to the store and the broker, and the disturbances of this host.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ordain_servers::{Mode, Proxy};
use ordain_tests::host::Home;
use ordain_tests::plugins::plugin_with_note;
use ordain_tests::service::Service;

/// The exit code of a host that waited too long for a required service. A supervisor restarts such a host.
const TEMPFAIL: i32 = 75;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostFault {
    /// The host is paused by the signal `STOP`. All its connections stay open.
    Paused,
    Killed,
    Stopped,
    Store(Mode),
    Broker(Mode),
}

pub(crate) struct Host {
    home: Home,
    service: Service,
    /// The link to the store; `None` if the store is embedded in the host.
    to_store: Option<Proxy>,
    to_broker: Proxy,
    /// The current disturbance, and the time at which it ends.
    fault: Option<(HostFault, Instant)>,
}

impl Host {
    pub(crate) fn start(home: Home, to_store: Option<Proxy>, to_broker: Proxy) -> Result<Self> {
        let service = Service::start(&home, &["run"])?;
        Ok(Self { home, service, to_store, to_broker, fault: None })
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    /// Puts a version of the handler into the host's folder, if the folder lacks this version.
    pub(crate) fn put(&self, version: u32) -> Result<()> {
        let path = self.file(version);
        if version > 0 && !path.exists() {
            fs::write(path, plugin_with_note("tally", &version.to_string())?)?;
        }
        Ok(())
    }

    /// Removes a version of the handler from the host's folder, if the folder has this version.
    pub(crate) fn remove(&self, version: u32) -> Result<()> {
        let path = self.file(version);
        if version > 0 && path.exists() {
            fs::remove_file(path)?;
        }
        Ok(())
    }

    fn file(&self, version: u32) -> PathBuf {
        self.home.path(&format!("plugins/tally@{version}.0.0.wasm"))
    }

    pub(crate) fn is_undisturbed(&self) -> bool {
        self.fault.is_none()
    }

    /// Begins a disturbance of the host. Returns false if the disturbance needs a link to the store, and the host has
    /// no such link, because its store is embedded.
    pub(crate) fn disturb(&mut self, fault: HostFault, lasts: Duration) -> Result<bool> {
        match fault {
            HostFault::Paused => self.service.signal("STOP")?,
            HostFault::Killed => self.service.kill()?,
            HostFault::Stopped => self.end()?,
            HostFault::Store(mode) => match &self.to_store {
                Some(proxy) => proxy.set(mode)?,
                None => return Ok(false),
            },
            HostFault::Broker(mode) => self.to_broker.set(mode)?,
        }
        self.fault = Some((fault, Instant::now() + lasts));
        Ok(true)
    }

    pub(crate) fn end_expired_disturbance(&mut self, now: Instant) -> Result<()> {
        let Some((fault, _)) = self.fault.take_if(|(_, until)| *until <= now) else {
            return Ok(());
        };
        match fault {
            HostFault::Paused => self.service.signal("CONT"),
            HostFault::Killed | HostFault::Stopped => self.start_again(),
            HostFault::Store(_) => {
                self.to_store.as_ref().map_or(Ok(()), |proxy| proxy.set(Mode::Pass))
            }
            HostFault::Broker(_) => self.to_broker.set(Mode::Pass),
        }
    }

    /// Runs `meanwhile` while the host is paused. Afterwards the host continues with the accumulated events.
    pub(crate) fn while_paused(&self, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        self.service.signal("STOP")?;
        let done = meanwhile();
        self.service.signal("CONT")?;
        done
    }

    /// Restarts a host that ended because a server was unavailable for too long. Returns whether the host was
    /// restarted.
    pub(crate) fn revive(&mut self) -> Result<bool> {
        if matches!(self.fault, Some((HostFault::Killed | HostFault::Stopped, _))) {
            return Ok(false);
        }
        if self.service.is_running()? {
            return Ok(false);
        }
        let status = self.service.wait()?;
        ensure!(status.code() == Some(TEMPFAIL), "a host ended ({status}): {}", self.log());
        self.start_again()?;
        Ok(true)
    }

    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.service = Service::start(&self.home, &["run"])?;
        Ok(())
    }

    /// Stops the host by a signal. The host must end with exit code 0.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.service.end()
    }

    pub(crate) fn log(&self) -> String {
        let log = self.service.stderr();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}
