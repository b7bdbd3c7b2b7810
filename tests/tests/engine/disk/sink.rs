//! Tests of a sink's file on a failing disk, and of a store that is older than the file. No line that the store counts
//! as published may be lost, and no message may be in the file twice.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};
use ordain_servers::Port;
use ordain_tests::host::{Home, copy_folder};
use ordain_tests::http;
use ordain_tests::incident::records;
use ordain_tests::log::{by_key, in_turn, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

use super::support::{DISK, LISTENING_WORDS, Rig, SINK_FILE, STORE, home};
use super::synced::SyncedDisk;

const COPY: &str = "copy";
/// A part of the log line of a start that finds, in the sink's file, messages that the store has not recorded as
/// published.
const SKIPPED: &str = "Ordain does not write these messages again";

/// A power failure removes a new file if its folder was not synced. So the host must sync the folder before the store
/// counts lines of the file as published.
#[test]
fn new_file_survives_power_cut() -> Result<()> {
    let mut rig = Rig::start()?;
    let accepted = rig.while_producing(0, |rig, producer| {
        let home = &rig.home;
        rig.service.until("published lines", || home.lines(SINK_FILE) > 0)?;
        // The commits of these later events durably record that the earlier lines are published.
        rig.until_accepted(producer, 200)?;
        rig.cut_power()?;
        ensure!(rig.home.lines(SINK_FILE) > 0, "the file of the sink is lost");
        let log = rig.disk.log()?;
        let first = |ending: &str| log.lines().position(|line| line.ends_with(ending));
        let folder = first("/disk/out").context("the folder was not synced")?;
        let file = first("/disk/out/out.ndjson").context("the file was not synced")?;
        ensure!(folder < file, "the folder was synced after the file: {log}");
        rig.start_on_good_disk()?;
        rig.until_accepted(producer, 100)
    });
    let checked = accepted.and_then(|accepted| rig.check(&accepted));
    checked.with_context(|| rig.service.stderr())
}

/// A sync of the sink's file fails, and the disk never gets the lines of this sync. The host must end, and the next
/// process must write these lines again.
#[test]
fn failed_sync_of_file_loses_no_line() -> Result<()> {
    // The power fails immediately after the failed sync, or after the next process has accepted 10 or 500 events.
    for more in [None, Some(10), Some(500)] {
        let mut rig = Rig::start()?;
        let accepted = rig.while_producing(0, |rig, producer| {
            rig.until_accepted(producer, 200)?;
            rig.disk.fail_next_sync("out.ndjson")?;
            rig.until_failed(1, SINK_FILE)?;
            if let Some(more) = more {
                rig.start_again()?;
                rig.until_accepted(producer, more)?;
            }
            rig.cut_power()?;
            rig.start_on_good_disk()?;
            rig.until_accepted(producer, 100)
        });
        let checked = accepted.and_then(|accepted| rig.check(&accepted));
        checked.with_context(|| format!("{more:?}: {}", rig.service.stderr()))?;
    }
    Ok(())
}

const READ_ONLY: &str = "Read-only file system";

/// The file system of the sink's file becomes read-only while the host runs, for example after an error of the disk.
/// The host must accept events and keep their messages, must log the reason, and must not be ready. When the file
/// system is writable again, the host must write the messages.
#[test]
fn messages_wait_while_the_file_system_of_the_sink_is_read_only() -> Result<()> {
    for ordering in ["sequenced", "fifo"] {
        let port = Port::take()?;
        let home = home(&port)?;
        let handler = "handler = \"tally\"\n";
        let ordered = format!("{handler}ordering = \"{ordering}\"\n");
        home.write("ordain.toml", home.read("ordain.toml").replace(handler, &ordered))?;
        let disk = SyncedDisk::create(&home, DISK, &["store", "out"])?;
        let mut service = Service::start_with(&home, &["run"], &disk.env())?;
        service.until_says(LISTENING_WORDS)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
        let send = |lines: &[String]| -> Result<()> {
            let answer = http::post(address, http::LINES_TYPE, &text(lines))?;
            ensure!(answer.status == 202, "{answer:?}");
            Ok(())
        };
        let lines = in_turn(3, 20);
        let (first, rest) = lines.split_at(30);
        send(first)?;
        service.until("the first messages", || home.lines(SINK_FILE) == first.len())?;
        disk.make_read_only("/out/")?;
        send(rest)?;
        service.until_lines(1, &["sink not writable", READ_ONLY])?;
        ensure!(home.lines(SINK_FILE) == first.len(), "{}", home.read(SINK_FILE));
        let admin = http::admin(&mut service)?;
        let reason = "stream cases: the output of the sink tally has not been writable since 20";
        service.until("unreadiness because of the sink", || {
            let page = http::get(admin, "/readyz");
            page.is_ok_and(|page| page.status == 503 && page.body.contains(reason))
        })?;
        ensure!(http::metric(admin, "ordain_sink_accepted")? == Some(0), "{}", service.stderr());
        ensure!(http::get(admin, "/readyz/ingress")?.status == 200, "{}", service.stderr());
        disk.make_writable()?;
        service.until_says("sink writable again")?;
        http::ready(&mut service)?;
        ensure!(http::metric(admin, "ordain_sink_accepted")? == Some(1), "{}", service.stderr());
        service.until("all messages", || home.lines(SINK_FILE) == lines.len())?;
        service.end()?;
        tally::check(&by_key(&lines)?, &home.read(SINK_FILE))?;
    }
    Ok(())
}

/// The file system of the store becomes read-only while the host runs. The host must end with the reason. While the
/// file system is read-only, a start must fail with the exit code 75, so that a supervisor starts the host again.
/// Afterwards, no accepted event may be lost.
#[test]
fn host_ends_when_the_file_system_of_its_store_becomes_read_only() -> Result<()> {
    let mut rig = Rig::start()?;
    let accepted = rig.while_producing(0, |rig, producer| {
        rig.until_accepted(producer, 200)?;
        rig.disk.make_read_only("/store/")?;
        for code in [1, 75] {
            let status = rig.service.wait()?;
            let log = rig.service.stderr();
            let is_right = status.code() == Some(code) && log.contains(READ_ONLY);
            ensure!(is_right, "the host ended with {status}: {log}");
            if code == 75 {
                rig.disk.make_writable()?;
            }
            rig.start_again()?;
        }
        rig.until_accepted(producer, 100)
    });
    let checked = accepted.and_then(|accepted| rig.check(&accepted));
    checked.with_context(|| rig.service.stderr())
}

/// A host with few events, whose store the test returns to an earlier time.
struct RestoredHost {
    home: Home,
    disk: SyncedDisk,
    port: Port,
    sent: Vec<String>,
}

impl RestoredHost {
    /// Creates the home and the disk of a host, but does not start the host. `is_sequenced` is the setting `sequenced`
    /// of the sink.
    fn new(is_sequenced: bool) -> Result<Self> {
        let port = Port::take()?;
        let home = home(&port)?;
        if is_sequenced {
            let config = home.read("ordain.toml");
            let kind = "kind = \"file\"\n";
            home.write("ordain.toml", config.replace(kind, &format!("{kind}sequenced = true\n")))?;
        }
        let disk = SyncedDisk::create(&home, DISK, &["store", "out"])?;
        Ok(Self { home, disk, port, sent: Vec::new() })
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port.number()))
    }

    /// Records the event as sent, and returns the body of its request.
    fn event(&mut self, key: &str, sequence: u64) -> String {
        let event = line(key, sequence, &json!({ "n": sequence }));
        let body = text(std::slice::from_ref(&event));
        self.sent.push(event);
        body
    }

    /// Runs the host until the messages of an event and of all earlier events are in the file. Returns the log.
    fn publish(&mut self, key: &str, sequence: u64) -> Result<String> {
        let body = self.event(key, sequence);
        let mut service = Service::start(&self.home, &["run"])?;
        service.until_says(LISTENING_WORDS)?;
        let answer = http::post(self.address(), http::LINES_TYPE, &body)?;
        ensure!(answer.status == 202, "{answer:?}");
        service.until("all effects", || self.home.lines(SINK_FILE) >= self.sent.len())?;
        service.end()?;
        Ok(service.stderr())
    }

    /// Runs the host until it has committed the message of an event. The sync of the message's line fails, so the
    /// message stays in the outbox, and the host ends.
    fn commit(&mut self, key: &str, sequence: u64) -> Result<()> {
        let body = self.event(key, sequence);
        self.disk.fail_next_sync("out.ndjson")?;
        let mut service = Service::start_with(&self.home, &["run"], &self.disk.env())?;
        service.until_says(LISTENING_WORDS)?;
        // The host may end before it answers.
        let _ = http::post(self.address(), http::LINES_TYPE, &body);
        let status = service.wait()?;
        ensure!(self.disk.has_failed(), "no sync failed: {}", service.stderr());
        ensure!(status.code() == Some(1), "the host ended with {status}: {}", service.stderr());
        Ok(())
    }
}

/// A copy of the store's folder has an unpublished message. The host publishes this message and a later message, and
/// then the copy replaces the folder. The file must keep both lines, and must not get the first message again.
#[test]
fn unpublished_message_of_restored_copy_is_not_repeated() -> Result<()> {
    for is_sequenced in [false, true] {
        restore_copy(is_sequenced).with_context(|| format!("sequenced = {is_sequenced}"))?;
    }
    Ok(())
}

/// Runs the test [`unpublished_message_of_restored_copy_is_not_repeated`] once. `is_sequenced` is the setting
/// `sequenced` of the sink.
fn restore_copy(is_sequenced: bool) -> Result<()> {
    let mut host = RestoredHost::new(is_sequenced)?;
    host.publish("k0", 1)?;
    host.commit("k0", 2)?;
    let [store, copy] = [STORE, COPY].map(|name| host.home.path(name));
    copy_folder(&store, &copy)?;
    // The store is not older than the file, so the log must contain no record of a loss.
    let log = host.publish("k1", 1)?;
    ensure!(log.contains(SKIPPED) && records(&log)?.is_empty(), "{log}");
    let before = host.home.read(SINK_FILE);
    fs::remove_dir_all(&store)?;
    fs::rename(&copy, &store)?;

    let log = host.publish("k0", 3)?;
    ensure!(host.home.read(SINK_FILE).starts_with(&before), "the file lacks earlier lines");
    check_lines(&host, is_sequenced).with_context(|| log.clone())?;
    let all = records(&log)?;
    let [record] = &all[..] else { bail!("the log must contain exactly one record: {log}") };
    ensure!(record["type"] == "ordain.messages.lost" && record["data"]["messages"] == 1, "{log}");
    ensure!(log.contains("THE STORE WENT BACK IN TIME") && log.contains(SKIPPED), "{log}");

    // The store has recorded the kept lines, so the next start does not report them again.
    let log = host.publish("k0", 4)?;
    ensure!(!log.contains(SKIPPED) && records(&log)?.is_empty(), "{log}");
    check_lines(&host, is_sequenced)
}

/// Checks that the file has one message for each event. If the sink is sequenced, also checks the numbers of the
/// messages: each event emits one message of its key, so a message has the number of its event.
fn check_lines(host: &RestoredHost, is_sequenced: bool) -> Result<()> {
    let out = host.home.read(SINK_FILE);
    tally::check(&by_key(&host.sent)?, &out).with_context(|| out.clone())?;
    for line in out.lines() {
        let message: Value = serde_json::from_str(line)?;
        let event = message["data"]["sequence"].to_string();
        let number = if is_sequenced { json!(event) } else { Value::Null };
        ensure!(message["sequence"] == number, "a wrong number: {line}");
    }
    Ok(())
}
