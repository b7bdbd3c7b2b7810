//! Tests of streams with `declare = false`: other programs declare the exchange and the queue, and may remove or
//! replace them.

use anyhow::{Result, ensure};
use lapin::ExchangeKind;
use lapin::types::{AMQPValue, FieldTable};
use ordain_tests::log::in_turn;
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service, wait_until};

use super::super::support::{ADMIN, FIFO, Halves, declare_exchange_and_queue, declare_queue};
use super::changes;

/// With `declare = false`, the exchange is missing at the start of a stream that has run before. The start must report
/// an error, because Ordain does not declare the exchange.
#[test]
fn exchange_that_stays_away_without_declarations_is_an_error() -> Result<()> {
    let rig = Rig::with("", "", "declare = false")?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    rig.client.queue("cases")?;
    rig.client.bind("cases", "cases", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let lines = in_turn(3, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    service.end()?;
    rig.client.delete_exchange("cases")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let words = ["topology not as configured", "the exchange \"cases\" is required"];
    service.until_lines(1, &words)?;
    service.end()
}

/// With `declare = false`, another program deletes the queue, and declares it again later. The host must report the
/// loss, and must not state that it declares the queue.
#[test]
fn missing_queue_is_reported_without_a_declaration() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "declare = false")?;
    declare_exchange_and_queue(&rig, FieldTable::default())?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let halves = Halves::begin(&rig, in_turn(3, 10))?;
    let opened = || rig.rabbit.opened_connections("ordain cases 0");
    let before = opened();
    rig.client.delete_queue("cases")?;
    // Each subscription opens a connection, so a second new connection shows that the first of the two subscriptions
    // has found no queue.
    wait_until("two further connections", || Ok(opened() >= before + 2))?;
    declare_queue(&rig, FieldTable::default())?;
    service.until_says("queue was missing, and exists again: Ordain did not declare it")?;
    wait_until("a counted change", || Ok(changes(&mut service)? > 0))?;
    halves.end(&rig)?;
    let log = service.stderr();
    ensure!(!log.contains("Ordain declares it again"), "{log}");
    service.end()
}

/// A host with `declare = false`, while another program changes its queue or exchange.
struct ForeignRig {
    service: Service,
    rig: Rig,
    halves: Halves,
}

impl ForeignRig {
    /// Starts the host, and publishes the first half of the events, which must take effect.
    fn start(ordering: &str) -> Result<Self> {
        Self::start_with(ordering, "declare = false")
    }

    /// Starts the host as [`Self::start`] does, with other settings of the source.
    fn start_with(ordering: &str, source: &str) -> Result<Self> {
        let rig = Rig::with(ADMIN, ordering, source)?;
        declare_exchange_and_queue(&rig, FieldTable::default())?;
        let service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        let halves = Halves::begin(&rig, in_turn(3, 10))?;
        rig.until_empty()?;
        Ok(Self { service, rig, halves })
    }

    /// Publishes the second half of the events, checks that each event has taken effect once, and ends the host.
    fn end(mut self) -> Result<()> {
        self.halves.end(&self.rig)?;
        self.service.end()
    }
}

/// With `declare = false`, another program deletes the queue and immediately declares it again. The queue has no
/// marker, so the host cannot detect the replacement. But the broker has ended the subscription, so the host must
/// report that the events of the old queue may be lost.
#[test]
fn replaced_queue_is_reported_without_a_declaration() -> Result<()> {
    for ordering in ["", FIFO] {
        let mut foreign = ForeignRig::start(ordering)?;
        let ForeignRig { rig, service, .. } = &mut foreign;
        // The log must name the changes that the host cannot detect.
        let further =
            "With declare = false (cases), Ordain also cannot detect that another program removes";
        service.until_lines(1, &["bindings not checked", "streams=\"cases\"", further])?;
        // The test pauses the host, because a subscription between the two steps would find the queue missing.
        service.pause()?;
        rig.client.delete_queue("cases")?;
        declare_queue(rig, FieldTable::default())?;
        service.resume()?;
        service.until_says(
            "cannot detect whether another program has removed the queue and declared it again",
        )?;
        wait_until("a counted change", || Ok(changes(service)? > 0))?;
        foreign.end()?;
    }
    Ok(())
}

/// With `declare = false`, another program deletes the exchange, and declares it again later. The host must report the
/// missing exchange, and must report its return, because its bindings may be missing. The host must declare nothing.
#[test]
fn missing_exchange_is_reported_without_a_declaration() -> Result<()> {
    for ordering in ["", FIFO] {
        let mut foreign = ForeignRig::start(ordering)?;
        let ForeignRig { rig, service, .. } = &mut foreign;
        rig.client.delete_exchange("cases")?;
        service.until_says("exchange missing: Ordain does not declare it")?;
        wait_until("a counted change", || Ok(changes(service)? > 0))?;
        rig.client.exchange("cases", ExchangeKind::Fanout)?;
        service.until_says("exchange was missing: events that were published")?;
        ensure!(rig.rabbit.bound("cases")?.is_empty(), "the host has bound the queue");
        rig.client.bind("cases", "cases", "")?;
        foreign.end()?;
    }
    Ok(())
}

/// With `declare = false`, the exchange and an exchange of `bind` are missing at the same time. One line of the log
/// must name both.
#[test]
fn all_missing_exchanges_are_named_without_a_declaration() -> Result<()> {
    const MISSING_WORDS: &str = "exchange missing: Ordain does not declare it";
    let source = "declare = false, bind = [{ exchange = \"feed\" }]";
    let mut foreign = ForeignRig::start_with("", source)?;
    let ForeignRig { rig, service, .. } = &mut foreign;
    service.until_lines(1, &[MISSING_WORDS, "exchanges=\"feed\""])?;
    rig.client.delete_exchange("cases")?;
    service.until_lines(1, &[MISSING_WORDS, "exchanges=\"cases, feed\""])?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    rig.client.bind("cases", "cases", "")?;
    foreign.end()
}

#[test]
fn classic_queue_without_declarations_is_used() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "declare = false")?;
    declare_exchange_and_queue(&rig, FieldTable::default())?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let lines = in_turn(3, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    service.end()
}

/// The host also uses a queue with unusual arguments as it is. The log names the arguments that make the queue lose
/// events.
#[test]
fn queue_with_arguments_and_without_declarations_is_used() -> Result<()> {
    for kind in ["classic", "quorum"] {
        let rig = Rig::with(ADMIN, "", "declare = false")?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        arguments
            .insert("x-dead-letter-exchange".into(), AMQPValue::LongString("amq.fanout".into()));
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(1_000_000));
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        declare_exchange_and_queue(&rig, arguments)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        let lines = in_turn(3, 10);
        rig.publish(&lines)?;
        rig.check(&lines)?;
        service
            .until_says("queue may lose events: the queue \"cases\" has x-max-length = 1000000")?;
        service.end()?;
    }
    Ok(())
}
