//! The hosts of a round. Like a supervisor, the test restarts a host that ended because the store lost the host's
//! claims.

use anyhow::{Result, ensure};
use ordain_servers::wait_until;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::events::now;
use super::receiver::{Kind, Receiver, WENT_BACK};

pub(crate) struct Fleet {
    pub(crate) hosts: Vec<Receiver>,
    /// The time when the test last killed a host, or noticed that a host had ended, in ms since 1970. No process
    /// remembers the events that such a host had accepted, or the commits that it had made.
    pub(crate) ended_at: Option<i64>,
}

impl Fleet {
    /// Starts hosts, and waits until they are ready.
    pub(crate) fn start(kind: &Kind, count: usize) -> Result<Self> {
        let hosts = (0..count).map(|_| Receiver::start(kind)).collect::<Result<_>>()?;
        let mut fleet = Self { hosts, ended_at: None };
        fleet.until_ready()?;
        Ok(fleet)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }

    /// Draws one or more hosts at random, and returns their indices in `hosts`.
    pub(crate) fn draw(&self, random: &mut ChaCha8Rng) -> Vec<usize> {
        let first = random.random_range(0..self.hosts.len());
        let is_drawn = |number: &usize| *number == first || random.random_bool(0.3);
        (0..self.hosts.len()).filter(is_drawn).collect()
    }

    pub(crate) fn kill(&mut self, victims: &[usize]) -> Result<()> {
        victims.iter().try_for_each(|number| self.hosts[*number].service.kill())?;
        if !victims.is_empty() {
            self.ended_at = Some(now());
        }
        Ok(())
    }

    pub(crate) fn restart(&mut self, victims: &[usize]) -> Result<()> {
        victims.iter().try_for_each(|number| self.hosts[*number].begin_again())
    }

    /// Restarts the hosts that ended because the store lost their claims. If the round has only one host, this host
    /// must not end, because it wrote its claims long before the writes that the store may lose.
    pub(crate) fn restart_ended(&mut self) -> Result<()> {
        let are_several = self.hosts.len() > 1;
        for host in &mut self.hosts {
            if host.service.is_running()? {
                continue;
            }
            let log = host.service.stderr();
            ensure!(are_several && log.contains(WENT_BACK), "a host ended: {log}");
            self.ended_at = Some(now());
            host.begin_again()?;
        }
        Ok(())
    }

    /// Waits until all hosts are ready. Meanwhile, restarts the hosts that end because the store lost their claims.
    pub(crate) fn until_ready(&mut self) -> Result<()> {
        wait_until("hosts that are ready", || {
            self.restart_ended()?;
            Ok(self.hosts.iter_mut().all(Receiver::is_ready))
        })
    }

    pub(crate) fn check_counters(&mut self) -> Result<()> {
        self.hosts.iter_mut().try_for_each(Receiver::check_counters)
    }
}
