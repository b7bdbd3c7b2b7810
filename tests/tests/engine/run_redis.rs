//! Tests of a host whose Redis server requires a password, or reaches its limit of clients.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use ordain_servers::{Options, Redis, wait_until};
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{by_key, in_turn, text};
use ordain_tests::service::Service;
use ordain_tests::tally;

use super::check_connect::home;

const SECRET: &str = "s/cr@t-of-redis";
const ENCODED_SECRET: &str = "s%2Fcr%40t-of-redis";

#[test]
fn password_from_the_environment_is_never_printed() -> Result<()> {
    let redis = Redis::with(&Options::new().password(SECRET))?;
    let config = tally::CONFIG.replace("path = \"out.ndjson\"", "path = \"-\"");
    let url = format!("redis://:${{REDIS_PASSWORD}}@127.0.0.1:{}", redis.port());
    let config = format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\n{config}");
    let home = Home::new(&["tally"], &config)?;
    let lines = in_turn(5, 10);
    home.write("events.ndjson", text(&lines))?;
    for (password, code) in [(None, 78), (Some("s%2Fcr%40t-wrong"), 75), (Some(ENCODED_SECRET), 0)]
    {
        let mut run = home.ordain(&["--wait-divisor=50", "--log", "debug", "run", "--once"])?;
        run.env_remove("REDIS_PASSWORD");
        run.envs(password.map(|password| ("REDIS_PASSWORD", password)));
        let output = run.output()?;
        let out = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(code), "{password:?}: {stderr}");
        for shown in ["s/cr@t", "s%2Fcr"] {
            ensure!(!stderr.contains(shown) && !out.contains(shown), "{password:?}: {stderr}");
        }
        let advice = "If the login in `store.url` has changed, restart the process";
        let is_refused = code == 75;
        ensure!(stderr.contains(advice) == is_refused, "{password:?}: {stderr}");
        if code == 0 {
            tally::check(&by_key(&lines)?, &out)?;
        }
    }
    Ok(())
}

/// While the host runs, the password changes in the server, and later in the file that the URL names. While the file
/// still has the old password, the host must log the error of the server. If the file is missing, the host must use the
/// previous password, and log one warning instead of one for each connection.
#[test]
fn rotated_password_is_read_from_its_file() -> Result<()> {
    let redis = Redis::with(&Options::new().password("first-secret"))?;
    let home = home("unused")?;
    let file = home.path("redis-password");
    let url = format!("redis://:${{file:{}}}@127.0.0.1:{}", file.display(), redis.port());
    home.write("ordain.toml", home.read("ordain.toml").replace("unused", &url))?;
    home.write("redis-password", "first-secret\n")?;
    let mut service = Service::start(&home, &["run"])?;
    http::ready(&mut service)?;
    let mut operator = redis.connect()?;
    operator.command(&["CONFIG", "SET", "requirepass", "second-secret"])?;
    operator.command(&["CLIENT", "KILL", "TYPE", "normal"])?;
    service.until_says("WRONGPASS invalid username-password pair or user is disabled")?;
    home.write("redis-password", "second-secret\n")?;
    service.until_says("completes requests again")?;

    std::fs::remove_file(&file)?;
    for _ in 0..7 {
        operator.command(&["CLIENT", "KILL", "TYPE", "normal"])?;
        wait_until("a new connection of the host", || {
            let clients = operator.command(&["CLIENT", "LIST", "TYPE", "normal"])?;
            Ok(clients.text().is_some_and(|clients| clients.lines().count() > 1))
        })?;
    }
    service.until_says("cannot refresh `store.url` from the files that it names: ")?;
    let log = service.stderr();
    ensure!(log.matches("cannot refresh").count() == 1 && !log.contains("secret"), "{log}");
    service.end()
}

/// While the host runs, the server reaches its limit of clients, and closes the connections of the host. The host must
/// log the error of the server, and must not be ready. After the limit was raised, the host must continue by itself,
/// and each event must take effect once.
#[test]
fn host_recovers_from_a_limit_of_clients() -> Result<()> {
    let redis = Redis::with(&Options::new())?;
    let home = home(&redis.url())?;
    let mut service = Service::start(&home, &["run"])?;
    let address = http::ready(&mut service)?;
    // After an interruption, the host may print a message again.
    let printed = || -> Vec<String> {
        let mut seen = BTreeSet::new();
        let lines = home.read("stdout");
        lines.lines().filter(|line| seen.insert(*line)).map(str::to_owned).collect()
    };
    let lines = in_turn(5, 20);
    let (first, rest) = lines.split_at(50);
    home.append("events.ndjson", text(first))?;
    service.until("the first messages", || printed().len() == first.len())?;

    let mut operator = redis.connect()?;
    operator.command(&["CONFIG", "SET", "maxclients", "1"])?;
    operator.command(&["CLIENT", "KILL", "TYPE", "normal"])?;
    service.until_says("ERR max number of clients reached")?;
    let status = || http::get(address, "/readyz").map(|page| page.status).unwrap_or_default();
    service.until("unreadiness", || status() == 503)?;
    home.append("events.ndjson", text(rest))?;
    operator.command(&["CONFIG", "SET", "maxclients", "1000"])?;
    service.until_says("completes requests again")?;
    http::ready(&mut service)?;
    service.until("all messages", || printed().len() == lines.len())?;
    service.end()?;
    tally::check(&by_key(&lines)?, &printed().join("\n"))
}
