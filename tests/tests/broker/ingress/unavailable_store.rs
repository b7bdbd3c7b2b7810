//! Tests of events over HTTP while Redis refuses requests. Each test has another reason: a script of another client
//! runs, the server suddenly requires a password, the disk of the server is full, or all nodes of a Cluster were
//! killed. The host must report the words of the server, must not be ready meanwhile, and must continue by itself. Each
//! accepted event must take effect once.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use ordain_servers::{Cluster, Options, Redis};
use ordain_tests::host::Home;
use ordain_tests::http::{admin, get, ready};
use ordain_tests::log::text;
use ordain_tests::service::{Service, wait_until};
use serde_json::Value;

use super::support::{LINES_TYPE, SECTIONS, events, ingress, post, post_all};

struct Rig {
    _home: Home,
    service: Service,
    /// The number of different events that the host has accepted.
    accepted: usize,
}

impl Rig {
    /// Starts a host with a store at `url`. The first events have taken effect when this function returns.
    fn start(url: &str) -> Result<Self> {
        let home = Home::new(
            &["tally"],
            &format!(
                "{SECTIONS}[store]\nkind = \"redis\"\nurl = \"{url}\"\nshards = 4\n\
                 [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\n\
                 source = {{ kind = \"http\" }}\n\
                 [sinks.tally]\nkind = \"file\"\npath = \"-\"\n"
            ),
        )?;
        let service = Service::start(&home, &["run"])?;
        let mut rig = Self { _home: home, service, accepted: 0 };
        ready(&mut rig.service)?;
        rig.post("before")?;
        Ok(rig)
    }

    fn address(&mut self) -> Result<SocketAddr> {
        ingress(&mut self.service)
    }

    /// Posts events whose keys begin with `name`, which the host must accept. Waits for the effects of all accepted
    /// events.
    fn post(&mut self, name: &str) -> Result<()> {
        let lines = events(name, 20);
        post_all(self.address()?, &lines)?;
        self.accepted += lines.len();
        let accepted = self.accepted;
        let printed = wait_until("the effects of all accepted events", || {
            Ok(self.service.stdout().matches('\n').count() >= accepted)
        });
        printed.with_context(|| self.service.stderr())
    }

    /// Posts events, which the host must refuse. Returns the events.
    fn post_refused(&mut self) -> Result<Vec<String>> {
        let refused = events("refused", 20);
        let answer = post(self.address()?, LINES_TYPE, &text(&refused))?;
        ensure!(answer.status == 503, "{answer:?}");
        Ok(refused)
    }

    /// Waits until the host is not ready because of its store, and its log contains `words`.
    fn until_unready(&mut self, words: &str) -> Result<()> {
        let address = admin(&mut self.service)?;
        self.service.until("a host that is not ready", || {
            get(address, "/readyz").is_ok_and(|page| {
                page.status == 503 && page.body.contains("not ready: the store has ")
            })
        })?;
        self.service.until_says(words)
    }

    fn until_unanswered(&mut self) -> Result<()> {
        let address = admin(&mut self.service)?;
        self.service.until("the report that the store does not answer", || {
            get(address, "/readyz").is_ok_and(|page| {
                page.status == 503
                    && page.body.contains("not ready: the store has not answered since 20")
            })
        })?;
        self.service.until_says("not ready: the store does not answer")
    }

    /// Waits until the host is ready again. Sends `refused` again, and posts more events. Checks that each event took
    /// effect once, and ends the host.
    fn check_recovery(&mut self, refused: &[String]) -> Result<()> {
        ready(&mut self.service)?;
        post_all(self.address()?, refused)?;
        self.accepted += refused.len();
        self.post("after")?;
        self.service.end()?;
        let printed = self.service.stdout();
        ensure!(printed.lines().count() == self.accepted, "{printed}");
        for line in printed.lines() {
            let message: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            ensure!(message["data"]["count"] == 1, "an event took effect twice: {line}");
        }
        Ok(())
    }
}

/// Another client runs `script`, which does not end by itself. The script runs for longer than a lease, and for longer
/// than the host waits before it refuses a request. `end` ends the script.
fn check_busy_server(script: &str, end: impl FnOnce(&Redis) -> Result<()>) -> Result<()> {
    let redis = Redis::with(&Options::new().line("busy-reply-threshold 100"))?;
    let mut rig = Rig::start(&redis.url())?;
    let mut other = redis.connect()?;
    other.send(&["EVAL", script, "0"])?;
    rig.until_unready("unavailable: BUSY ")?;
    let refused = rig.post_refused()?;
    // The server answers, but completes no request.
    rig.service.until_says("lease expired: the store has not completed a heartbeat")?;
    end(&redis)?;
    rig.check_recovery(&refused)
}

#[test]
fn script_of_another_client_delays_events() -> Result<()> {
    check_busy_server("while true do end", |redis| redis.command(&["SCRIPT", "KILL"]).map(drop))
}

/// The server does not kill a script that has written: an operator can only end the server without saving.
#[test]
fn script_that_has_written_delays_events_until_the_server_restarts() -> Result<()> {
    check_busy_server("redis.call('SET', 'other', '1') while true do end", |redis| {
        let refused = redis.attempt(&["SCRIPT", "KILL"])?;
        ensure!(format!("{refused:?}").contains("UNKILLABLE"), "{refused:?}");
        // The server closes the connection instead of replying.
        let _ = redis.attempt(&["SHUTDOWN", "NOSAVE"]);
        wait_until("the end of the server", || Ok(!redis.is_running()))?;
        redis.restart()
    })
}

/// The server requires a password from now on, which the URL does not contain. The connections that are open continue.
/// Each new connection is refused, and the host must state the reason of the server.
#[test]
fn password_without_notice_delays_events() -> Result<()> {
    let redis = Redis::start(&[])?;
    let mut rig = Rig::start(&redis.url())?;
    let mut operator = redis.connect()?;
    operator.command(&["CONFIG", "SET", "requirepass", "secret"])?;
    rig.post("meanwhile")?;
    operator.command(&["CLIENT", "KILL", "TYPE", "normal"])?;
    rig.until_unready("NOAUTH Authentication required. The server requires a password")?;
    let refused = rig.post_refused()?;
    operator.command(&["CONFIG", "SET", "requirepass", ""])?;
    rig.check_recovery(&refused)?;
    // The server would report a protocol error for a large request of a client without a login, so the host must not
    // send such a request.
    let log = rig.service.stderr();
    ensure!(!log.contains("Protocol error"), "{log}");
    Ok(())
}

/// Twice, the host accepts events, and then all nodes of the Cluster are killed and started again.
#[test]
fn killed_nodes_of_a_cluster_delay_events() -> Result<()> {
    let cluster = Cluster::start(3)?;
    let mut rig = Rig::start(&cluster.urls()[0])?;
    for (round, name) in (1..).zip(["first", "second"]) {
        let accepted = events(name, 200);
        post_all(rig.address()?, &accepted)?;
        rig.accepted += accepted.len();
        for node in cluster.nodes() {
            node.kill()?;
        }
        rig.until_unready("onnection refused")?;
        // While the nodes end one after the other, the store may answer reads at first.
        rig.until_unanswered()?;
        rig.service.until_lines(round, &["lease expired"])?;
        for node in cluster.nodes() {
            node.restart()?;
        }
        cluster.until_ready()?;
        ready(&mut rig.service)?;
    }
    rig.check_recovery(&[])
}

/// The server syncs its file once a second, and refuses writes while it cannot write this file.
#[test]
fn full_disk_of_the_server_delays_events() -> Result<()> {
    let redis = Redis::with(&Options::new().line("appendfsync everysec"))?;
    let mut rig = Rig::start(&redis.url())?;
    redis.fill_disk()?;
    rig.until_unready("MISCONF Errors writing to the AOF file: ")?;
    let refused = rig.post_refused()?;
    redis.free_disk()?;
    rig.check_recovery(&refused)
}

/// A server that syncs each write ends when it cannot write its file.
#[test]
fn server_that_ended_because_of_a_full_disk_delays_events() -> Result<()> {
    let redis = Redis::start(&[])?;
    let mut rig = Rig::start(&redis.url())?;
    redis.fill_disk()?;
    wait_until("the end of the server", || Ok(!redis.is_running()))?;
    rig.until_unready("onnection refused")?;
    let refused = rig.post_refused()?;
    redis.restart()?;
    rig.check_recovery(&refused)
}
