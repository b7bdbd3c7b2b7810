//! Tests of a proxy in front of a real server. The proxy loses or holds back bytes, and cuts connections.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Result;
use ordain_servers::{
    Connection, Mode, Proxy, ProxyCounts, Redis, Reply, SECOND_ADDRESS, wait_until,
};

fn both() -> Result<(Redis, Proxy)> {
    let redis = Redis::start(&[])?;
    let proxy = Proxy::start(redis.port())?;
    Ok((redis, proxy))
}

#[test]
fn write_with_a_lost_reply_is_executed() -> Result<()> {
    let (redis, proxy) = both()?;
    proxy.lose_replies(1, "EVAL");
    let mut connection = Connection::open(proxy.port())?;
    assert_eq!(connection.command(&["INCR", "others"])?, Reply::Int(1));
    let script = "return redis.call('INCR', 'a')";
    assert!(connection.command(&["EVAL", script, "0"]).is_err());
    assert_eq!(redis.command(&["GET", "a"])?, Reply::Text("1".to_owned()));
    let mut again = Connection::open(proxy.port())?;
    assert_eq!(again.command(&["EVAL", script, "0"])?, Reply::Int(2));
    assert_eq!(
        proxy.counts(),
        ProxyCounts { accepted: 2, replies_lost: 1, ..ProxyCounts::default() }
    );
    Ok(())
}

#[test]
fn replies_before_a_lost_reply_arrive() -> Result<()> {
    let (redis, proxy) = both()?;
    proxy.lose_replies(2, "needle");
    for round in 1..=2 {
        let mut connection = Connection::open(proxy.port())?;
        let large = "x".repeat(300_000);
        connection.send(&["SET", "large", &large])?;
        connection.send(&["GET", "large"])?;
        connection.send(&["SET", "needle", &round.to_string()])?;
        assert_eq!(connection.receive()?, Reply::Text("OK".to_owned()));
        assert_eq!(connection.receive()?, Reply::Text(large));
        assert!(connection.receive().is_err());
        assert_eq!(redis.command(&["GET", "needle"])?, Reply::Text(round.to_string()));
    }
    assert_eq!(proxy.counts().replies_lost, 2);
    Connection::open(proxy.port())?.command(&["SET", "needle", "3"])?;
    Ok(())
}

#[test]
fn lost_request_is_not_executed() -> Result<()> {
    let (redis, proxy) = both()?;
    proxy.lose_requests(1, "INCR");
    assert!(Connection::open(proxy.port())?.command(&["INCR", "a"]).is_err());
    assert_eq!(redis.command(&["GET", "a"])?, Reply::Nil);
    assert_eq!(Connection::open(proxy.port())?.command(&["INCR", "a"])?, Reply::Int(1));
    assert_eq!(proxy.counts().requests_lost, 1);
    Ok(())
}

#[test]
fn held_request_blocks_later_requests_of_its_connection() -> Result<()> {
    let (redis, proxy) = both()?;
    proxy.hold_request("needle");
    let mut connection = Connection::open(proxy.port())?;
    connection.send(&["INCR", "a"])?;
    connection.send(&["SET", "needle", "1"])?;
    connection.send(&["INCR", "a"])?;
    assert_eq!(connection.receive()?, Reply::Int(1));
    wait_until("a held request", || Ok(proxy.counts().requests_held == 1))?;
    assert_eq!(Connection::open(proxy.port())?.command(&["GET", "needle"])?, Reply::Nil);
    redis.command(&["CLIENT", "KILL", "TYPE", "normal"])?;
    assert!(connection.receive().is_err());
    assert_eq!(
        redis.command(&["MGET", "a", "needle"])?.parts(),
        [Reply::Text("1".to_owned()), Reply::Nil]
    );
    Ok(())
}

#[test]
fn every_reply_is_lost_in_mode_cut_replies() -> Result<()> {
    let (redis, proxy) = both()?;
    proxy.set(Mode::CutReplies)?;
    for _ in 0..3 {
        assert!(Connection::open(proxy.port())?.command(&["INCR", "a"]).is_err());
    }
    assert_eq!(redis.command(&["GET", "a"])?, Reply::Text("3".to_owned()));
    proxy.set(Mode::Pass)?;
    assert_eq!(Connection::open(proxy.port())?.command(&["INCR", "a"])?, Reply::Int(4));
    assert_eq!(proxy.counts().replies_lost, 3);
    Ok(())
}

#[test]
fn cut_closes_open_connections() -> Result<()> {
    let (_redis, proxy) = both()?;
    let mut connections = [Connection::open(proxy.port())?, Connection::open(proxy.port())?];
    for connection in &mut connections {
        connection.command(&["PING"])?;
    }
    proxy.cut();
    for connection in &mut connections {
        assert!(connection.command(&["PING"]).is_err());
    }
    Connection::open(proxy.port())?.command(&["PING"])?;
    assert_eq!(proxy.counts().cut, 2);
    Ok(())
}

#[test]
fn connections_are_refused_until_the_mode_changes() -> Result<()> {
    let (_redis, proxy) = both()?;
    for _ in 0..20 {
        let mut open = Connection::open(proxy.port())?;
        open.command(&["PING"])?;
        proxy.set(Mode::Refuse)?;
        assert!(open.command(&["PING"]).is_err());
        let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port()));
        let error = refused.expect_err("no listener");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        proxy.set(Mode::Pass)?;
        Connection::open(proxy.port())?.command(&["PING"])?;
    }
    Ok(())
}

#[test]
fn delayed_requests_arrive_later() -> Result<()> {
    let (_redis, proxy) = both()?;
    let by = Duration::from_millis(100);
    let mut connection = Connection::open(proxy.port())?;
    proxy.set(Mode::Delay(by))?;
    let started = Instant::now();
    connection.command(&["PING"])?;
    assert!(started.elapsed() >= by);
    Ok(())
}

#[test]
fn bytes_held_by_a_half_open_proxy_arrive_later() -> Result<()> {
    let (redis, proxy) = both()?;
    let mut open = Connection::open(proxy.port())?;
    open.command(&["PING"])?;
    proxy.set(Mode::HalfOpen)?;
    open.send(&["INCR", "a"])?;
    let mut new = Connection::open(proxy.port())?;
    new.send(&["INCR", "a"])?;
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(redis.command(&["GET", "a"])?, Reply::Nil);
    proxy.set(Mode::Pass)?;
    let sum: i64 = [open.receive()?, new.receive()?].iter().filter_map(Reply::int).sum();
    assert_eq!(sum, 1 + 2);
    Ok(())
}

/// Only the connection that the test selects becomes silent, and this connection stays silent.
#[test]
fn silence_affects_only_one_connection() -> Result<()> {
    let (redis, proxy) = both()?;
    let mut silent = Connection::open(proxy.port())?;
    silent.command(&["ECHO", "one"])?;
    let mut other = Connection::open(proxy.port())?;
    other.command(&["ECHO", "other"])?;
    assert_eq!(proxy.silence("one"), 1);
    silent.send(&["INCR", "a"])?;
    assert_eq!(other.command(&["INCR", "b"])?, Reply::Int(1));
    assert_eq!(Connection::open(proxy.port())?.command(&["INCR", "b"])?, Reply::Int(2));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(redis.command(&["GET", "a"])?, Reply::Nil);
    Ok(())
}

/// A request arrives in two parts. The proxy must keep each byte of the client only once, in the order of the client.
#[test]
fn silence_finds_a_request_that_arrives_in_parts() -> Result<()> {
    let (_redis, proxy) = both()?;
    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port()))?;
    client.write_all(b"*1\r\n$4\r\nPI")?;
    std::thread::sleep(Duration::from_millis(100));
    client.write_all(b"NG\r\n")?;
    let mut answer = [0; 7];
    client.read_exact(&mut answer)?;
    assert_eq!(&answer, b"+PONG\r\n");
    assert_eq!(proxy.silence("PI*1"), 0);
    assert_eq!(proxy.silence("PING"), 1);
    Ok(())
}

/// A second proxy on the port of the first proxy, but at another address, works even if the first proxy refuses
/// connections.
#[test]
fn proxy_at_another_address_works_without_the_first() -> Result<()> {
    let (_redis, proxy) = both()?;
    let address: Ipv4Addr = SECOND_ADDRESS.parse()?;
    let beside = proxy.start_beside(address)?;
    assert_eq!(beside.port(), proxy.port());
    proxy.set(Mode::Refuse)?;
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).is_err());
    assert!(TcpStream::connect((address, beside.port())).is_ok());
    Ok(())
}

#[test]
fn proxy_passes_again_after_its_server_restarts() -> Result<()> {
    let (redis, proxy) = both()?;
    let mut open = Connection::open(proxy.port())?;
    open.command(&["SET", "a", "1"])?;
    redis.kill()?;
    assert!(open.command(&["PING"]).is_err());
    assert!(Connection::open(proxy.port())?.command(&["PING"]).is_err());
    redis.restart()?;
    assert_eq!(
        Connection::open(proxy.port())?.command(&["GET", "a"])?,
        Reply::Text("1".to_owned())
    );
    Ok(())
}
