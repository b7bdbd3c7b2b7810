//! A host with its own links to the store and the broker, and the disturbances of this host.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ordain_servers::{Mode, Proxy};
use ordain_tests::host::Home;
use ordain_tests::plugins::noted;
use ordain_tests::service::Service;

/// The exit code of a host that waited too long for a required service. A supervisor restarts such a host.
const TEMPFAIL: i32 = 75;

/// A disturbance of a host that lasts for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The host is paused by the signal `STOP`. All its connections stay open.
    Paused,
    /// The host was killed.
    Killed,
    /// The host has ended cleanly.
    Left,
    /// The link to the store is disturbed.
    Store(Mode),
    /// The link to the broker is disturbed.
    Broker(Mode),
}

pub(crate) struct Host {
    home: Home,
    service: Service,
    /// The link to the store; `None` if the store is embedded in the host.
    to_store: Option<Proxy>,
    to_broker: Proxy,
    /// The current disturbance, and the time at which it ends.
    trouble: Option<(Trouble, Instant)>,
}

impl Host {
    pub(crate) fn start(home: Home, to_store: Option<Proxy>, to_broker: Proxy) -> Result<Self> {
        let service = Service::start(&home, &["run"])?;
        Ok(Self { home, service, to_store, to_broker, trouble: None })
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    /// Puts a version of the handler into the host's folder, if the folder lacks this version.
    pub(crate) fn put(&self, version: u32) -> Result<()> {
        let path = self.file(version);
        if version > 0 && !path.exists() {
            fs::write(path, noted("tally", &version.to_string())?)?;
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

    pub(crate) fn is_well(&self) -> bool {
        self.trouble.is_none()
    }

    /// Begins a disturbance of the host. Returns false if the host has no such link, because its store is embedded.
    pub(crate) fn trouble(&mut self, trouble: Trouble, lasts: Duration) -> Result<bool> {
        match trouble {
            Trouble::Paused => self.service.signal("STOP")?,
            Trouble::Killed => self.service.kill()?,
            Trouble::Left => self.end()?,
            Trouble::Store(mode) => match &self.to_store {
                Some(way) => way.set(mode)?,
                None => return Ok(false),
            },
            Trouble::Broker(mode) => self.to_broker.set(mode)?,
        }
        self.trouble = Some((trouble, Instant::now() + lasts));
        Ok(true)
    }

    /// Ends the disturbance, if its time is over.
    pub(crate) fn look_after(&mut self, now: Instant) -> Result<()> {
        let Some((trouble, _)) = self.trouble.take_if(|(_, until)| *until <= now) else {
            return Ok(());
        };
        match trouble {
            Trouble::Paused => self.service.signal("CONT"),
            Trouble::Killed | Trouble::Left => self.start_again(),
            Trouble::Store(_) => self.to_store.as_ref().map_or(Ok(()), |way| way.set(Mode::Pass)),
            Trouble::Broker(_) => self.to_broker.set(Mode::Pass),
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
        if matches!(self.trouble, Some((Trouble::Killed | Trouble::Left, _))) {
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

    /// Stops the host cleanly.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.service.end()
    }

    /// Returns the last log lines of the host.
    pub(crate) fn log(&self) -> String {
        let log = self.service.stderr();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}
