//! A Sentinel that fails over, and back.

use std::time::Duration;

use anyhow::Result;
use ordain_servers::{Options, Redis, Reply, Sentinel};

fn get(redis: &Redis, key: &str) -> Result<Reply> {
    redis.command(&["GET", key])
}

#[test]
fn a_master_that_is_killed_is_followed_by_its_replica_and_back() -> Result<()> {
    let group = Sentinel::start()?;
    let first = group.master().port();
    assert_eq!(group.named()?, first);
    let mut master = group.master().connect()?;
    master.command(&["SET", "a", "1"])?;
    assert_eq!(master.command(&["WAIT", "1", "5000"])?, Reply::Int(1));

    let took = group.failover()?;
    assert!(took > Duration::from_millis(500), "{took:?}");
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
fn servers_under_a_sentinel_may_ask_for_a_password() -> Result<()> {
    let group = Sentinel::with(&Options::new().password("secret"))?;
    group.failover()?;
    group.master().command(&["SET", "a", "1"])?;
    assert!(group.url().starts_with("redis://127.0.0.1:"));
    assert_eq!(group.servers()[1].port(), group.master().port());
    Ok(())
}
