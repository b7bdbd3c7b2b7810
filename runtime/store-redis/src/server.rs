//! Checks the properties of the servers that affect stored data: version, eviction, durability,
//! replicas. The store performs the checks when it is opened.

use redis::cmd;

use super::connection::{RedisConnection, info_field};
use super::error::display_text;
use super::value::{array, bytes, text};
use ordain_store::{DurabilityReport, StoreError};

/// The oldest version with all commands that the scripts use.
const OLDEST_VERSION: (u64, u64) = (7, 0);

/// Refuses servers that could silently lose acknowledged events. Returns a description of the
/// durability of a commit on these servers.
pub(super) async fn inspect_servers(
    link: &RedisConnection,
    replicas: u32,
) -> Result<DurabilityReport, StoreError> {
    let infos =
        link.call_all_masters(cmd("INFO").arg("everything")).await.map_err(super::start_error)?;
    let mut fewest_replicas = u64::MAX;
    let mut appends = true;
    let mut reports_eviction = true;
    for info in infos {
        let info = String::from_utf8_lossy(&bytes(info).unwrap_or_default()).into_owned();
        check_version(info_field(&info, "redis_version").unwrap_or("unknown"))?;
        check_role(&info)?;
        let policy = info_field(&info, "maxmemory_policy");
        check_eviction(policy)?;
        reports_eviction &= policy.is_some();
        appends &= info_field(&info, "aof_enabled") == Some("1");
        let connected = info_field(&info, "connected_slaves").and_then(|count| count.parse().ok());
        fewest_replicas = fewest_replicas.min(connected.unwrap_or(0));
    }
    let syncs = if appends { appendfsync(link).await } else { None };
    let is_at_risk = !reports_eviction
        || !appends
        || syncs.as_deref() == Some("no")
        || fewest_replicas < replicas.into();
    let mut words =
        describe_durability(link.kind(), appends, syncs.as_deref(), replicas, fewest_replicas);
    if !reports_eviction {
        words.push_str(
            "; the server does not report whether it evicts keys when its memory is full: it \
             must not (maxmemory-policy noeviction)",
        );
    }
    Ok(DurabilityReport { description: words, is_at_risk })
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
    Err(StoreError::Unusable(format!(
        "the server is a replica, which accepts no writes: name its master, {}:{}, or the Sentinels \
         that monitor it",
        of("master_host"),
        of("master_port")
    )))
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

/// Returns the weakest `appendfsync` setting of all servers; `None` if a server hides the setting, as some hosted
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

fn describe_durability(
    kind: &str,
    appends: bool,
    syncs: Option<&str>,
    wanted: u32,
    connected: u64,
) -> String {
    let kept = match (appends, syncs) {
        (true, Some("always")) => {
            "each commit is on the server's disk before it is answered (appendfsync always), so \
             acknowledged events survive a crash of the server, but not the loss of its disk"
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
            "the server keeps a log (appendonly yes), but does not report how it syncs the log: with \
             less than `appendfsync always`, a crash loses the events acknowledged last"
        }
        (false, _) => {
            "the server keeps no log of its writes (appendonly no): a restart loses \
             EVERYTHING since its last snapshot. Set `appendonly yes` and `appendfsync always`"
        }
    };
    let replicas = match (wanted, connected) {
        (0, 0) => String::new(),
        (0, _) => "; a failover to a replica loses commits that had not reached it: durability = \
                   \"replicas:1\" reduces that loss"
            .to_owned(),
        (wanted, connected) if connected < u64::from(wanted) => format!(
            "; each commit waits for {wanted} {}, but a master has only {connected} now: until \
             it has more, no event is acknowledged",
            if wanted == 1 { "replica" } else { "replicas" }
        ),
        (1, _) => {
            "; each commit waits until a replica has it too: a failover to that replica loses \
                   nothing"
                .to_owned()
        }
        (wanted, _) => format!(
            "; each commit waits until {wanted} replicas have it too: a failover to one of them \
             loses nothing"
        ),
    };
    format!("{kind}: {kept}{replicas}")
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
        let refused = check_role(info).expect_err("a replica").to_string();
        assert!(refused.contains("10.0.0.1:6380"), "{refused}");
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
        let words = describe_durability("Redis", false, None, 0, 0);
        assert!(words.contains("EVERYTHING"), "{words}");
        let words = describe_durability("Redis", true, Some("everysec"), 2, 1);
        assert!(words.contains("second") && words.contains("only 1"), "{words}");
    }
}
