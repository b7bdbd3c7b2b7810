//! Tests of three streams in two processes with RabbitMQ and Redis. The messages of each stream are the events of the
//! next stream. The tests kill each process several times.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lapin::ExchangeKind;
use lapin::message::Delivery;
use ordain_servers::{Rabbit, Redis, wait_for_command};
use ordain_tests::amqp::{Client, from_line, header};
use ordain_tests::host::Home;
use ordain_tests::ledger::{Ledger, without_holes};
use ordain_tests::service::Service;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::support::{check_stages, ledger};

/// Two hosts with the same configuration, their servers, and queues that receive a copy of each message that the
/// streams publish to the broker.
struct Pair {
    redis: Redis,
    rabbit: Rabbit,
    client: Client,
    home: Home,
    hosts: [Service; 2],
    /// True if the second and the third stream receive their events from the broker.
    is_over_broker: bool,
}

/// The configuration of the second and the third stream, if they receive their events from the broker.
const OVER_THE_BROKER: &str = r#"
[streams.orders]
handler = "ledger"
source = { kind = "amqp", exchange = "orders", queue = "orders", partitions = 2, bind = [{ exchange = "transactions" }] }
[streams.months]
handler = "ledger"
source = { kind = "amqp", exchange = "months", queue = "months", partitions = 2, bind = [{ exchange = "postings" }] }
[sinks]
transactions = { kind = "amqp", exchange = "transactions", sequenced = true }
postings = { kind = "amqp", exchange = "postings", sequenced = true }
"#;

/// The configuration of the second and the third stream, if they receive their events from queues in the store.
const OVER_THE_STORE: &str = r#"
[streams.orders]
handler = "ledger"
source = { kind = "stream", partitions = 2 }
[streams.months]
handler = "ledger"
source = { kind = "stream", partitions = 2 }
[sinks]
transactions = { kind = "stream", stream = "orders", sequenced = true }
postings = { kind = "stream", stream = "months", sequenced = true }
"#;

impl Pair {
    /// Starts the servers and both hosts, and waits until each host owns partitions. `between` is the configuration of
    /// the second and the third stream.
    fn start(between: &str) -> Result<Self> {
        let redis = Redis::start(&[])?;
        let rabbit = Rabbit::shared()?;
        let client = Client::connect(&rabbit.url_at(rabbit.port()))?;
        for exchange in ["transactions", "postings", "statements"] {
            client.exchange(exchange, ExchangeKind::Topic)?;
            let seen = format!("seen-{exchange}");
            client.queue(&seen)?;
            client.bind(&seen, exchange, "#")?;
        }
        let text = format!(
            "[runtime]\nlease = \"2s\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\n\
             [broker]\nurl = \"{}\"\n[streams.ledgers]\nhandler = \"ledger\"\n\
             source = {{ kind = \"amqp\", exchange = \"ledgers\", queue = \"ledgers\", \
             partitions = 2 }}\n{between}\n[sinks.statements]\nkind = \"amqp\"\n\
             exchange = \"statements\"\nsequenced = true\n",
            redis.url(),
            rabbit.url(),
        );
        let home = Home::new(&["ledger"], &text)?;
        let hosts = [Self::host(&home)?, Self::host(&home)?];
        wait_for_command("a partition of each host", || {
            let rows = home.rows(&["instances", "--json"])?;
            let has = |row: &Value| {
                row["partitions"].as_array().is_some_and(|partitions| !partitions.is_empty())
            };
            Ok(rows.len() == 2 && rows.iter().all(has))
        })?;
        let is_over_broker = between == OVER_THE_BROKER;
        Ok(Self { redis, rabbit, client, home, hosts, is_over_broker })
    }

    /// Starts a host, and waits until its handler is active.
    fn host(home: &Home) -> Result<Service> {
        let mut host = Service::start(home, &["run"])?;
        host.until_says("handler version active")?;
        Ok(host)
    }

    fn publish(&self, batches: &[String]) -> Result<()> {
        let batches: Vec<_> =
            batches.iter().map(|batch| from_line(batch)).collect::<Result<_>>()?;
        self.client.publish("ledgers", &batches)
    }

    /// Kills the host with this index, and starts a new host in its place.
    fn kill(&mut self, index: usize) -> Result<()> {
        self.hosts[index].kill()?;
        self.hosts[index] = Self::host(&self.home)?;
        Ok(())
    }

    fn completed_keys(&self) -> Result<usize> {
        let list =
            ["keys", "list", "months", "--json", "--status", "completed", "--limit", "100000"];
        Ok(self.home.rows(&list)?.len())
    }

    /// Waits until the last stream has emitted all statements, ends the hosts, and checks all results.
    fn check(mut self, ledger: &Ledger) -> Result<()> {
        wait_for_command("all statements", || Ok(self.completed_keys()? >= ledger.statements()))?;
        for host in &mut self.hosts {
            host.end()?;
        }
        check_stages(&self.home, ledger)?;
        let statements = self.client.take_all("seen-statements")?;
        let mut rows = Vec::new();
        let mut once = BTreeMap::new();
        for delivery in &statements {
            let (_, _, id) = row(delivery)?;
            rows.push(row(delivery)?);
            once.insert(id, serde_json::from_slice::<Value>(&delivery.data)?);
        }
        ledger.check(once.into_values())?;
        let numbers = without_holes(rows)?;
        ensure!(numbers.values().sum::<u64>() == ledger.statements() as u64);
        for (exchange, right) in
            [("seen-transactions", ledger.orders()), ("seen-postings", ledger.months())]
        {
            // Without these exchanges in the configuration, the hosts must publish nothing to them.
            let expected = if self.is_over_broker { right } else { BTreeMap::new() };
            let seen = self.client.take_all(exchange)?;
            let rows: Vec<_> = seen.iter().map(row).collect::<Result<_>>()?;
            ensure!(without_holes(rows)? == expected, "{exchange}");
        }
        drop((self.redis, self.rabbit));
        Ok(())
    }
}

fn row(delivery: &Delivery) -> Result<(String, u64, String)> {
    let number = header(delivery, "X-Sequence-ID").context("a number")?.parse()?;
    let id = delivery.properties.message_id().as_ref().context("an id")?.to_string();
    Ok((header(delivery, "X-Key").context("a key")?, number, id))
}

/// Publishes the input in parts, and kills one of the hosts after each part.
fn check_with_kills(between: &str, seed: u64) -> Result<()> {
    let mut pair = Pair::start(between)?;
    let ledger = ledger(seed);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let order = [0, 1, 0, 1, 1, 0];
    // Before each kill, the hosts get new events.
    for (index, part) in
        order.into_iter().zip(ledger.batches.chunks(ledger.batches.len().div_ceil(order.len())))
    {
        pair.publish(part)?;
        std::thread::sleep(Duration::from_millis(rng.random_range(20..200)));
        pair.kill(index)?;
    }
    pair.check(&ledger)
}

#[test]
fn killed_hosts_lose_nothing_over_broker() -> Result<()> {
    check_with_kills(OVER_THE_BROKER, 11)
}

#[test]
fn killed_hosts_lose_nothing_over_store() -> Result<()> {
    check_with_kills(OVER_THE_STORE, 12)
}
