//! Tests of the address of the admin listener, of access to it, and of its readiness reports.

use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Result, ensure};
use ordain_servers::{Options, Proxy, Redis, Sentinel};
use ordain_tests::alerts;
use ordain_tests::host::Home;
use ordain_tests::http::{LINES_TYPE, admin, get, get_with, ingress, post, ready, send};
use ordain_tests::log::line;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};
use ordain_tests::tally;
use serde_json::json;

const TOKEN: &str = "0123456789abcdef-secret";
const PAGES: [&str; 6] = [
    "/metrics",
    "/v1/streams",
    "/v1/streams/cases/keys",
    "/v1/streams/cases/keys/k0",
    "/v1/dead?stream=cases",
    "/v1/plugins",
];

fn home(admin: &str) -> Result<Home> {
    let home = Home::new(&["tally"], &format!("{}{admin}", tally::CONFIG))?;
    home.write("events.ndjson", "")?;
    Ok(home)
}

#[test]
fn host_is_ready_while_it_runs() -> Result<()> {
    let home = home("")?;
    let mut service = Service::start(&home, &["run"])?;
    let address = admin(&mut service)?;
    assert_eq!(
        get(address, "/healthz")?.status,
        200,
        "the process must be alive before it is ready"
    );
    let early = get(address, "/readyz")?;
    ensure!(
        early.status == 200 || early.problem()?.starts_with("not ready: the process is "),
        "{early:?}"
    );
    assert_eq!(ready(&mut service)?, address);
    service.end()?;
    ensure!(get(address, "/healthz").is_err(), "the listener is still open");
    Ok(())
}

#[test]
fn host_is_not_ready_while_its_store_does_not_respond() -> Result<()> {
    let redis = Redis::start(&[])?;
    let config = tally::CONFIG.replace("path = \"out.ndjson\"", "path = \"-\"");
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let home = Home::new(&["tally"], &format!("{store}{config}"))?;
    home.write("events.ndjson", "")?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    redis.pause()?;
    let away = || get(address, "/readyz").is_ok_and(|response| response.status == 503);
    service.until("the report that the store is unavailable", away)?;
    let problem = get(address, "/readyz")?.problem()?;
    ensure!(problem.contains("not ready: the store has not answered since 20"), "{problem}");
    assert_eq!(get(address, "/healthz")?.status, 200, "the process is alive without its store");
    assert_eq!(get(address, "/metrics")?.status, 200, "metrics need no store");
    let keys = get(address, "/v1/streams/cases/keys")?;
    ensure!(keys.status == 503 && keys.problem()?.contains("the store is unavailable"), "{keys:?}");
    redis.resume()?;
    assert_eq!(ready(&mut service)?, address);
    Ok(())
}

/// A Redis server can answer reads while it refuses writes. In this state of the server, the host must not be ready.
#[test]
fn host_is_not_ready_while_its_store_refuses_writes() -> Result<()> {
    let redis = Redis::start(&[])?;
    let config = tally::CONFIG.replace("path = \"out.ndjson\"", "path = \"-\"");
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let ingress = "[ingress]\nlisten = \"127.0.0.1:0\"\n";
    let home = Home::new(&["tally"], &format!("{store}{ingress}{config}"))?;
    home.write("events.ndjson", "")?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    for (refuse, accept) in [
        (["config", "set", "maxmemory", "1"], ["config", "set", "maxmemory", "0"]),
        (
            ["config", "set", "min-replicas-to-write", "1"],
            ["config", "set", "min-replicas-to-write", "0"],
        ),
        (["acl", "setuser", "default", "-hset"], ["acl", "setuser", "default", "+hset"]),
    ] {
        assert_eq!(get(address, "/readyz/ingress")?.status, 200);
        redis.command(&refuse)?;
        until_no_writes(&mut service)?;
        redis.command(&accept)?;
        until_writes(&mut service)?;
    }
    // The log names the command to which the user has no right.
    service.until_lines(1, &["accepts no writes", "must be allowed to run", ": hset"])?;
    service.end()
}

/// The rights without which the store cannot accept every event over HTTP.
const INTAKE_RIGHTS: [&str; 7] = ["hget", "hmget", "hset", "hdel", "hlen", "sadd", "time"];
/// The other rights: the store needs them only to execute events, and to read its content.
const OTHER_RIGHTS: [&str; 12] = [
    "type",
    "smembers",
    "hscan",
    "hstrlen",
    "zadd",
    "zrem",
    "zrange",
    "zrangebylex",
    "zrangebyscore",
    "zcount",
    "zrank",
    "zscore",
];

/// The readiness for events over HTTP must be true: without a right that this work needs, the host is not ready, even
/// before it has refused the first event. Without all other rights, the host accepts events.
#[test]
fn readiness_for_events_depends_on_the_rights_that_they_need() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = Home::new(
        &["tally"],
        &format!(
            "[store]\nkind = \"redis\"\nurl = \"{}\"\n[ingress]\nlisten = \"127.0.0.1:0\"\n\
             [streams.cases]\nhandler = \"tally\"\nsource = {{ kind = \"http\" }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
            redis.url()
        ),
    )?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    let events = ingress(&mut service)?;
    let status = |page| get(address, page).map(|page| page.status);
    let rule = |sign: &str, rights: &[&str]| {
        let rules = rights.iter().map(|right| format!("{sign}{right}"));
        let command: Vec<String> =
            ["acl", "setuser", "default"].into_iter().map(str::to_owned).chain(rules).collect();
        redis.command(&command.iter().map(String::as_str).collect::<Vec<_>>())
    };
    rule("-", &OTHER_RIGHTS)?;
    // Longer than the interval between two checks of the store.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(status("/readyz/ingress")?, 200);
    let event = line("a", 1, &json!({ "n": 1 }));
    assert_eq!(post(events, LINES_TYPE, &(event + "\n"))?.status, 202);
    rule("+", &OTHER_RIGHTS)?;
    for right in INTAKE_RIGHTS {
        rule("-", &[right])?;
        service.until(right, || {
            let problem = get(address, "/readyz").and_then(|page| page.problem());
            problem.is_ok_and(|problem| {
                problem.contains("not ready: the store has accepted no writes since 20")
            }) && status("/readyz/ingress").is_ok_and(|status| status == 503)
        })?;
        service.until_lines(1, &["accepts no writes", &format!("the same prefix: {right}")])?;
        rule("+", &[right])?;
        until_writes(&mut service)?;
    }
    service.end()
}

/// A store without its record has lost its data. The host refuses the events of new partitions, so it must not be
/// ready until an operator has restored the record.
#[test]
fn host_is_not_ready_while_its_store_has_no_record() -> Result<()> {
    let redis = Redis::start(&[])?;
    let config = tally::CONFIG.replace("path = \"out.ndjson\"", "path = \"-\"");
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let ingress = "[ingress]\nlisten = \"127.0.0.1:0\"\n";
    let home = Home::new(&["tally"], &format!("{store}{ingress}{config}"))?;
    home.write("events.ndjson", "")?;
    let mut service = Service::start(&home, &["run"])?;
    until_writes(&mut service)?;
    redis.command(&["RENAME", "ordain:{0}:store", "away"])?;
    until_no_writes(&mut service)?;
    let words = ["accepts no writes", "another program removed ordain:{0}:store: restore the data"];
    service.until_lines(1, &words)?;
    redis.command(&["RENAME", "away", "ordain:{0}:store"])?;
    until_writes(&mut service)?;
    service.end()
}

/// The store accepts events, but does not complete another request: the user lacks a right that is not needed to accept
/// events, or the events of a queue exceed a limit of the server. The host must not be ready, and the log must name the next step. The host
/// still accepts events over HTTP, and must report this.
#[test]
fn host_is_not_ready_while_its_store_does_not_complete_a_request() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = Home::new(
        &["tally"],
        &format!(
            "[store]\nkind = \"redis\"\nurl = \"{}\"\n[ingress]\nlisten = \"127.0.0.1:0\"\n\
             [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\nsource = {{ kind = \"http\" }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
            redis.url()
        ),
    )?;
    let mut service = Service::start(&home, &RUN_WITH_SHORT_WAITS)?;
    let address = ready(&mut service)?;
    let events = ingress(&mut service)?;
    let limit = "client-output-buffer-limit";
    // Redis 8 reports an "ACL failure" with the name of the command. Redis 7 does not name the command, so the log of
    // the host names the server's own log, `ACL LOG`.
    for (sequence, refuse, accept, words) in [
        (
            1,
            ["acl", "setuser", "default", "-zrangebyscore"],
            ["acl", "setuser", "default", "+zrangebyscore"],
            "ACL ",
        ),
        (
            2,
            ["config", "set", limit, "normal 50000 0 0"],
            ["config", "set", limit, "normal 0 0 0"],
            limit,
        ),
    ] {
        redis.command(&refuse)?;
        let event = line("a", sequence, &json!({ "n": "x".repeat(500_000) }));
        assert_eq!(post(events, LINES_TYPE, &(event + "\n"))?.status, 202);
        service.until("the report of the request", || {
            let problem = get(address, "/readyz").and_then(|page| page.problem());
            problem.is_ok_and(|problem| problem.contains("has not completed a request since 20"))
                && get(address, "/readyz/ingress").is_ok_and(|page| page.status == 200)
        })?;
        let metrics = get(address, "/metrics")?.body;
        ensure!(metrics.contains("\nordain_store_writable 0\n"), "{metrics}");
        service.until_lines(1, &["did not complete a request", words])?;
        redis.command(&accept)?;
        until_writes(&mut service)?;
        service.until("the message", || home.lines("stdout") as u64 == sequence)?;
    }
    service.end()
}

/// Waits until the host is not ready because its store accepts no writes. Then also checks the readiness for events
/// over HTTP, the metric and the alerting rule.
fn until_no_writes(service: &mut Service) -> Result<()> {
    let address = admin(service)?;
    let no_writes = "not ready: the store has accepted no writes since 20";
    service.until("the report that the store accepts no writes", || {
        let problem = get(address, "/readyz").and_then(|page| page.problem());
        problem.is_ok_and(|problem| problem.contains(no_writes))
    })?;
    assert_eq!(get(address, "/readyz")?.status, 503);
    assert_eq!(get(address, "/readyz/ingress")?.status, 503);
    let metrics = get(address, "/metrics")?.body;
    ensure!(metrics.contains("\nordain_store_writable 0\n"), "{metrics}");
    let firing = alerts::firing(&metrics, &metrics)?;
    ensure!(firing.contains("OrdainStoreNotWritable"), "{firing:?}");
    Ok(())
}

/// Waits until the host is ready, and checks the metric and the alerting rule.
fn until_writes(service: &mut Service) -> Result<()> {
    let address = ready(service)?;
    let metrics = get(address, "/metrics")?.body;
    ensure!(metrics.contains("\nordain_store_writable 1\n"), "{metrics}");
    let firing = alerts::firing(&metrics, &metrics)?;
    ensure!(firing.is_empty(), "{firing:?}");
    Ok(())
}

/// Returns a home whose host accepts events over HTTP, and whose store at `url` waits for a replica at each commit.
fn home_with_replica(url: &str) -> Result<Home> {
    let config = tally::CONFIG.replace("path = \"out.ndjson\"", "path = \"-\"");
    let store =
        format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\ndurability = \"replicas:1\"\n");
    let ingress = "[ingress]\nlisten = \"127.0.0.1:0\"\n";
    let home = Home::new(&["tally"], &format!("{store}{ingress}{config}"))?;
    home.write("events.ndjson", "")?;
    Ok(home)
}

/// With `durability = "replicas:1"`, no commit succeeds while no replica is connected. The host must then not be ready,
/// although the server itself accepts writes.
#[test]
fn host_is_not_ready_while_its_store_lacks_a_replica() -> Result<()> {
    let redis = Redis::start(&[])?;
    let replica = Redis::with(&Options::new().replica_of(&redis))?;
    let home = home_with_replica(&redis.url())?;
    let mut service = Service::start(&home, &["run"])?;
    until_writes(&mut service)?;
    replica.stop()?;
    until_no_writes(&mut service)?;
    service.until_lines(1, &["accepts no writes", "fewer than 1 replicas"])?;
    replica.restart()?;
    until_writes(&mut service)?;
    service.end()
}

/// After a failover, the new master has no replica until the old master returns. With `durability = "replicas:1"`, the
/// host must not be ready before the master has this replica.
#[test]
fn host_is_not_ready_after_a_failover_until_the_master_has_a_replica() -> Result<()> {
    let group = Sentinel::start()?;
    let home = home_with_replica(&group.url())?;
    let mut service = Service::start(&home, &["run"])?;
    until_writes(&mut service)?;
    // The host ends if the new master lacks the claim of the partition.
    group.until_replicated()?;
    group.failover()?;
    until_no_writes(&mut service)?;
    group.rejoin()?;
    until_writes(&mut service)?;
    service.end()
}

/// The store is open, but a request to the store delays the rest of the start. Before its ingress listens, the host
/// must not report that it accepts events.
#[test]
fn ingress_is_not_ready_before_it_listens() -> Result<()> {
    let redis = Redis::start(&[])?;
    let proxy = Proxy::start(redis.port())?;
    let config = tally::CONFIG.replace("path = \"out.ndjson\"", "path = \"-\"");
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url_at(proxy.port()));
    let ingress = "[ingress]\nlisten = \"127.0.0.1:0\"\n";
    let home = Home::new(&["tally"], &format!("{store}{ingress}{config}"))?;
    home.write("events.ndjson", "")?;
    // The host reads the leases after it has opened the store, and before the ingress listens.
    proxy.hold_request("}:leases");
    let mut service = Service::start(&home, &["run"])?;
    let address = admin(&mut service)?;
    service.until("a held request", || proxy.counts().requests_held == 1)?;
    let early = get(address, "/readyz/ingress")?;
    ensure!(
        early.status == 503 && early.problem()?.starts_with("not accepting events: "),
        "{early:?}"
    );
    proxy.cut();
    service.until("readiness for events over HTTP", || {
        get(address, "/readyz/ingress").is_ok_and(|page| page.status == 200)
    })?;
    service.until_says("ingress listening on http://")?;
    service.end()
}

#[test]
fn store_address_is_hidden_from_callers_without_the_token() -> Result<()> {
    let redis = Redis::start(&[])?;
    let url = redis.url();
    let config = tally::CONFIG.replace("path = \"out.ndjson\"", "path = \"-\"");
    let config = format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\n{config}");
    let admin = format!("[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"{TOKEN}\"\n");
    let home = Home::new(&["tally"], &format!("{config}{admin}"))?;
    home.write("events.ndjson", "")?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    drop(redis);
    service.until_says("not ready: the store does not answer")?;
    let response = get(address, "/readyz")?;
    ensure!(
        response.status == 503 && response.problem()?.contains("not answered since 20"),
        "{response:?}"
    );
    let (_, server) = url.rsplit_once('@').unwrap_or(("", url.trim_start_matches("redis://")));
    ensure!(
        !response.body.contains(server.trim_end_matches('/')),
        "{server} is disclosed: {response:?}"
    );
    Ok(())
}

#[test]
fn run_once_listens_only_if_configured() -> Result<()> {
    let home = home("")?;
    let stderr_of =
        |output: std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let listens = stderr_of(home.output(&["run", "--once"])?);
    ensure!(listens.contains("admin listening on http://127.0.0.1:"), "{listens}");
    std::fs::write(home.path("ordain.toml"), tally::CONFIG)?;
    let silent = stderr_of(home.output(&["run", "--once"])?);
    ensure!(!silent.contains("admin listening"), "{silent}");
    Ok(())
}

#[test]
fn all_pages_except_health_need_the_token() -> Result<()> {
    let home = home(&format!("[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"{TOKEN}\"\n"))?;
    let mut service = Service::start(&home, &["--log", "debug", "run"])?;
    let address = ready(&mut service)?;
    assert_eq!(get(address, "/healthz")?.status, 200);
    let right = format!("Authorization: Bearer {TOKEN}");
    for page in PAGES.into_iter().chain(["/v1/nothing"]) {
        let longer = format!("{right}0");
        let basic = right.replace("Bearer", "Basic");
        for wrong in [&[][..], &[&right[..right.len() - 1]], &[&longer], &[&basic]] {
            let refused = get_with(address, page, wrong)?;
            ensure!(refused.status == 401, "{page} {wrong:?}: {refused:?}");
            ensure!(refused.head.contains("www-authenticate: bearer"), "{refused:?}");
            ensure!(refused.problem()?.contains("Authorization: Bearer"), "{refused:?}");
        }
        let answer = get_with(address, page, &[&right])?;
        ensure!(answer.status != 401, "{page}: {answer:?}");
    }
    assert_eq!(get_with(address, "/metrics", &[&right])?.status, 200);
    service.end()?;
    ensure!(!service.stderr().contains(TOKEN), "the token is in the log: {}", service.stderr());
    Ok(())
}

#[test]
fn without_a_token_foreign_host_names_are_rejected() -> Result<()> {
    let home = home("")?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    for page in PAGES {
        let request =
            format!("GET {page} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        let refused = send(address, request.as_bytes())?;
        assert_eq!(refused.status, 403, "{page}: {refused:?}");
        ensure!(refused.problem()?.contains("localhost"), "{refused:?}");
    }
    Ok(())
}

#[test]
fn without_a_token_requests_of_web_pages_are_rejected() -> Result<()> {
    let home = home("")?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    for page in PAGES {
        for sign in ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"] {
            let refused = get_with(address, page, &[sign])?;
            assert_eq!(refused.status, 403, "{page} {sign}: {refused:?}");
            ensure!(refused.problem()?.contains("a web page in a browser seems"), "{refused:?}");
        }
        let opened = get_with(address, page, &["Sec-Fetch-Site: none"])?;
        ensure!(opened.status != 403, "{page}: {opened:?}");
    }
    Ok(())
}

#[test]
fn public_address_needs_a_token() -> Result<()> {
    let right = "ordain.toml:10: admin.listen: 0.0.0.0:0 is reachable from other machines";
    let home = home("[admin]\nlisten = \"0.0.0.0:0\"\n")?;
    for args in [&["check"][..], &["run"], &["run", "--once"]] {
        let output = home.output(args)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(78) && stderr.contains(right), "{args:?}: {stderr}");
        ensure!(stderr.contains("[admin] needs a `token`"), "{stderr}");
    }
    home.write(
        "ordain.toml",
        format!("{}[admin]\nlisten = \"0.0.0.0:0\"\ntoken = \"{TOKEN}\"\n", tally::CONFIG),
    )?;
    let once = home.output(&["run", "--once"])?;
    ensure!(once.status.success(), "{}", String::from_utf8_lossy(&once.stderr));
    Ok(())
}

#[test]
fn address_in_use_is_reported_with_its_remedy() -> Result<()> {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?;
    let home = home(&format!("[admin]\nlisten = \"{address}\"\n"))?;
    for args in [&["run"][..], &["run", "--once"]] {
        let output = home.output(args)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(75), "{args:?}: {}: {stderr}", output.status);
        let right = format!("ordain.toml:10: admin.listen: cannot listen at {address}: another");
        ensure!(stderr.contains(&right) && stderr.contains("[admin] listen = "), "{stderr}");
    }
    ensure!(!home.path("ordain-data").exists(), "a refused start has created a store");
    Ok(())
}

/// A machine can get an address after the start of the host, for example by DHCP. So the exit code must be 75, with
/// which a supervisor starts the process again.
#[test]
fn address_that_the_machine_lacks_is_a_temporary_failure() -> Result<()> {
    let absent = "listen = \"192.0.2.1:7070\"";
    let token = format!("token = \"{TOKEN}\"");
    for (section, tables) in [
        ("admin", format!("[admin]\n{absent}\n{token}\n")),
        ("ingress", format!("[admin]\nlisten = \"127.0.0.1:0\"\n[ingress]\n{absent}\n{token}\n")),
    ] {
        let output = home(&tables)?.output(&["run"])?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(75), "{section}: {}: {stderr}", output.status);
        let named = format!("{section}.listen: cannot listen at 192.0.2.1:7070: ");
        let remedy = format!("[{section}] listen = ");
        ensure!(stderr.contains(&named) && stderr.contains(&remedy), "{stderr}");
    }
    Ok(())
}
