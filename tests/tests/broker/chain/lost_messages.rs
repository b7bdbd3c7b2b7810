//! A test of a store that loses many messages. The process that emitted these messages keeps only some of them in
//! memory.

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::incident::{last_commit, records};
use ordain_tests::log::{line, text};
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

/// The number of lost messages. Together, these messages are larger than the 16 MiB of messages that a process keeps in
/// memory.
const LOST_MESSAGES: u64 = 60;
const MESSAGE_BYTES: usize = 512 << 10;

fn lines(from: u64, to: u64) -> String {
    let event = |sequence| line("a", sequence, &json!({ "do": "emit", "bytes": MESSAGE_BYTES }));
    text(&(from..=to).map(event).collect::<Vec<_>>())
}

/// Redis loses messages that one stream has sent to another stream. The process no longer has all of these messages in
/// memory, so the process cannot send all of them again, and must end. The log must have a record of the loss with the
/// destination, the commits that emitted the messages, and a time before the first of these commits.
#[test]
fn record_of_messages_beyond_memory_states_their_commits() -> Result<()> {
    let redis = Redis::start(&[])?;
    // The memory budget is large enough for the process to repeat all lost commits, so only messages are lost.
    let config = format!(
        "[runtime]\nmemory_budget = \"4GiB\"\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 1\n\
         [streams]\n\
         cases = {{ handler = \"faulty\", source = {{ kind = \"file\", path = \"cases.ndjson\" }} }}\n\
         next = {{ handler = \"tally\", source = {{ kind = \"stream\" }} }}\n\
         [sinks]\n\
         faulty = {{ kind = \"stream\", stream = \"next\", sequenced = true }}\n\
         tally = {{ kind = \"file\", path = \"-\" }}\n",
        redis.url()
    );
    let home = Home::new(&["faulty", "tally"], &config)?;
    home.write("cases.ndjson", "")?;
    let mut service = Service::start(&home, &["run"])?;
    // The process must have its claim before the snapshot. Otherwise the store would also lose the claim, and the
    // process would end for that reason.
    http::ready(&mut service)?;
    let until_effects = |service: &Service, count: u64| {
        let printed = wait_until("the effects of all messages", || {
            Ok(service.stdout().lines().count() as u64 >= count)
        });
        printed.with_context(|| service.stderr())
    };
    let began = Timestamp::now().as_millisecond();
    home.append("cases.ndjson", lines(1, 1))?;
    until_effects(&service, 1)?;
    let before = last_commit(&redis, 0, "cases")?;
    let early = redis.snapshot()?;
    let copied = Timestamp::now().as_millisecond();
    home.append("cases.ndjson", lines(2, 1 + LOST_MESSAGES))?;
    until_effects(&service, 1 + LOST_MESSAGES)?;
    let after = last_commit(&redis, 0, "cases")?;
    redis.go_back(&early)?;
    let status = service.wait()?;
    let log = service.stderr();
    ensure!(status.code() == Some(1), "{status}: {log}");
    let all = records(&log)?;
    let lost: Vec<&Value> =
        all.iter().filter(|record| record["type"] == "ordain.messages.lost").collect();
    let [record] = lost[..] else { bail!("the log must contain exactly one record: {log}") };
    ensure!(record["source"] == "/ordain/cases" && record["subject"] == "partition/0", "{record}");
    let mut data = record["data"].clone();
    let messages = data["messages"].take().as_u64().context("a number")?;
    ensure!(
        messages > 0 && messages < LOST_MESSAGES,
        "the record states {messages} of {LOST_MESSAGES} messages"
    );
    let since: Timestamp = data["since"].take().as_str().context("a time")?.parse()?;
    let since = since.as_millisecond();
    ensure!(
        (began..=copied).contains(&since),
        "the record's `since` is {since}, not between {began} and {copied}"
    );
    let right = json!({
        "to": "stream/next", "messages": null, "shard": 0, "outbox": 0, "first": before + 1,
        "last": after, "since": null,
    });
    ensure!(data == right, "the record states {data}, not {right}");
    Ok(())
}
