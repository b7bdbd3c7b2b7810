//! Tests of `ordain check --connect`, which reports the state of the Redis servers, and changes nothing in them.

use std::process::Output;

use anyhow::{Context, Result, bail, ensure};
use ordain_servers::{Cluster, Options, Redis, Sentinel};
use ordain_tests::host::Home;
use ordain_tests::printed::run_all;
use ordain_tests::tally;
use serde_json::Value;

pub(super) fn home(url: &str) -> Result<Home> {
    // A sink that writes to a file needs the embedded store, so the sink writes to standard output here.
    let stream = tally::CONFIG.replace("path = \"out.ndjson\"", "path = \"-\"");
    let home =
        Home::new(&["tally"], &format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\n{stream}"))?;
    home.write("events.ndjson", "")?;
    Ok(home)
}

/// Runs `ordain check --connect`, which must exit with `code`. Returns its standard output and standard error.
fn check(home: &Home, code: i32) -> Result<[String; 2]> {
    checked(home.output(&["check", "--connect"])?, code)
}

fn checked(output: Output, code: i32) -> Result<[String; 2]> {
    let printed = [String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?];
    ensure!(output.status.code() == Some(code), "{}: {printed:?}", output.status);
    Ok(printed)
}

/// Returns the severity and the text of each finding about the store, from the output with `--json`.
fn findings(home: &Home) -> Result<Vec<(String, String)>> {
    let output = home.output(&["check", "--connect", "--json"])?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(report["not_asked"].is_null() && report["streams"][0]["stream"] == "cases", "{report}");
    let servers = report["servers"].as_array().context("a list of servers")?;
    ensure!(servers.len() == 1 && servers[0]["role"] == "store", "{report}");
    let text = |finding: &Value, part: &str| finding[part].as_str().map(str::to_owned);
    let rows = servers[0]["findings"].as_array().context("a list of findings")?.iter();
    rows.map(|row| text(row, "severity").zip(text(row, "text")).context("two texts")).collect()
}

/// A server with the recommended settings causes no warning. The check changes nothing, neither on an empty server nor
/// in an existing store.
#[test]
fn healthy_server_is_described_and_unchanged() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = home(&redis.url())?;
    let [out, _] = check(&home, 0)?;
    for part in [
        &*format!("store: 127.0.0.1:{}: ", redis.port()),
        ", one server\n",
        "store: maxmemory-policy noeviction\n",
        "appendfsync always",
        "store: no replica is connected\n",
        "store: no store with the prefix \"ordain\": the first start creates one\n",
        "store: accepts writes\n",
    ] {
        ensure!(out.contains(part), "{part}: {out}");
    }
    ensure!(!out.contains("warning"), "{out}");
    ensure!(redis.command(&["DBSIZE"])?.int() == Some(0), "the check wrote to the server");

    home.run_once_to("out.ndjson")?;
    let digest = redis.command(&["DEBUG", "DIGEST"])?;
    let [out, _] = check(&home, 0)?;
    ensure!(out.contains("a store with the prefix \"ordain\", 16 shards"), "{out}");
    let rows = findings(&home)?;
    ensure!(rows.len() >= 6 && rows.iter().all(|(severity, _)| severity == "note"), "{rows:?}");
    ensure!(redis.command(&["DEBUG", "DIGEST"])? == digest, "the check wrote to the server");

    // A check that does not connect prints the command that connects to the server.
    home.write("other config.toml", home.read("ordain.toml"))?;
    let outputs = run_all(&home, &home.printed(&["check", "other config.toml"])?)?;
    let [(command, shown)] = &outputs[..] else { bail!("{outputs:#?}") };
    ensure!(command == "ordain check --connect --config 'other config.toml'", "{command}");
    ensure!(shown.contains("a store with the prefix \"ordain\", 16 shards"), "{shown}");
    Ok(())
}

/// The check reports each setting of the server that can cause a loss of events. The severity and the exit code depend
/// on the setting.
#[test]
fn risky_servers_are_reported() -> Result<()> {
    let redis = Redis::with(&Options::new().without_persistence())?;
    let home = home(&redis.url())?;
    let [out, _] = check(&home, 0)?;
    ensure!(out.contains("warning: store: ") && out.contains("EVERYTHING"), "{out}");

    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])?;
    let [_, errors] = check(&home, 78)?;
    ensure!(errors.contains("maxmemory-policy allkeys-lru"), "{errors}");
    ensure!(errors.contains("CONFIG SET maxmemory-policy noeviction"), "{errors}");
    let rows = findings(&home)?;
    ensure!(
        rows.iter().any(|(severity, text)| severity == "error" && text.contains("allkeys-lru"))
    );

    // A server without free memory answers reads, but refuses writes. Exit code 75 shows that this may be temporary.
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])?;
    redis.command(&["CONFIG", "SET", "maxmemory", "1"])?;
    let [_, errors] = check(&home, 75)?;
    ensure!(errors.contains("accepts no writes now") && errors.contains("OOM"), "{errors}");
    redis.command(&["CONFIG", "SET", "maxmemory", "0"])?;
    check(&home, 0)?;
    ensure!(redis.command(&["DBSIZE"])?.int() == Some(0), "the check wrote to the server");
    Ok(())
}

/// The error must contain the error message of the server and name the user. An operator can change a login or a right
/// at any time, so the exit code must be 75. No output may contain a password.
#[test]
fn refused_logins_are_errors_without_the_password() -> Result<()> {
    let options = Options::new().password("secret").user(
        "shop",
        "right-secret",
        "~ordain:* +@all -@dangerous +info -hset",
    );
    let redis = Redis::with(&options)?;
    for (login, user, words) in [
        (":wrong-secret@", "the default user", "WRONGPASS invalid username-password pair"),
        ("shop:wrong-secret@", "user \"shop\"", "WRONGPASS invalid username-password pair"),
        ("", "no login", "NOAUTH Authentication required. The server requires a password"),
        ("shop:right-secret@", "user \"shop\"", "hset"),
    ] {
        let home = home(&format!("redis://{login}127.0.0.1:{}", redis.port()))?;
        let [out, errors] = check(&home, 75)?;
        let is_named = errors.contains(user) && errors.contains(words);
        ensure!(errors.contains("error: store: ") && is_named, "{login}: {errors}");
        let json = home.output(&["check", "--connect", "--json"])?;
        let json = String::from_utf8_lossy(&json.stdout).into_owned();
        for text in [out, errors, json] {
            ensure!(!text.contains("secret"), "{login}: {text}");
        }
    }
    Ok(())
}

/// Redis repeats the arguments of an unknown command in its error. If an operator has removed the command `AUTH`, these
/// arguments contain the password. No output of Ordain may contain the password.
#[test]
fn arguments_of_a_removed_login_command_are_not_printed() -> Result<()> {
    let redis = Redis::with(&Options::new().line("rename-command AUTH \"\""))?;
    let repeated = redis.attempt(&["AUTH", "shop", "wrong-secret"])?;
    ensure!(format!("{repeated:?}").contains("wrong-secret"), "{repeated:?}");
    let home = home(&format!("redis://shop:right-secret@127.0.0.1:{}", redis.port()))?;
    for args in [
        &["check", "--connect"][..],
        &["check", "--connect", "--json"],
        &["--wait-divisor=50", "--log", "debug", "run"],
    ] {
        let [out, errors] = checked(home.output(args)?, 75)?;
        let printed = format!("{out}{errors}");
        ensure!(printed.contains("ERR unknown command 'AUTH'"), "{args:?}: {printed}");
        ensure!(!printed.contains("secret"), "{args:?}: {printed}");
    }
    Ok(())
}

/// A server that has reached its connection limit, and a replica, may accept the host later. Both the check and a start
/// must name the reason and exit with 75.
#[test]
fn temporary_refusal_exits_with_75() -> Result<()> {
    let redis = Redis::with(&Options::new().password("secret"))?;
    let full = home(&redis.url())?;
    let mut operator = redis.connect()?;
    let master = Redis::start(&[])?;
    let replica = Redis::with(&Options::new().replica_of(&master))?;
    operator.command(&["CONFIG", "SET", "maxclients", "1"])?;
    for (home, words) in [
        (&full, "ERR max number of clients reached".to_owned()),
        (&home(&replica.url())?, format!("name its master, 127.0.0.1:{}", master.port())),
    ] {
        let [out, errors] = check(home, 75)?;
        ensure!(errors.contains(&words) && !errors.contains("secret"), "{out}{errors}");
        // With this divisor, the start waits for the server for 600 ms instead of 30 seconds.
        let run = home.output(&["--wait-divisor=50", "run"])?;
        let [_, errors] = checked(run, 75)?;
        ensure!(errors.contains(&words) && errors.contains("waiting for it"), "{errors}");
        ensure!(!errors.contains("secret"), "{errors}");
    }
    Ok(())
}

/// The URLs of the store and of the broker lack a host name, so their numeric password is in the place of the port. No
/// command may print the password.
#[test]
fn password_in_place_of_the_port_is_not_printed() -> Result<()> {
    let home = home("redis://user:${NUMERIC_PASSWORD}")?;
    let config = home.read("ordain.toml");
    home.write(
        "ordain.toml",
        format!("[broker]\nurl = \"amqp://user:${{NUMERIC_PASSWORD}}\"\n{config}"),
    )?;
    for (args, code) in [
        (&["check"] as &[&str], 0),
        (&["check", "--connect"], 75),
        (&["check", "--connect", "--json"], 75),
        (&["--wait-divisor=50", "--log", "debug", "run"], 75),
    ] {
        let output = home.ordain(args)?.env("NUMERIC_PASSWORD", "54321").output()?;
        let [out, errors] = checked(output, code)?;
        ensure!(!out.contains("54321") && !errors.contains("54321"), "{args:?}: {out}{errors}");
        ensure!(
            out.contains("user:${…}") || errors.contains("user:${…}"),
            "{args:?}: {out}{errors}"
        );
    }
    Ok(())
}

/// If the server has ended, its port refuses connections, and the check fails immediately. If the server does not
/// answer, the check fails after a time limit.
#[test]
fn silent_or_stopped_server_is_unavailable() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = home(&redis.url())?;
    redis.pause()?;
    let silent = home.output(&["--wait-divisor=5", "check", "--connect"])?;
    let [_, errors] = checked(silent, 75)?;
    ensure!(errors.contains(&format!("127.0.0.1:{}", redis.port())), "{errors}");
    redis.resume()?;
    redis.stop()?;
    let [out, errors] = check(&home, 75)?;
    ensure!(errors.contains("refused") && out.contains("ordain.toml is valid"), "{out}{errors}");
    Ok(())
}

/// A replica has its own settings, which apply when the replica becomes master. So the check must also report a replica
/// whose settings permit the eviction of keys.
#[test]
fn evicting_replica_is_reported() -> Result<()> {
    let master = Redis::start(&[])?;
    let options = Options::new().replica_of(&master).line("maxmemory-policy allkeys-lru");
    let replica = Redis::with(&options)?;
    let home = home(&master.url())?;
    let [out, _] = check(&home, 0)?;
    let warning = format!(
        "warning: store: the replica 127.0.0.1:{} has maxmemory-policy allkeys-lru",
        replica.port()
    );
    ensure!(out.contains(&warning), "{out}");
    ensure!(out.contains("durability = \"replicas:1\" reduces that loss"), "{out}");

    let waiting = home
        .read("ordain.toml")
        .replace("kind = \"redis\"", "kind = \"redis\"\ndurability = \"replicas:2\"");
    home.write("ordain.toml", waiting)?;
    let [out, _] = check(&home, 0)?;
    ensure!(out.contains("warning: store: each commit waits for 2 replicas"), "{out}");

    let of_replica = home.read("ordain.toml").replace(&master.url(), &replica.url());
    home.write("ordain.toml", of_replica)?;
    let [_, errors] = check(&home, 75)?;
    ensure!(errors.contains("is a replica, which accepts no writes"), "{errors}");
    Ok(())
}

#[test]
fn cluster_and_sentinel_are_named() -> Result<()> {
    let cluster = Cluster::start(3)?;
    let [out, _] = check(&home(&cluster.urls()[0])?, 0)?;
    ensure!(out.contains(", a Cluster of 3 masters\n"), "{out}");
    ensure!(out.contains("store: accepts writes\n"), "{out}");
    let group = Sentinel::start()?;
    let [out, _] = check(&home(&group.url())?, 0)?;
    ensure!(out.contains(", the master that the Sentinels name\n"), "{out}");
    ensure!(out.contains("store: accepts writes\n"), "{out}");
    Ok(())
}

/// An embedded store has no server to check. The check must not create the folder of the store.
#[test]
fn embedded_store_is_not_opened() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", "")?;
    let [out, _] = check(&home, 0)?;
    ensure!(out.contains("an embedded store has no server to connect to"), "{out}");
    ensure!(!home.path("ordain-data").exists(), "the check created the folder");
    Ok(())
}

/// The output of the check and the log of a start must contain the same warning.
#[test]
fn risky_settings_are_reported_by_check_and_start() -> Result<()> {
    let gap = tally::CONFIG
        .replace("handler = \"tally\"", "handler = \"tally\"\ngap = { timeout = \"2m\" }");
    let home =
        Home::new(&["tally"], &format!("[store]\nkind = \"embedded\"\ndead_ttl = \"1m\"\n{gap}"))?;
    home.write("events.ndjson", "")?;
    let warning = "ordain.toml:3: store.dead_ttl: ";
    let [out, _] = checked(home.output(&["check"])?, 0)?;
    ensure!(out.contains(&format!("warning: {warning}")), "{out}");
    let json: Value = serde_json::from_slice(&home.output(&["check", "--json"])?.stdout)?;
    let listed = json["warnings"][0].as_str().unwrap_or_default();
    ensure!(listed.starts_with(warning) && listed.contains("\"3m\""), "{json}");
    let [_, log] = checked(home.output(&["--log", "warn", "run", "--once"])?, 0)?;
    ensure!(log.contains(&format!("risky setting: {warning}")), "{log}");
    Ok(())
}
