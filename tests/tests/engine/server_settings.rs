//! Tests of a running host that checks the settings of its Redis servers again after its start.

use std::time::Duration;

use anyhow::{Result, ensure};
use ordain_servers::{Options, Redis, Sentinel, wait_until};
use ordain_tests::http;
use ordain_tests::service::Service;

use super::check_connect::home;

/// The time for which the group of Redis servers has no master. The host checks every five seconds whether a connection
/// to the store broke, so at least one check finds no master.
const OUTAGE: Duration = Duration::from_secs(8);
const AT_RISK: &str = "store may lose data: ";

/// While the host runs, the eviction policy of the replica changes, and the replica becomes master. The host must
/// report the policy. The servers do not answer for longer than the interval between two checks, so the first check
/// after the broken connection fails, and the host must check again.
#[test]
fn eviction_policy_of_new_master_is_reported() -> Result<()> {
    let group = Sentinel::start()?;
    let home = home(&group.url())?;
    let mut service = Service::start(&home, &["run"])?;
    http::ready(&mut service)?;
    group.until_replicated()?;
    group.replica().command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])?;
    group.down_after(OUTAGE)?;
    group.master().kill()?;
    wait_until("a Sentinel that names the replica as master", || {
        Ok(group.named()? == group.replica().port())
    })?;
    group.until_replaced()?;
    service.until_says(&format!("{AT_RISK}the server has maxmemory-policy allkeys-lru"))?;
    service.end()
}

/// The settings of a running server change: it syncs its append-only file less often, and later evicts keys when its
/// memory is full. No connection breaks, so only the regular check of the settings can find the changes. The host has a
/// short interval between two such checks.
#[test]
fn weaker_settings_of_running_server_are_reported() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = home(&redis.url())?;
    // With this divisor, the host checks the settings every six seconds instead of every five minutes.
    let mut service = Service::start(&home, &["--wait-divisor=50", "run"])?;
    http::ready(&mut service)?;
    for (setting, value, words) in [
        ("appendfsync", "everysec", "Redis: the server syncs once a second (appendfsync everysec)"),
        (
            "appendfsync",
            "no",
            "Redis: the server leaves syncing to its operating system (appendfsync no)",
        ),
        ("maxmemory-policy", "allkeys-lru", "the server has maxmemory-policy allkeys-lru"),
    ] {
        redis.command(&["CONFIG", "SET", setting, value])?;
        service.until_says(&format!("{AT_RISK}{words}"))?;
    }
    let log = service.stderr();
    ensure!(!log.contains("did not complete a request"), "a connection broke: {log}");
    service.end()
}

/// While the host runs, its Redis user loses the right to read the settings. The host must report that it cannot check
/// the settings, and must not report that the store may lose data. When the user has the right again, the host must
/// check the settings.
#[test]
fn refused_check_of_settings_is_no_risk() -> Result<()> {
    let rights = "~ordain:* +@all -@dangerous +info +config|get";
    let options = Options::new().password("secret").user("shop", "right-secret", rights);
    let redis = Redis::with(&options)?;
    let home = home(&format!("redis://shop:right-secret@127.0.0.1:{}", redis.port()))?;
    let mut service = Service::start(&home, &["--wait-divisor=50", "run"])?;
    http::ready(&mut service)?;
    redis.command(&["ACL", "SETUSER", "shop", "-info"])?;
    service.until_says("settings of the store's servers not checked: ")?;
    let log = service.stderr();
    let line = log.lines().find(|line| line.contains("not checked")).unwrap_or_default();
    ensure!(line.contains("info") && line.contains("Ordain repeats the check"), "{log}");
    ensure!(!log.contains(AT_RISK) && !log.contains("secret"), "{log}");
    redis.command(&["CONFIG", "SET", "appendfsync", "no"])?;
    redis.command(&["ACL", "SETUSER", "shop", "+info"])?;
    service.until_says(&format!("{AT_RISK}Redis: the server leaves syncing"))?;
    service.end()
}
