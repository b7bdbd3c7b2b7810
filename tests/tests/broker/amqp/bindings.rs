//! Tests of bindings that other programs add or remove. The host reads the bindings from the broker's management API.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use lapin::types::FieldTable;
use ordain_tests::host::Home;
use ordain_tests::http::{metric, ready, send};
use ordain_tests::log::in_turn;
use ordain_tests::rig::Rig;
use ordain_tests::service::{Service, wait_until};

use super::policies::{check, rig};

/// The arguments of a host that reads policies and bindings every six seconds.
const RUN_ARGUMENTS: [&str; 2] = ["--wait-divisor=50", "run"];
/// The arguments of a host that checks the topology of its streams every three seconds.
const RUN_WITH_FREQUENT_CHECKS: [&str; 2] = ["--wait-divisor=20", "run"];
/// Words of the report about an additional queue that is bound to the exchange of a stream with several partitions.
const DIVIDED_WORDS: &str =
    "the exchange \"cases\" divides its messages among the queues of stream cases, and the queue";

fn changes(address: SocketAddr) -> Result<u64> {
    Ok(metric(address, "ordain_topology_changes_total")?.unwrap_or(0))
}

/// Runs `ordain check --connect`, which must find an error. Returns its standard error.
fn failed_check(home: &Home) -> Result<String> {
    let output = home.output(&["check", "--connect"])?;
    let errors = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(78), "{}: {errors}", output.status);
    Ok(errors)
}

/// Sends the request of the first `curl` command in `text` that removes a binding.
fn run_unbind_command(text: &str) -> Result<()> {
    let (_, rest) = text.split_once("curl -u USER -X DELETE 'http://").context("a command")?;
    let (url, _) = rest.split_once('\'').context("the end of the command")?;
    let (address, path) = url.split_once('/').context("a path")?;
    // The login is guest:guest in Base64.
    let request = format!(
        "DELETE /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
    );
    let answer = send(address.parse()?, request.as_bytes())?;
    ensure!(answer.status == 204, "{answer:?}");
    Ok(())
}

/// Before the first event, another program binds a queue to the exchange of a stream with several partitions. No other
/// check can detect this, because the store has no records of the keys that the queue takes. The host must report the
/// queue repeatedly, and the command in the report must remove the binding.
#[test]
fn queue_that_takes_keys_is_reported() -> Result<()> {
    for stream in ["", "ordering = \"fifo\""] {
        let rig = rig(stream, "partitions = 4", None)?;
        let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
        rig.until_declared()?;
        let address = ready(&mut service)?;
        check(&rig.home)?;
        ensure!(changes(address)? == 0, "{}", service.stderr());

        rig.client.queue("audit")?;
        rig.client.bind("audit", "cases", "")?;
        let lines = in_turn(50, 1);
        rig.publish(&lines)?;
        let taken = rig.rabbit.queues()?.get("audit").map_or(0, |(ready, _)| *ready);
        ensure!(taken > 0, "the exchange has sent nothing to the queue `audit`");
        let words = ["broker may lose events: ", DIVIDED_WORDS, "\"audit\"", "stream=\"cases\""];
        service.until_lines(2, &words)?;
        wait_until("two counted changes", || Ok(changes(address)? >= 2))?;
        let errors = failed_check(&rig.home)?;
        ensure!(
            errors.contains(&format!("{DIVIDED_WORDS} \"audit\" is bound to it too")),
            "{errors}"
        );

        run_unbind_command(&errors)?;
        // For a moment, RabbitMQ may still list the binding.
        wait_until("the removal of the binding", || {
            Ok(!rig.rabbit.bound("cases")?.contains(&"audit".to_owned()))
        })?;
        check(&rig.home)?;
        rig.client.lose("audit", "cases", usize::try_from(taken)?, |_| false)?;
        rig.check(&lines)?;
        service.end()?;
    }
    Ok(())
}

/// Another program binds a queue of a stream with several partitions a second time. The exchange divides its messages
/// among all bindings, so most keys change their partition. The host must report the second binding repeatedly. The
/// command in the report must remove this binding.
#[test]
fn second_binding_of_a_queue_is_reported() -> Result<()> {
    let rig = rig("", "partitions = 4", None)?;
    let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
    rig.until_declared()?;
    let address = ready(&mut service)?;
    let lines = in_turn(50, 2);
    let (first, second) = lines.split_at(50);
    rig.publish(first)?;
    let mut out = Vec::new();
    rig.take(&mut out, first.len())?;
    rig.client.bind("cases.1", "cases", "audit")?;
    rig.publish(second)?;
    rig.take(&mut out, lines.len())?;
    ensure!(metric(address, "ordain_keys_moved_total")? > Some(0), "{}", service.stderr());
    let words = "the queue \"cases.1\" of stream cases is bound to it more than once";
    service.until_lines(2, &["broker may reorder events: ", words, "stream=\"cases\""])?;
    wait_until("two counted changes", || Ok(changes(address)? >= 2))?;
    let errors = failed_check(&rig.home)?;
    ensure!(errors.contains(words), "{errors}");

    run_unbind_command(&errors)?;
    // For a moment, RabbitMQ may still list the binding.
    wait_until("the removal of the binding", || {
        Ok(rig.rabbit.bound("cases")?.iter().filter(|name| *name == "cases.1").count() == 1)
    })?;
    check(&rig.home)?;
    service.end()
}

/// With `declare = false`, a stream with several partitions can use an exchange of any type. A topic exchange sends a
/// copy of each message to each queue whose binding matches, so an additional queue takes no events from the stream.
#[test]
fn queue_that_receives_copies_is_no_error() -> Result<()> {
    let rig = rig("", "partitions = 2, declare = false", None)?;
    rig.client.exchange("cases", ExchangeKind::Topic)?;
    for (queue, key) in [("cases.0", "a.#"), ("cases.1", "b.#"), ("audit", "#")] {
        rig.client.queue_with(queue, FieldTable::default())?;
        rig.client.bind(queue, "cases", key)?;
    }
    let printed = check(&rig.home)?;
    ensure!(!printed.contains("audit"), "{printed}");
    Ok(())
}

struct NeededBinding {
    source: &'static str,
    from: &'static str,
    to: &'static str,
    key: &'static str,
    described: &'static str,
    effect: &'static str,
}

const LOST_WORDS: &str = "published while it was missing are lost, so publish them again";

const NEEDED_BINDINGS: [NeededBinding; 3] = [
    NeededBinding {
        source: "",
        from: "cases",
        to: "cases",
        key: "",
        described: "from exchange \"cases\" to queue \"cases\"",
        effect: LOST_WORDS,
    },
    NeededBinding {
        source: "partitions = 4",
        from: "cases",
        to: "cases.3",
        key: "",
        described: "from exchange \"cases\" to queue \"cases.3\"",
        effect: "published while the binding was missing are in other partitions",
    },
    NeededBinding {
        source: "bind = [{ exchange = \"feed\" }]",
        from: "feed",
        to: "cases",
        key: "#",
        described: "from exchange \"feed\" to exchange \"cases\" with routing key \"#\"",
        effect: LOST_WORDS,
    },
];

impl NeededBinding {
    fn remove(&self, rig: &Rig) -> Result<()> {
        let Self { from, to, key, .. } = self;
        if self.from == "feed" {
            rig.client.unbind_exchange(to, from, key)
        } else {
            rig.client.unbind(to, from, key)
        }
    }
}

/// Another program removes a binding that the host has declared: while the host runs, and while no host runs. The host
/// must report and count the missing binding before it declares the binding again.
#[test]
fn removed_binding_is_reported_and_restored() -> Result<()> {
    for needed in NEEDED_BINDINGS {
        let rig = rig("ordering = \"fifo\"", needed.source, None)?;
        rig.client.exchange("feed", ExchangeKind::Topic)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_FREQUENT_CHECKS)?;
        rig.until_declared()?;
        rig.until_bound(needed.from, &[needed.to])?;
        let address = ready(&mut service)?;
        rig.until_marked("cases")?;
        let log = service.stderr();
        ensure!(changes(address)? == 0 && !log.contains("binding missing"), "{log}");

        let missing = format!("binding missing: {}; Ordain declares it again", needed.described);
        wait_until("a report of the removed binding", || {
            // A check that has read the bindings before the removal declares the binding again without a report. The
            // test therefore repeats the removal.
            needed.remove(&rig)?;
            Ok(service.stderr().contains(&missing))
        })?;
        service.until_lines(1, &[&missing, needed.effect, "stream=\"cases\""])?;
        wait_until("a counted change", || Ok(changes(address)? > 0))?;
        rig.until_bound(needed.from, &[needed.to])?;
        let lines = in_turn(20, 1);
        rig.publish(&lines)?;
        rig.check(&lines)?;
        service.end()?;

        needed.remove(&rig)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_FREQUENT_CHECKS)?;
        let start = "binding missing at this start, although an earlier process declared it:";
        service.until_lines(1, &[start, needed.described, needed.effect])?;
        rig.until_bound(needed.from, &[needed.to])?;
        service.end()?;
    }
    Ok(())
}

/// Without `broker.management`, one line of the log must state that the host does not read policies and bindings.
#[test]
fn start_without_management_names_what_is_not_checked() -> Result<()> {
    let rig = Rig::with("", "", "partitions = 4")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    let start = "policies and bindings not checked, because broker.management is not set";
    let next_step = "Set broker.management to the URL of the broker's management API";
    service.until_lines(1, &[start, next_step, "streams=\"cases\""])?;
    rig.until_declared()?;
    ready(&mut service)?;
    let log = service.stderr();
    ensure!(log.matches("not checked").count() == 1, "{log}");
    ensure!(!log.contains("declare = false"), "{log}");
    service.end()
}
