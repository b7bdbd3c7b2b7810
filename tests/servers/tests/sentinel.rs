//! Tests of a Sentinel. A failover makes the replica the master, and a second failover makes the first master the
//! master again.

use std::time::Duration;

use anyhow::Result;
use ordain_servers::{Connection, Mode, Options, Redis, Reply, Sentinel, wait_until};

fn get(redis: &Redis, key: &str) -> Result<Reply> {
    redis.command(&["GET", key])
}

#[test]
fn killed_master_is_replaced_and_can_become_master_again() -> Result<()> {
    let group = Sentinel::start()?;
    let first = group.master().port();
    assert_eq!(group.named()?, first);
    let mut master = group.master().connect()?;
    master.command(&["SET", "a", "1"])?;
    assert_eq!(master.command(&["WAIT", "1", "5000"])?, Reply::Int(1));

    let took = group.failover()?;
    assert!(took > Duration::ZERO);
    let second = group.master().port();
    assert_ne!(second, first);
    assert_eq!(group.named()?, second);
    assert_eq!(get(group.master(), "a")?, Reply::Text("1".to_owned()));
    group.master().command(&["SET", "b", "1"])?;

    group.rejoin()?;
    assert_eq!(group.replica().port(), first);
    assert_eq!(get(group.replica(), "b")?, Reply::Text("1".to_owned()));
    let refused = group.replica().attempt(&["SET", "c", "1"])?;
    assert!(matches!(&refused, Reply::Error(error) if error.starts_with("READONLY")));

    group.failover()?;
    assert_eq!(group.named()?, first);
    group.master().command(&["SET", "d", "1"])?;
    group.rejoin()?;
    assert_eq!(get(group.replica(), "d")?, Reply::Text("1".to_owned()));
    Ok(())
}

#[test]
fn sentinel_fails_over_servers_with_a_password() -> Result<()> {
    let group = Sentinel::with(&Options::new().password("secret"))?;
    group.failover()?;
    group.master().command(&["SET", "a", "1"])?;
    assert!(group.url().starts_with("redis://127.0.0.1:"));
    assert_eq!(group.servers()[1].port(), group.master().port());
    Ok(())
}

#[test]
fn sentinel_announces_the_proxies_of_servers() -> Result<()> {
    let group = Sentinel::behind_proxies(&Options::new())?;
    let [first, second] = group.proxies() else { anyhow::bail!("two proxies were expected") };
    assert_eq!(group.named()?, first.port());
    group.failover()?;
    assert_eq!(group.named()?, second.port());
    second.lose_replies(1, "INCR");
    assert!(Connection::open(second.port())?.command(&["INCR", "a"]).is_err());
    assert_eq!(Connection::open(second.port())?.command(&["INCR", "a"])?, Reply::Int(2));

    group.rejoin()?;
    // The Sentinel considers a disconnected master down, but the master still accepts writes.
    group.down_after(Duration::from_secs(1))?;
    second.set(Mode::HalfOpen)?;
    wait_until("another master", || Ok(group.named()? == first.port()))?;
    wait_until("a write", || Ok(group.servers()[0].command(&["INCR", "a"]).is_ok()))?;
    assert_eq!(group.servers()[1].command(&["INCR", "a"])?, Reply::Int(3));
    Ok(())
}

/// A master that is cut off serves only the clients that were connected before the split. When the split ends, the
/// master discards the writes that these clients have made during the split.
#[test]
fn split_master_is_replaced_and_becomes_a_replica() -> Result<()> {
    let group = Sentinel::start()?;
    for round in ["1", "2"] {
        let old = group.master();
        let mut client = old.connect()?;
        client.command(&["SET", "before", round])?;
        let mut cut_off = group.cut_off()?;
        assert!(cut_off.has_clients()?);
        assert!(
            old.attempt(&["GET", "before"]).is_ok_and(|reply| matches!(reply, Reply::Error(_)))
        );
        client.command(&["SET", "lost", round])?;
        group.until_replaced()?;
        client.command(&["SET", "lost", round])?;
        assert_ne!(group.master().port(), old.port());
        assert_eq!(group.named()?, group.master().port());
        assert_eq!(get(group.master(), "before")?, Reply::Text(round.to_owned()));
        drop(client);
        wait_until("a master without clients", || Ok(!cut_off.has_clients()?))?;
        group.heal_split()?;
        assert_eq!(get(group.replica(), "before")?, Reply::Text(round.to_owned()));
        assert_eq!(get(group.replica(), "lost")?, Reply::Nil);
        assert!(cut_off.connection().command(&["PING"]).is_err());
    }
    group.failover()?;
    group.rejoin()
}

/// After a restart, a silenced replica lacks the writes that arrived during its pause, because it did not read them.
#[test]
fn silent_replica_lacks_later_writes() -> Result<()> {
    let group = Sentinel::start()?;
    group.master().command(&["SET", "a", "1"])?;
    group.silence_replica()?;
    group.master().command(&["SET", "a", "2"])?;
    let _cut_off = group.cut_off()?;
    group.restart_replica()?;
    group.until_replaced()?;
    assert_eq!(get(group.master(), "a")?, Reply::Text("1".to_owned()));
    group.heal_split()?;
    assert_eq!(get(group.replica(), "a")?, Reply::Text("1".to_owned()));
    Ok(())
}
