//! A host with its own ways to the servers, and what befalls it.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ordain_servers::{Mode, Proxy};
use ordain_tests::host::Home;
use ordain_tests::plugins::noted;
use ordain_tests::service::Service;

/// How the host says that something it needs was not there in time: whoever runs it starts it
/// again.
const TEMPFAIL: i32 = 75;

/// What befalls a host for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It is stopped, with all that it has open.
    Paused,
    /// It was killed.
    Killed,
    /// It has ended in order.
    Left,
    /// Its way to the store.
    Store(Mode),
    /// Its way to the broker.
    Broker(Mode),
}

pub(crate) struct Host {
    home: Home,
    service: Service,
    /// Where the store is in a folder of its own there is no way to it.
    to_store: Option<Proxy>,
    to_broker: Proxy,
    /// What is the matter with it, and until when.
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

    /// Puts a version of the handler into its folder, if that has none of it.
    pub(crate) fn put(&self, version: u32) -> Result<()> {
        let path = self.file(version);
        if version > 0 && !path.exists() {
            fs::write(path, noted("tally", &version.to_string())?)?;
        }
        Ok(())
    }

    /// Removes a version, if it has that.
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

    /// Lets something befall it for so long. Tells whether it could.
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

    /// Ends what is the matter with it, if its time has come.
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

    /// Does something while it stands still, which then goes on with what has piled up.
    pub(crate) fn while_paused(&self, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        self.service.signal("STOP")?;
        let done = meanwhile();
        self.service.signal("CONT")?;
        done
    }

    /// Starts it again where it gave up because a server was away for too long; whether it did.
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

    /// Ends it in order.
    pub(crate) fn end(&mut self) -> Result<()> {
        // Before its first word it does not listen for signals.
        let log = self.service.stderr_path();
        let has_begun = || fs::metadata(&log).is_ok_and(|it| it.len() > 0);
        self.service.until("its first word", has_begun)?;
        self.service.end()
    }

    /// What it said last.
    pub(crate) fn log(&self) -> String {
        let log = self.service.stderr();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}
