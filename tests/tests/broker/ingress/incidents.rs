//! Tests of the reports of a host after Redis went back in time. The test itself counts the lost events and commits,
//! and compares these numbers with the log and the metrics of the host.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use ordain_core::shard_of;
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::incident::{last_commit, lost_events, records};
use ordain_tests::log::text;
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

use super::support::{
    EVENT_TYPE, LINES_TYPE, READ_AHEAD, SECTIONS, events, ingress, metric, post, post_all,
    post_with,
};

const SHARDS: u32 = 2;
/// The number of events that a test posts before the snapshot of the server. The stream is slow, so most of these
/// events wait.
const WAITING_EVENTS: usize = 1_600;

/// A host with a slow stream, whose events wait in Redis.
struct Rig {
    redis: Redis,
    _home: Home,
    service: Service,
    began: Timestamp,
}

impl Rig {
    fn start() -> Result<Self> {
        let redis = Redis::start(&[])?;
        let url = redis.url();
        let home = Home::new(
            &["tally"],
            &format!(
                "{SECTIONS}[store]\nkind = \"redis\"\nurl = \"{url}\"\nshards = {SHARDS}\n\
                 [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\n\
                 source = {{ kind = \"http\", prefetch = 1 }}\n\
                 [streams.incidents]\nhandler = \"tally\"\nordering = \"fifo\"\n\
                 source = {{ kind = \"http\" }}\n\
                 [sinks.tally]\nkind = \"file\"\npath = \"-\"\n"
            ),
        )?;
        let began = Timestamp::now();
        let service = Service::start(&home, &["run"])?;
        Ok(Self { redis, _home: home, service, began })
    }

    /// Returns the keys of the events that took effect in a stream. Checks that each key has only one event, and that
    /// this event took effect once.
    fn effects(&self, stream: &str) -> Result<BTreeSet<String>> {
        let source = format!("/ordain/{stream}");
        let mut keys = BTreeSet::new();
        for line in self.service.stdout().split_inclusive('\n').filter(|line| line.ends_with('\n'))
        {
            let message: Value = serde_json::from_str(line).context("a message")?;
            if message["source"] == source {
                ensure!(message["data"]["count"] == 1, "an event took effect twice: {line}");
                keys.insert(message["subject"].as_str().context("a key")?.to_owned());
            }
        }
        Ok(keys)
    }

    fn count(&self) -> Result<usize> {
        Ok(self.effects("cases")?.len())
    }

    /// Returns the records of incidents in the log of the host. Checks the attributes of each record, which must belong
    /// to the stream `cases`.
    fn records(&self) -> Result<Vec<Value>> {
        const ATTRIBUTES: [(&str, &str); 4] = [
            ("specversion", "1.0"),
            ("source", "/ordain/cases"),
            ("subject", "partition/0"),
            ("datacontenttype", "application/json"),
        ];
        let records = records(&self.service.stderr())?;
        let mut ids = BTreeSet::new();
        for record in &records {
            for (name, value) in ATTRIBUTES {
                ensure!(record[name] == value, "{name} is not {value:?} in {record}");
            }
            let id = record["id"].as_str().context("an id")?;
            ensure!(!id.is_empty() && ids.insert(id), "another record has the id of {record}");
            let time: Timestamp = record["time"].as_str().context("a time")?.parse()?;
            ensure!(
                self.began <= time && time <= Timestamp::now(),
                "the host did not run at the time of {record}"
            );
            let members = record.as_object().context("an object")?.len();
            ensure!(members == ATTRIBUTES.len() + ["id", "time", "type", "data"].len(), "{record}");
        }
        Ok(records)
    }

    /// Posts each record twice to the stream `incidents`, and ends the host. The host must accept each record as an
    /// event, and each repeated record must have no effect.
    fn send_on(mut self, records: &[Value]) -> Result<()> {
        let address = ingress(&mut self.service)?;
        let kind = format!("content-type: {EVENT_TYPE}");
        for record in records.iter().chain(records) {
            let path = "/v1/streams/incidents/events";
            let answer = post_with(address, path, &[&kind], &record.to_string())?;
            ensure!(answer.status == 202, "{record}: {answer:?}");
        }
        let effects = |service: &Service| -> Result<Vec<Value>> {
            let printed = service.stdout();
            let lines = printed.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let messages = lines.map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
            let is_of_record = |message: &Value| message["source"] == "/ordain/incidents";
            Ok(messages.into_iter().filter(is_of_record).collect())
        };
        wait_until("the effects of all records", || {
            Ok(effects(&self.service)?.len() >= records.len())
        })?;
        self.service.end()?;
        let effects = effects(&self.service)?;
        let last = &effects.last().context("an effect")?["data"];
        ensure!(effects.len() == records.len() && last["key"] == "partition/0", "{effects:?}");
        ensure!(last["count"] == records.len(), "{effects:?}");
        Ok(())
    }

    fn last_commits(&self) -> Result<Vec<u64>> {
        (0..SHARDS).map(|shard| last_commit(&self.redis, shard, "cases")).collect()
    }
}

fn of_type<'a>(records: &'a [Value], kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["type"] == kind).collect()
}

/// Returns how many waiting events of a shard are safe (still in the store) according to the records: the sum over all
/// records of the shard. Returns `None` if no record of the shard states such a number.
fn safe_events(records: &[Value], shard: u32) -> Option<u64> {
    let data = records.iter().map(|record| &record["data"]).filter(|data| data["shard"] == shard);
    data.filter_map(|data| data["safe"].as_u64()).reduce(|one, other| one + other)
}

/// A request whose events the Redis server loses later.
struct LostRequest {
    sent: Timestamp,
    answered: Timestamp,
    keys: Vec<String>,
}

/// The records must state for each shard how many waiting events are lost, when the host accepted the first of them,
/// and how many waiting events are safe. The metric must show the same number of lost events. The host must also accept
/// these records as events.
#[test]
fn records_of_lost_events_are_correct() -> Result<()> {
    const LOST_EVENTS: usize = 600;
    const LATER_EVENTS: usize = 200;
    let mut rig = Rig::start()?;
    let address = ingress(&mut rig.service)?;
    post_all(address, &events("a", WAITING_EVENTS))?;
    let early = rig.redis.snapshot()?;
    let mut requests = Vec::new();
    for chunk in events("b", LOST_EVENTS).chunks(100) {
        let sent = Timestamp::now();
        ensure!(post(address, LINES_TYPE, &text(chunk))?.status == 202);
        let answered = Timestamp::now();
        let key = |line: &String| -> Result<String> {
            let event: Value = serde_json::from_str(line)?;
            Ok(event["subject"].as_str().context("a key")?.to_owned())
        };
        let keys = chunk.iter().map(key).collect::<Result<_>>()?;
        requests.push(LostRequest { sent, answered, keys });
    }
    let taken_before = rig.count()?;
    rig.redis.go_back(&early)?;
    post_all(address, &events("c", LATER_EVENTS))?;
    let taken_after = rig.count()?;
    let of_name = |effects: &BTreeSet<String>, name: char| {
        effects.iter().filter(|key| key.starts_with(name)).count()
    };
    wait_until("the effects of all events that the server has", || {
        let effects = rig.effects("cases")?;
        Ok(of_name(&effects, 'a') == WAITING_EVENTS && of_name(&effects, 'c') == LATER_EVENTS)
    })?;
    let mut all = Vec::new();
    let stated = wait_until("records of all lost events", || {
        all = rig.records()?;
        let lost = LOST_EVENTS - of_name(&rig.effects("cases")?, 'b');
        Ok(lost_events(&all) == lost as u64
            && (0..SHARDS).all(|shard| safe_events(&all, shard).is_some()))
    });
    stated.with_context(|| rig.service.stderr())?;
    ensure!(metric(&mut rig.service, "ordain_events_lost_total")? == lost_events(&all), "{all:?}");

    let effects = rig.effects("cases")?;
    for shard in 0..SHARDS {
        let is_lost =
            |key: &&String| shard_of(key, SHARDS) == shard && !effects.contains(key.as_str());
        let lost = requests.iter().flat_map(|request| request.keys.iter().filter(is_lost)).count();
        ensure!(lost > 0, "the server lost no event of shard {shard}");
        let of_shard: Vec<Value> =
            all.iter().filter(|record| record["data"]["shard"] == shard).cloned().collect();
        ensure!(
            lost_events(&of_shard) == lost as u64,
            "{lost} events are lost, but not in the records: {of_shard:?}"
        );
        let since = |record: &&Value| -> Result<i64> {
            let since = record["data"]["since"].as_str().context("a time")?;
            Ok(since.parse::<Timestamp>()?.as_millisecond())
        };
        let records = of_type(&of_shard, "ordain.events.lost");
        let since: Vec<i64> = records.iter().map(since).collect::<Result<_>>()?;
        let first = requests.iter().find(|request| request.keys.iter().any(|key| is_lost(&key)));
        let first = first.context("a request with a lost event")?;
        let sent = first.sent.as_millisecond();
        let answered = first.answered.as_millisecond();
        let since = since.into_iter().min().context("a record")?;
        ensure!(
            (sent..=answered).contains(&since),
            "the record's `since` is {since}, not between {sent} and {answered}: {of_shard:?}"
        );
    }
    // The test knows only a lower and an upper limit for the number of safe events, for two reasons. First, the host
    // had already read some events when the server went back in time. Second, if events that the host accepted
    // afterwards were waiting when the reader detected the loss, they may count as safe.
    let safe = (0..SHARDS).filter_map(|shard| safe_events(&all, shard)).sum::<u64>() as usize;
    let least =
        WAITING_EVENTS.checked_sub(taken_after + READ_AHEAD).context("the stream is too fast")?;
    let most = WAITING_EVENTS - taken_before + LATER_EVENTS;
    ensure!(
        (least..=most).contains(&safe),
        "{safe} events are safe, not {least} to {most}: {all:?}"
    );

    rig.send_on(&all)
}

/// The server loses commits of an idle stream. The host's record must state the first and the last lost commit of each
/// shard, and the number of all lost commits. The test reads the expected numbers from the fences in the server. One
/// metric must show the same number of commits, and another metric must show each shard that went back.
#[test]
fn record_of_repeated_commits_states_their_numbers() -> Result<()> {
    let mut rig = Rig::start()?;
    let address = ingress(&mut rig.service)?;
    post_all(address, &events("a", 20))?;
    wait_until("the first effects", || Ok(rig.count()? == 20))?;
    let early = rig.redis.snapshot()?;
    let before = rig.last_commits()?;
    post_all(address, &events("b", 30))?;
    wait_until("the effects of all events", || Ok(rig.count()? == 50))?;
    let after = rig.last_commits()?;
    rig.redis.go_back(&early)?;
    rig.service.until_says("all of them were repeated from memory")?;
    let all = rig.records()?;
    let repeated = of_type(&all, "ordain.commits.repeated");
    let [record] = repeated[..] else { bail!("the log must contain exactly one record: {all:?}") };
    let ranges = (0..SHARDS).zip(before.iter().zip(&after));
    let ranges: Vec<(u32, u64, u64)> =
        ranges.map(|(shard, (before, after))| (shard, before + 1, *after)).collect();
    ensure!(ranges.iter().all(|(_, first, last)| first <= last), "no commit is lost: {ranges:?}");
    let lost: u64 = ranges.iter().map(|(_, first, last)| last + 1 - first).sum();
    let shards: Vec<Value> = ranges
        .iter()
        .map(|(shard, first, last)| json!({ "shard": shard, "first": first, "last": last }))
        .collect();
    ensure!(record["data"] == json!({ "commits": lost, "shards": shards }), "{record}");
    let words: Vec<String> =
        ranges.iter().map(|(shard, first, last)| format!("{shard}: {first} to {last}")).collect();
    let words = format!("commits={lost} shards=\"{}\"", words.join(", "));
    ensure!(rig.service.stderr().contains(&words), "{words}: {}", rig.service.stderr());
    let repeated = "ordain_commits_repeated_total{stream=\"cases\"}";
    ensure!(metric(&mut rig.service, repeated)? == lost);
    for (shard, ..) in ranges {
        let name = format!("ordain_rollbacks_total{{stream=\"cases\",shard=\"{shard}\"}}");
        ensure!(metric(&mut rig.service, &name)? > 0, "no metric shows the loss of shard {shard}");
    }
    ensure!(of_type(&all, "ordain.events.lost").is_empty(), "{all:?}");
    rig.service.end()
}

/// The server loses commits, but none of the waiting events. After the host has read the waiting events, its records
/// must state their number in each shard, and that all of them are safe. The host must count no event as lost.
#[test]
fn record_states_that_all_waiting_events_are_safe() -> Result<()> {
    let mut rig = Rig::start()?;
    let address = ingress(&mut rig.service)?;
    post_all(address, &events("a", WAITING_EVENTS))?;
    let early = rig.redis.snapshot()?;
    let taken = rig.count()?;
    wait_until("effects that the snapshot does not have", || Ok(rig.count()? >= taken + 50))?;
    let taken_before = rig.count()?;
    rig.redis.go_back(&early)?;
    rig.service.until_says("all of them were repeated from memory")?;
    let taken_after = rig.count()?;
    let mut all = Vec::new();
    let stated = wait_until("a record of each shard", || {
        all = rig.records()?;
        Ok((0..SHARDS).all(|shard| safe_events(&all, shard).is_some()))
    });
    stated.with_context(|| rig.service.stderr())?;
    wait_until("the effects of all events", || Ok(rig.count()? == WAITING_EVENTS))?;
    let log = rig.service.stderr();
    let mut safe = 0;
    for record in of_type(&all, "ordain.events.safe") {
        let of_shard = record["data"]["safe"].as_u64().context("a number")?;
        ensure!(record["data"]["lost"] == 0 && of_shard > 0, "{record}");
        ensure!(
            log.contains(&format!("the store still has all {of_shard} waiting events")),
            "{log}"
        );
        safe += of_shard as usize;
    }
    let least =
        WAITING_EVENTS.checked_sub(taken_after + READ_AHEAD).context("the stream is too fast")?;
    let most = WAITING_EVENTS - taken_before;
    ensure!(
        (least..=most).contains(&safe),
        "{safe} events are safe, not {least} to {most}: {all:?}"
    );
    ensure!(metric(&mut rig.service, "ordain_events_lost_total")? == 0);
    ensure!(of_type(&rig.records()?, "ordain.events.lost").is_empty(), "{log}");
    rig.service.end()
}
