//! Tests of a Cluster whose slots move, and whose nodes a test kills and starts again.

use anyhow::{Context, Result};
use ordain_servers::{Cluster, Connection, Options, Redis, Reply};

/// Returns the error with which a node refuses a command.
fn refused(node: &Redis, command: &[&str]) -> Result<String> {
    match node.attempt(command)? {
        Reply::Error(error) => Ok(error),
        reply => anyhow::bail!("the reply to {command:?} was {reply:?}"),
    }
}

#[test]
fn slot_moves_in_steps_and_restarted_nodes_serve_again() -> Result<()> {
    let cluster = Cluster::start(3)?;
    every_master_owns_keys(&cluster)?;
    a_slot_moves(&cluster)?;
    a_node_comes_back(&cluster)
}

fn every_master_owns_keys(cluster: &Cluster) -> Result<()> {
    let mut owners = [0; 3];
    for number in 0..30 {
        let key = format!("key:{number}");
        let owner = cluster.owner(cluster.slot(&key)?)?;
        owners[owner] += 1;
        for (index, node) in cluster.nodes().iter().enumerate() {
            if index == owner {
                node.command(&["SET", &key, "1"])?;
            } else {
                assert!(refused(node, &["SET", &key, "1"])?.starts_with("MOVED "));
            }
        }
    }
    assert!(owners.iter().all(|keys| *keys > 0), "{owners:?}");
    Ok(())
}

fn a_slot_moves(cluster: &Cluster) -> Result<()> {
    let slot = cluster.slot("{a}")?;
    let old = cluster.owner(slot)?;
    let new = (old + 1) % 3;
    let [from, to] = [&cluster.nodes()[old], &cluster.nodes()[new]];
    let keys = ["{a}1", "{a}2"];
    for key in keys {
        from.command(&["SET", key, "1"])?;
    }
    let migration = cluster.migrate(slot, new)?;
    assert_eq!((migration.from().port(), migration.to().port()), (from.port(), to.port()));
    assert_eq!(from.command(&["MGET", "{a}1", "{a}2"])?.parts().len(), 2);
    assert_eq!(migration.move_keys(1)?, 1);

    let is_kept =
        |key: &&str| from.attempt(&["GET", key]).is_ok_and(|reply| reply.text().is_some());
    let (kept_keys, moved_keys): (Vec<&str>, Vec<&str>) = keys.iter().partition(|key| is_kept(key));
    let kept_key = *kept_keys.first().context("the old node has no key of the slot")?;
    let moved_key = *moved_keys.first().context("the new node has no key of the slot")?;
    let redirection = format!("ASK {slot} 127.0.0.1:{}", to.port());
    assert_eq!(refused(from, &["GET", moved_key])?, redirection);
    assert_eq!(refused(from, &["SET", "{a}new", "1"])?, redirection);
    assert!(refused(from, &["MGET", kept_key, moved_key])?.starts_with("TRYAGAIN"));
    let moved = format!("MOVED {slot} 127.0.0.1:{}", from.port());
    assert_eq!(refused(to, &["GET", moved_key])?, moved);
    let mut connection = to.connect()?;
    connection.command(&["ASKING"])?;
    assert_eq!(connection.command(&["GET", moved_key])?, Reply::Text("1".to_owned()));

    migration.finish()?;
    assert_eq!(cluster.owner(slot)?, new);
    assert_eq!(to.command(&["MGET", "{a}1", "{a}2"])?.parts().len(), 2);
    let moved = format!("MOVED {slot} 127.0.0.1:{}", to.port());
    assert_eq!(refused(from, &["GET", kept_key])?, moved);
    cluster.until_ready()
}

fn a_node_comes_back(cluster: &Cluster) -> Result<()> {
    let slot = cluster.slot("{a}")?;
    let owner = &cluster.nodes()[cluster.owner(slot)?];
    owner.kill()?;
    owner.restart()?;
    cluster.until_ready()?;
    assert_eq!(owner.command(&["GET", "{a}1"])?, Reply::Text("1".to_owned()));
    Ok(())
}

#[test]
fn cluster_with_a_password_serves_migrates_and_has_replicas() -> Result<()> {
    let mut cluster = Cluster::with(3, &Options::new().password("secret"))?;
    let slot = cluster.slot("a")?;
    let owner = cluster.owner(slot)?;
    cluster.nodes()[owner].command(&["SET", "a", "1"])?;
    let other = (owner + 1) % 3;
    cluster.migrate(slot, other)?.finish()?;
    assert_eq!(cluster.nodes()[other].command(&["GET", "a"])?, Reply::Text("1".to_owned()));
    assert!(cluster.urls().iter().all(|url| url.starts_with("redis://:secret@127.0.0.1:")));
    cluster.add_replicas()?;
    assert_eq!(cluster.replica(other).command(&["DBSIZE"])?, Reply::Int(1));
    Ok(())
}

#[test]
fn nodes_behind_proxies_announce_the_proxies() -> Result<()> {
    let cluster = Cluster::behind_proxies(3, &Options::new())?;
    let slot = cluster.slot("a")?;
    let owner = cluster.owner(slot)?;
    let other = &cluster.proxies()[(owner + 1) % 3];
    let proxy = &cluster.proxies()[owner];
    let mut connection = Connection::open(other.port())?;
    let moved = Reply::Error(format!("MOVED {slot} 127.0.0.1:{}", proxy.port()));
    assert_eq!(connection.attempt(&["INCR", "a"])?, moved);
    proxy.lose_replies(1, "INCR");
    assert!(Connection::open(proxy.port())?.command(&["INCR", "a"]).is_err());
    assert_eq!(Connection::open(proxy.port())?.command(&["INCR", "a"])?, Reply::Int(2));

    cluster.nodes()[owner].restart()?;
    cluster.until_ready()?;
    assert_eq!(connection.attempt(&["INCR", "a"])?, moved);
    assert!(cluster.urls()[owner].ends_with(&proxy.port().to_string()));
    Ok(())
}
