//! Checks the properties of the servers that affect stored data: version, eviction, durability and replicas. The store
//! makes these checks when it is opened and while it is open, and `ordain check --connect` reports the results.

use std::collections::BTreeSet;

use redis::cmd;

use super::connection::{RedisConnection, info_field};
use super::error::display_text;
use super::value::{array, bytes, text};
use ordain_store::{DurabilityReport, StoreError};
use ordain_util::finding::Finding;

/// The oldest version of Redis that has all commands that the scripts use.
const OLDEST_VERSION: (u64, u64) = (7, 0);

/// The description of a server that hides its `maxmemory-policy`.
const UNKNOWN_EVICTION_WARNING: &str = "the server does not report whether it evicts keys when its memory is full: it must not \
     evict keys (maxmemory-policy noeviction)";

/// The levels of durability of the servers' logs, from the weakest level to the strongest. The log (append-only file)
/// of a server contains each commit. The weakest log determines the level of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SyncLevel {
    /// At least one server keeps no log.
    NoLog,
    /// At least one server leaves syncing to its operating system.
    System,
    /// At least one server syncs its log only once a second.
    EverySecond,
    /// Each server syncs its log before it answers.
    Always,
}

pub(super) struct ServerSettings {
    /// The answer of each master to `INFO`.
    infos: Vec<String>,
    /// The weakest `appendfsync` setting; `None` if a master keeps no log, or hides the setting.
    syncs: Option<String>,
}

impl ServerSettings {
    pub(super) async fn read(link: &RedisConnection) -> Result<Self, StoreError> {
        let infos = link.call_all_masters(cmd("INFO").arg("everything")).await;
        let infos = infos.map_err(super::start_error)?.into_iter();
        let infos = infos
            .map(|info| String::from_utf8_lossy(&bytes(info).unwrap_or_default()).into_owned())
            .collect();
        let settings = Self { infos, syncs: None };
        let syncs = if settings.appends() { appendfsync(link).await } else { None };
        Ok(Self { syncs, ..settings })
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        for info in &self.infos {
            check_version(info_field(info, "redis_version").unwrap_or("unknown"))?;
            check_role(info)?;
            check_eviction(info_field(info, "maxmemory_policy"))?;
        }
        Ok(())
    }

    pub(super) fn durability(&self, kind: &str, replicas: u32) -> DurabilityReport {
        let reports_eviction = self.reports_eviction();
        let mut words = format!("{kind}: {}", self.describe_persistence());
        if let Some(replicas) = self.describe_replicas(replicas) {
            words.extend(["; ", replicas.as_str()]);
        }
        if !reports_eviction {
            words.extend(["; ", UNKNOWN_EVICTION_WARNING]);
        }
        let is_at_risk = !reports_eviction || self.may_lose_much() || self.lacks_replicas(replicas);
        DurabilityReport { description: words, is_at_risk }
    }

    pub(super) fn products(&self) -> String {
        let products: BTreeSet<String> = self.infos.iter().map(|info| product(info)).collect();
        products.into_iter().collect::<Vec<_>>().join(" and ")
    }

    /// Appends one finding for each setting of the servers that affects stored data.
    pub(super) fn report(&self, replicas: u32, findings: &mut Vec<Finding>) {
        if let Err(error) = self.check() {
            findings.push(match error {
                StoreError::Unavailable(reason) => Finding::unavailable(reason),
                error => Finding::error(error.to_string()),
            });
        } else if self.reports_eviction() {
            findings.push(Finding::note("maxmemory-policy noeviction"));
        } else {
            findings.push(Finding::warning(UNKNOWN_EVICTION_WARNING));
        }
        let persistence = self.describe_persistence();
        findings.push(if self.may_lose_much() {
            Finding::warning(persistence)
        } else {
            Finding::note(persistence)
        });
        let words = self.describe_replicas(replicas);
        let words = words.unwrap_or_else(|| "no replica is connected".to_owned());
        findings.push(if self.lacks_replicas(replicas) {
            Finding::warning(words)
        } else {
            Finding::note(words)
        });
    }

    pub(super) fn masters(&self) -> usize {
        self.infos.len()
    }

    /// Returns host and port of each replica, as the masters name them.
    pub(super) fn replicas(&self) -> Vec<(String, u16)> {
        self.infos.iter().flat_map(|info| replicas_of(info)).collect()
    }

    fn reports_eviction(&self) -> bool {
        self.infos.iter().all(|info| info_field(info, "maxmemory_policy").is_some())
    }

    fn appends(&self) -> bool {
        self.infos.iter().all(|info| info_field(info, "aof_enabled") == Some("1"))
    }

    /// Returns the level of the weakest log; `None` if a server hides its setting `appendfsync`.
    pub(super) fn sync_level(&self) -> Option<SyncLevel> {
        match (self.appends(), self.syncs.as_deref()) {
            (false, _) => Some(SyncLevel::NoLog),
            (true, Some("no")) => Some(SyncLevel::System),
            (true, Some("everysec")) => Some(SyncLevel::EverySecond),
            (true, Some("always")) => Some(SyncLevel::Always),
            (true, _) => None,
        }
    }

    /// Returns whether a crash of a server's machine can lose writes that are older than a few seconds.
    fn may_lose_much(&self) -> bool {
        !self.appends() || self.syncs.as_deref() == Some("no")
    }

    /// Returns the number of connected replicas of the master that has the fewest replicas.
    fn fewest_replicas(&self) -> u64 {
        let connected = |info: &String| {
            let count = info_field(info, "connected_slaves");
            count.and_then(|count| count.parse::<u64>().ok()).unwrap_or(0)
        };
        self.infos.iter().map(connected).min().unwrap_or(u64::MAX)
    }

    fn lacks_replicas(&self, wanted: u32) -> bool {
        self.fewest_replicas() < wanted.into()
    }

    fn describe_persistence(&self) -> &'static str {
        describe_persistence(self.appends(), self.syncs.as_deref())
    }

    fn describe_replicas(&self, wanted: u32) -> Option<String> {
        describe_replicas(wanted, self.fewest_replicas())
    }
}

/// Returns a warning if a replica would evict Redis keys when its memory is full. `info` is the replica's answer to
/// `INFO`. A replica has its own settings, which take effect when the replica becomes master.
pub(super) fn check_replica(replica: &str, info: &str) -> Option<Finding> {
    let policy = info_field(info, "maxmemory_policy").filter(|policy| *policy != "noeviction")?;
    Some(Finding::warning(format!(
        "the replica {replica} has maxmemory-policy {}: as a master, it would evict records and events when its \
         memory is full. Set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf)",
        display_text(policy)
    )))
}

/// Returns the name and the version of a server. Valkey reports two versions: its own, and the version of Redis with
/// which it is compatible.
fn product(info: &str) -> String {
    let field = |name| info_field(info, name).map(display_text);
    match field("valkey_version") {
        Some(version) => format!("Valkey {version}"),
        None => {
            format!("Redis {}", field("redis_version").unwrap_or_else(|| "unknown".to_owned()))
        }
    }
}

fn replicas_of(info: &str) -> Vec<(String, u16)> {
    let rows = (0..).map_while(|number| info_field(info, &format!("slave{number}")));
    let address = |row: &str| {
        let field = |name: &str| row.split(',').find_map(|part| part.strip_prefix(name));
        Some((field("ip=")?.to_owned(), field("port=")?.parse().ok()?))
    };
    rows.filter_map(address).collect()
}

fn check_version(version: &str) -> Result<(), StoreError> {
    let mut numbers = version.split('.').map(|part| part.parse::<u64>().ok());
    let found = (numbers.next().flatten(), numbers.next().flatten());
    match found {
        (Some(major), Some(minor)) if (major, minor) >= OLDEST_VERSION => Ok(()),
        _ => Err(StoreError::Unusable(format!(
            "the server is Redis {}; {}.{} or later is required",
            display_text(version),
            OLDEST_VERSION.0,
            OLDEST_VERSION.1
        ))),
    }
}

fn check_role(info: &str) -> Result<(), StoreError> {
    if info_field(info, "role") != Some("slave") {
        return Ok(());
    }
    let of = |name| display_text(info_field(info, name).unwrap_or("?"));
    let master = format!("{}:{}", of("master_host"), of("master_port"));
    // This error is temporary: after a failover, the server may soon be a master again, and the nodes of a Cluster soon
    // name the new master of a slot.
    let words = if info_field(info, "cluster_enabled") == Some("1") {
        format!("a master of the Cluster has just become a replica of {master}")
    } else {
        format!(
            "the server is a replica, which accepts no writes: name its master, {master}, or the Sentinels that \
             monitor it"
        )
    };
    Err(StoreError::Unavailable(words))
}

fn check_eviction(policy: Option<&str>) -> Result<(), StoreError> {
    match policy {
        None | Some("noeviction") => Ok(()),
        Some(policy) => Err(StoreError::Unusable(format!(
            "the server has maxmemory-policy {}: it would evict records and events when its memory \
             is full. Set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf)",
            display_text(policy)
        ))),
    }
}

/// Returns the weakest `appendfsync` setting of all masters; `None` if a server hides its setting, as some hosted
/// servers do.
async fn appendfsync(link: &RedisConnection) -> Option<String> {
    let answers = link.call_all_masters(cmd("CONFIG").arg("GET").arg("appendfsync")).await.ok()?;
    let settings = answers.into_iter().map(|answer| {
        let mut parts = match answer {
            redis::Value::Map(pairs) => pairs.into_iter().map(|(_, value)| value).collect(),
            answer => array(answer, "CONFIG GET").ok()?,
        };
        text(parts.pop()?)
    });
    let settings: Option<Vec<String>> = settings.collect();
    let weakest = ["no", "everysec", "always"];
    let rank = |setting: &String| weakest.iter().position(|known| known == setting);
    settings?.into_iter().min_by_key(rank)
}

fn describe_persistence(appends: bool, syncs: Option<&str>) -> &'static str {
    match (appends, syncs) {
        (true, Some("always")) => {
            "each commit is on the server's disk before it is answered (appendfsync always). Acknowledged events \
             therefore survive a crash of the server, but not the loss of its disk"
        }
        (true, Some("everysec")) => {
            "the server syncs once a second (appendfsync everysec): a crash of its machine loses \
             events acknowledged in the last second or two. `appendfsync always` loses nothing"
        }
        (true, Some("no")) => {
            "the server leaves syncing to its operating system (appendfsync no): a crash of its machine loses \
             events acknowledged in about the last half minute. `appendfsync always` loses nothing"
        }
        (true, _) => {
            "the server keeps a log (appendonly yes), but does not report how it syncs the log (allow the user `CONFIG \
             GET`). With any setting other than `appendfsync always`, a crash loses the events acknowledged last"
        }
        (false, _) => {
            "the server keeps no log of its writes (appendonly no): a restart loses \
             EVERYTHING since its last snapshot. Set `appendonly yes` and `appendfsync always`"
        }
    }
}

/// Returns a description of the replicas; `None` if no replica is connected and no commit waits for replicas.
fn describe_replicas(wanted: u32, connected: u64) -> Option<String> {
    let words = match (wanted, connected) {
        (0, 0) => return None,
        (0, _) => "a failover to a replica loses the commits that the replica has not received: durability = \
                   \"replicas:1\" reduces that loss"
            .to_owned(),
        (wanted, connected) if connected < u64::from(wanted) => format!(
            "each commit waits for {wanted} {}, but a master has only {connected} now: no event is acknowledged until \
             the master has enough replicas",
            if wanted == 1 { "replica" } else { "replicas" }
        ),
        (1, _) => "each commit waits until a replica also has the commit: a failover to that replica loses nothing"
            .to_owned(),
        (wanted, _) => format!(
            "each commit waits until {wanted} replicas also have the commit: a failover to one of these replicas loses \
             nothing"
        ),
    };
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused() {
        for version in ["7.0.0", "7.0.15", "7.2", "8.0.1", "10.0.0"] {
            assert!(check_version(version).is_ok(), "{version}");
        }
        for version in ["6.2.14", "3.0", "unknown", ""] {
            assert!(check_version(version).is_err(), "{version}");
        }
    }

    #[test]
    fn replicas_are_refused() {
        check_role("role:master\r\nconnected_slaves:1\r\n").expect("a master");
        let info = "role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6380\r\n";
        // The errors are temporary: after a failover, a later try may find a master.
        for (info, words) in [
            (info.to_owned(), "is a replica"),
            (format!("{info}cluster_enabled:1\r\n"), "of the Cluster"),
        ] {
            let refused = check_role(&info).expect_err("a replica");
            assert!(matches!(refused, StoreError::Unavailable(_)), "{refused}");
            let refused = refused.to_string();
            assert!(refused.contains("10.0.0.1:6380") && refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn servers_that_evict_are_refused() {
        assert!(check_eviction(None).is_ok() && check_eviction(Some("noeviction")).is_ok());
        let refused =
            check_eviction(Some("allkeys-lru")).expect_err("an eviction policy").to_string();
        assert!(refused.contains("allkeys-lru") && refused.contains("noeviction"), "{refused}");
    }

    #[test]
    fn durability_is_described() {
        let settings = |info: &str, syncs: Option<&str>| ServerSettings {
            infos: vec![info.to_owned()],
            syncs: syncs.map(str::to_owned),
        };
        let volatile = settings("aof_enabled:0\r\nmaxmemory_policy:noeviction\r\n", None);
        let report = volatile.durability("Redis", 0);
        assert!(report.is_at_risk && report.description.contains("EVERYTHING"), "{report:?}");
        let info = "aof_enabled:1\r\nconnected_slaves:1\r\nmaxmemory_policy:noeviction\r\n";
        let report = settings(info, Some("everysec")).durability("Redis", 2);
        let words = &report.description;
        assert!(words.contains("second") && words.contains("; each commit"), "{words}");
        assert!(report.is_at_risk && words.contains("only 1"), "{words}");
        let report = settings(info, Some("always")).durability("Redis", 1);
        assert!(!report.is_at_risk, "{report:?}");
    }

    /// Valkey reports two versions. `INFO` lists the replicas in numbered fields.
    #[test]
    fn products_and_replicas_are_read() {
        assert_eq!(product("redis_version:7.0.15\r\nredis_mode:standalone\r\n"), "Redis 7.0.15");
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\n";
        assert_eq!(product(valkey), "Valkey 8.1.1");
        let info = "role:master\r\nslave0:ip=10.0.0.1,port=6380,state=online,offset=1,lag=0\r\n\
                    slave1:ip=::1,port=6381,state=online,offset=1,lag=0\r\n";
        assert_eq!(replicas_of(info), [("10.0.0.1".to_owned(), 6380), ("::1".to_owned(), 6381)]);
        let warning = check_replica("10.0.0.1:6380", "maxmemory_policy:allkeys-lru\r\n");
        assert!(warning.is_some_and(|finding| finding.text.contains("10.0.0.1:6380")));
        assert_eq!(check_replica("10.0.0.1:6380", "maxmemory_policy:noeviction\r\n"), None);
    }
}
