//! The hosts of a round. Like a supervisor, the test restarts a host that ended because the store lost the host's
//! claims.

use anyhow::{Result, ensure};
use ordain_servers::wait_until;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::receiver::{Kind, Receiver, WENT_BACK};

/// Hosts that use the same store.
pub(crate) struct Fleet {
    pub(crate) hosts: Vec<Receiver>,
    /// True if a host has ended during the round. The sum of the hosts' counters is then incomplete, because a counter
    /// starts at 0 in each process.
    pub(crate) has_ended: bool,
}

impl Fleet {
    /// Starts hosts, and waits until they are ready.
    pub(crate) fn start(kind: &Kind, count: usize) -> Result<Self> {
        let hosts = (0..count).map(|_| Receiver::start(kind)).collect::<Result<_>>()?;
        let mut fleet = Self { hosts, has_ended: false };
        fleet.until_ready()?;
        Ok(fleet)
    }

    /// Draws one or more hosts at random, and returns their indices in `hosts`.
    pub(crate) fn draw(&self, random: &mut ChaCha8Rng) -> Vec<usize> {
        let first = random.random_range(0..self.hosts.len());
        let is_drawn = |number: &usize| *number == first || random.random_bool(0.3);
        (0..self.hosts.len()).filter(is_drawn).collect()
    }

    /// Kills the hosts with the given indices.
    pub(crate) fn kill(&mut self, victims: &[usize]) -> Result<()> {
        self.has_ended |= !victims.is_empty();
        victims.iter().try_for_each(|number| self.hosts[*number].service.kill())
    }

    /// Restarts the killed hosts with the given indices.
    pub(crate) fn restart(&mut self, victims: &[usize]) -> Result<()> {
        victims.iter().try_for_each(|number| self.hosts[*number].begin_again())
    }

    /// Restarts the hosts that ended because the store lost their claims. A host without other hosts must not end: it
    /// wrote its claims long before the writes that the store may lose.
    pub(crate) fn restart_ended(&mut self) -> Result<()> {
        let are_several = self.hosts.len() > 1;
        for host in &mut self.hosts {
            if host.service.is_running()? {
                continue;
            }
            let log = host.service.stderr();
            ensure!(are_several && log.contains(WENT_BACK), "a host ended: {log}");
            self.has_ended = true;
            host.begin_again()?;
        }
        Ok(())
    }

    /// Waits until all hosts are ready.
    pub(crate) fn until_ready(&mut self) -> Result<()> {
        wait_until("hosts that are ready", || {
            self.restart_ended()?;
            Ok(self.hosts.iter_mut().all(Receiver::is_ready))
        })
    }

    /// Returns how many events the hosts have counted as lost since their starts.
    pub(crate) fn counted(&mut self) -> Result<u64> {
        self.hosts.iter_mut().map(Receiver::lost).sum()
    }

    /// Returns how many events the hosts have counted as lost since their starts. Returns an error if the records in
    /// the log of a host state another number than its counter.
    pub(crate) fn counted_and_logged(&mut self) -> Result<u64> {
        self.hosts.iter_mut().map(Receiver::lost_and_logged).sum()
    }
}
