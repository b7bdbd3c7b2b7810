//! Events over HTTP for a stream of the broker: what came over both channels takes effect once, with the
//! broker or without.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Rabbit, Redis, wait_until};
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{by_key, in_turn, text};
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::Value;

use super::support::{LINES, ONE, ingress, post};

const SECTIONS: &str = "[ingress]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";

/// Into a file, which needs no broker.
fn into_file(text: &str, path: &str) -> String {
    let sink = "kind = \"amqp\"\nexchange = \"out\"";
    text.replace(sink, &format!("kind = \"file\"\npath = \"{path}\""))
}

fn post_all(address: SocketAddr, lines: &[String]) -> Result<()> {
    for chunk in lines.chunks(200) {
        let answer = post(address, LINES, &text(chunk))?;
        ensure!(answer.status == 202, "{answer:?}");
    }
    Ok(())
}

/// With one partition, events of all keys are processed while the broker is away.
fn broker_goes(
    stop: impl Fn(&Rabbit) -> Result<()>,
    come_back: impl Fn(&Rabbit) -> Result<()>,
) -> Result<()> {
    let rig = Rig::with("", "", "")?;
    let text_of = into_file(&config(&rig.rabbit.url(), SECTIONS, "", ""), "out.ndjson");
    let home = Home::new(&["tally"], &text_of)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    rig.until_declared()?;
    let lines = in_turn(40, 20);
    let (first, rest) = lines.split_at(200);
    let (second, third) = rest.split_at(400);
    let until = |count: usize| {
        wait_until(&format!("{count} effects"), || Ok(home.lines("out.ndjson") >= count))
    };
    // Both channels.
    post_all(address, first)?;
    rig.publish(&first[50..150])?;
    until(first.len())?;
    rig.until_empty()?;
    stop(&rig.rabbit)?;
    post_all(address, second)?;
    until(first.len() + second.len())?;
    // A repeat, and a conflict, are known without the broker.
    ensure!(post(address, ONE, &second[7])?.status == 202);
    ensure!(post(address, ONE, &second[7].replace("\"n\":", "\"m\":"))?.status == 409);
    come_back(&rig.rabbit)?;
    post_all(address, third)?;
    until(lines.len())?;
    rig.until_empty()?;
    wait_until("the inbox is empty", || waits(&mut service).map(|it| it == 0))?;
    service.end()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))?;
    ensure!(home.rows(&["dead", "list", "cases", "--json"])?.is_empty(), "dead letters");
    Ok(())
}

/// How many events are not published yet, as its process says.
fn waits(service: &mut Service) -> Result<u64> {
    let admin = http::admin(service)?;
    let metrics = http::get(admin, "/metrics")?.body;
    let values = metrics.lines().filter(|it| it.starts_with("ordain_inbox_events{"));
    let values = values.filter_map(|it| it.rsplit_once(' ')?.1.parse::<u64>().ok());
    Ok(values.sum())
}

#[test]
fn the_broker_ends_and_starts_again() -> Result<()> {
    broker_goes(Rabbit::stop, Rabbit::restart)
}

#[test]
fn the_broker_crashes() -> Result<()> {
    broker_goes(Rabbit::kill, Rabbit::restart)
}

/// Connections are there, and nothing answers.
#[test]
fn the_broker_stands_still() -> Result<()> {
    broker_goes(Rabbit::pause, Rabbit::resume)
}

/// The messages that two processes have printed.
fn printed(services: &[Service; 2]) -> String {
    let all = services.iter().map(Service::stdout);
    all.map(|it| it[..it.rfind('\n').map_or(0, |at| at + 1)].to_owned()).collect()
}

/// Without what was printed again after a crash, which is the same; each key's in order, whoever had it
/// when: the hash in each shows what it was made behind.
fn in_order(all: &str) -> Result<String> {
    let lines: BTreeSet<&str> = all.split_inclusive('\n').collect();
    let sequence = |line: &str| {
        let message: Value = serde_json::from_str(line)?;
        message["data"]["sequence"].as_u64().context("a sequence")
    };
    let mut lines =
        lines.into_iter().map(|line| Ok((sequence(line)?, line))).collect::<Result<Vec<_>>>()?;
    lines.sort_unstable();
    Ok(lines.into_iter().map(|(_, line)| line).collect())
}

/// Two processes with four partitions: each takes what is posted, whoever owns its key. Events of new
/// keys wait for the broker.
#[test]
fn any_process_takes_events() -> Result<()> {
    let redis = Redis::start(&[])?;
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let rig = Rig::with(&store, "", "partitions = 4")?;
    let sections = format!("{SECTIONS}{store}");
    let text_of = into_file(&config(&rig.rabbit.url(), &sections, "", "partitions = 4"), "-");
    let homes = [Home::new(&["tally"], &text_of)?, Home::new(&["tally"], &text_of)?];
    let mut services = [Service::start(&homes[0], &["run"])?, Service::start(&homes[1], &["run"])?];
    let [one, other] = &mut services;
    let addresses = [ingress(one)?, ingress(other)?];
    rig.until_declared()?;
    let known = in_turn(40, 20);
    let new: Vec<String> = in_turn(60, 20).into_iter().filter(|it| !known.contains(it)).collect();
    let (first, rest) = known.split_at(100);
    let (second, third) = rest.split_at(400);
    for (at, line) in first.iter().enumerate() {
        ensure!(post(addresses[at % 2], ONE, line)?.status == 202);
    }
    rig.publish(&first[50..])?;
    let until = |services: &[Service; 2], count: usize| {
        wait_until(&format!("{count} effects"), || Ok(printed(services).lines().count() >= count))
    };
    until(&services, first.len())?;
    rig.until_empty()?;
    rig.rabbit.kill()?;
    // Those of keys that have a job, at any process.
    post_all(addresses[0], &second[..200])?;
    post_all(addresses[1], &second[200..])?;
    post_all(addresses[1], &new)?;
    until(&services, first.len() + second.len())?;
    rig.rabbit.restart()?;
    post_all(addresses[0], third)?;
    until(&services, known.len() + new.len())?;
    rig.until_empty()?;
    for service in &mut services {
        wait_until("the inbox is empty", || waits(service).map(|it| it == 0))?;
        service.end()?;
    }
    let all: Vec<String> = known.iter().chain(&new).cloned().collect();
    tally::check(&by_key(&all)?, &printed(&services))
}

/// The owner of half of the partitions dies while the broker is away: the other one takes over what is known
/// of its keys. A process that starts meanwhile takes events, and does the rest when the broker is back.
#[test]
fn an_owner_dies_while_the_broker_is_away() -> Result<()> {
    let redis = Redis::start(&[])?;
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let rig = Rig::with(&store, "", "partitions = 4")?;
    let sections = format!("{SECTIONS}[runtime]\nlease = \"2s\"\n{store}");
    let text_of = into_file(&config(&rig.rabbit.url(), &sections, "", "partitions = 4"), "-");
    let homes = [Home::new(&["tally"], &text_of)?, Home::new(&["tally"], &text_of)?];
    let mut services = [Service::start(&homes[0], &["run"])?, Service::start(&homes[1], &["run"])?];
    let [one, other] = &mut services;
    let addresses = [ingress(one)?, ingress(other)?];
    rig.until_declared()?;
    let lines = in_turn(40, 20);
    let (first, rest) = lines.split_at(200);
    let (second, rest) = rest.split_at(200);
    let (third, fourth) = rest.split_at(200);
    let mut earlier = String::new();
    let until = |earlier: &str, services: &[Service; 2], count: usize| {
        wait_until(&format!("{count} effects"), || {
            let all = format!("{earlier}{}", printed(services));
            Ok(all.lines().collect::<BTreeSet<_>>().len() >= count)
        })
    };
    post_all(addresses[0], first)?;
    until(&earlier, &services, first.len())?;
    rig.until_empty()?;
    rig.rabbit.kill()?;
    post_all(addresses[0], second)?;
    // In the middle of it.
    services[0].kill()?;
    post_all(addresses[1], third)?;
    until(&earlier, &services, first.len() + second.len() + third.len())?;
    earlier += &printed(&services);
    services[0] = Service::start(&homes[0], &["run"])?;
    let again = ingress(&mut services[0])?;
    post_all(again, fourth)?;
    rig.rabbit.restart()?;
    until(&earlier, &services, lines.len())?;
    rig.until_empty()?;
    for service in &mut services {
        wait_until("the inbox is empty", || waits(service).map(|it| it == 0))?;
        service.end()?;
    }
    tally::check(&by_key(&lines)?, &in_order(&format!("{earlier}{}", printed(&services)))?)
}

/// A process that starts without the broker has nothing else to do than to take events.
#[test]
fn a_process_starts_while_the_broker_is_away() -> Result<()> {
    let rig = Rig::with("", "", "")?;
    let text_of = into_file(&config(&rig.rabbit.url(), SECTIONS, "", ""), "out.ndjson");
    let home = Home::new(&["tally"], &text_of)?;
    rig.rabbit.stop()?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let lines = in_turn(10, 10);
    let (first, rest) = lines.split_at(50);
    post_all(address, first)?;
    service.end()?;
    let mut service = Service::start(&home, &["run"])?;
    post_all(ingress(&mut service)?, rest)?;
    rig.rabbit.restart()?;
    wait_until("all effects", || Ok(home.lines("out.ndjson") >= lines.len()))?;
    service.end()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}
