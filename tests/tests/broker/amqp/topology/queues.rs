//! Tests of a queue that another program declares again in another form.

use anyhow::Result;
use lapin::types::FieldTable;
use ordain_tests::log::in_turn;
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service, wait_until};

use super::super::support::{ADMIN, Halves, rig_of_user};
use super::changes;

fn reported_differences(service: &Service) -> u64 {
    service.stderr().matches("topology not as configured").count() as u64
}

/// A `sequenced` stream consumes a queue that another program declared again in another form, because the stream
/// detects lost events by their sequences. The host reports the difference in form, and continues. The host counts each
/// difference, even if the log does not repeat the error. A start also uses the queue, because the store has data of
/// the stream.
#[test]
fn queue_in_another_form_is_reported() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let halves = Halves::begin(&rig, in_turn(3, 20))?;
    rig.until_empty()?;
    // The test pauses the host, because a running host would declare the queue immediately after the deletion.
    service.pause()?;
    for queue in ["cases", "cases.dropped"] {
        rig.client.delete_queue(queue)?;
        rig.client.queue_with(queue, FieldTable::default())?;
    }
    service.resume()?;
    service.until_says("topology not as configured")?;
    service.until_says("inequivalent arg")?;
    // Each check counts two differences but logs only one error. The replacement of the queue counts as one more
    // change.
    wait_until("a counted change", || {
        let counted = changes(&mut service)?;
        Ok(counted > 1 + reported_differences(&service))
    })?;
    service.end()?;

    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let starts = "the stream starts, and its consumers retry";
    service.until_lines(1, &["topology not as configured", "inequivalent arg", starts])?;
    halves.end(&rig)?;
    service.end()
}

/// The user has reached the limit of connections, so the host cannot check the exchange. The host must nevertheless
/// continue to report that the queue has another form.
#[test]
fn difference_is_reported_despite_a_connection_limit() -> Result<()> {
    let rig = rig_of_user("three-links-form", ADMIN, "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_bound("cases.marker", &["cases"])?;
    wait_until("the watch", || Ok(rig.rabbit.opened_connections("ordain watch") > 0))?;
    service.pause()?;
    rig.client.delete_queue("cases")?;
    rig.client.queue_with("cases", FieldTable::default())?;
    service.resume()?;
    service.until_says("topology not as configured")?;
    // The host keeps three connections: the consumer, the sink, and the watch of the broker.
    rig.rabbit.limit_connections("three-links-form", Some(3))?;
    service.until_says("topology not checked")?;
    let before = reported_differences(&service);
    wait_until("a further error", || Ok(reported_differences(&service) > before))?;
    service.end()
}
