//! Tests of consumers of other programs at the queue of a stream. The host reads the consumers from the broker's
//! management API.

use anyhow::{Result, ensure};
use ordain_tests::alerts;
use ordain_tests::amqp::Client;
use ordain_tests::host::Home;
use ordain_tests::http::{admin, get, metric, ready};
use ordain_tests::log::in_turn;
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;

use super::policies::{check, rig};

/// The arguments of a host that reads consumers every six seconds, or every second while it receives no events.
const RUN_ARGUMENTS: [&str; 2] = ["--wait-divisor=50", "run"];

/// Declares the queue of the stream in the form in which a host declares it, by a short run of another host.
fn declare_queue(rig: &Rig) -> Result<()> {
    let other = other_home(rig)?;
    let mut service = Service::start(&other, &RUN_ARGUMENTS)?;
    rig.until_declared()?;
    service.end()
}

/// Returns a home with the configuration of the rig and a store of its own.
fn other_home(rig: &Rig) -> Result<Home> {
    Home::new(&["tally"], &rig.home.read("ordain.toml"))
}

/// Checks that the host repeatedly reports and counts a consumer that receives all events of the stream. Each of
/// `words` must be in the report. The host must not be ready.
fn check_reported(service: &mut Service, words: &[&str]) -> Result<()> {
    const TAKEN_WORDS: &str =
        "RabbitMQ delivers all events to this program, and none to the stream";
    let mut parts =
        vec!["broker may lose events: the queue \"cases\": ", TAKEN_WORDS, "stream=\"cases\""];
    parts.extend(words);
    service.until_lines(2, &parts)?;
    let address = admin(service)?;
    service
        .until("unreadiness", || get(address, "/readyz").is_ok_and(|page| page.status == 503))?;
    let page = get(address, "/readyz")?;
    let reason = "stream cases: another program consumes a queue of the stream";
    ensure!(page.problem()?.contains(reason), "{page:?}");
    ensure!(metric(address, "ordain_topology_changes_total")? >= Some(2));
    let metrics = get(address, "/metrics")?.body;
    let row = "ordain_stream_consuming{stream=\"cases\",partition=\"0\"} 0";
    ensure!(metrics.contains(row), "{metrics}");
    let firing = alerts::firing(&metrics, &metrics)?;
    ensure!(firing.contains("OrdainStreamNotConsuming"), "{firing:?}");
    Ok(())
}

/// Another program is the active consumer of the queue, and the queue stays empty, as if the program acknowledged all
/// messages. The host must report the program, and must receive the events after the program has ended.
#[test]
fn active_consumer_of_another_program_is_reported() -> Result<()> {
    for stream in ["", "ordering = \"fifo\""] {
        let rig = rig(stream, "", None)?;
        declare_queue(&rig)?;
        let thief = Client::connect(&rig.rabbit.url_at(rig.rabbit.port()))?;
        let held = thief.hold("cases")?;
        let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
        check_reported(
            &mut service,
            &["another program (connection \"127.0.0.1:", "user \"guest\""],
        )?;
        let printed = check(&rig.home)?;
        let warning = "warning: broker: the queue \"cases\": another program (connection ";
        ensure!(printed.contains(warning), "{printed}");
        thief.release(held)?;
        let address = ready(&mut service)?;
        let lines = in_turn(3, 10);
        rig.publish(&lines)?;
        rig.check(&lines)?;
        ensure!(metric(address, "ordain_stream_consuming")? == Some(1));
        service.end()?;
    }
    Ok(())
}

/// Another deployment, with another store, is the active consumer of the queue. Each of the two hosts must report the
/// other: one host reports the active consumer, and the other host reports the waiting consumer and stays ready.
#[test]
fn consumer_of_another_deployment_is_reported() -> Result<()> {
    let rig = rig("", "", None)?;
    let mut owner = Service::start(&rig.home, &RUN_ARGUMENTS)?;
    rig.until_declared()?;
    let lines = in_turn(3, 10);
    rig.publish(&lines[..15])?;
    let mut out = Vec::new();
    rig.take(&mut out, 15)?;
    let other = other_home(&rig)?;
    let mut late = Service::start(&other, &RUN_ARGUMENTS)?;
    let deployment = "a deployment of Ordain with another store (connection \"127.0.0.1:";
    check_reported(&mut late, &[deployment, "consumer tag \"ordain-"])?;
    owner.until_lines(2, &["broker may lose events: ", deployment, "waits to consume it"])?;
    let address = ready(&mut owner)?;
    ensure!(metric(address, "ordain_topology_changes_total")? >= Some(2));
    late.end()?;
    rig.publish(&lines[15..])?;
    rig.take(&mut out, lines.len())?;
    owner.end()
}

/// The host must report neither its own consumers nor the consumer of a killed process with the same store.
#[test]
fn own_consumers_are_not_reported() -> Result<()> {
    for source in ["", "partitions = 4"] {
        let rig = rig("", source, None)?;
        let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
        rig.until_declared()?;
        let lines = in_turn(4, 5);
        rig.publish(&lines[..10])?;
        let mut out = Vec::new();
        rig.take(&mut out, 10)?;
        service.kill()?;
        let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
        rig.publish(&lines[10..])?;
        rig.take(&mut out, lines.len())?;
        let address = ready(&mut service)?;
        // When the host logs a policy, the same check has also read the consumers.
        rig.rabbit.set_policy("^cases", r#"{"max-length": 1000000}"#)?;
        service.until_says("has max-length = 1000000")?;
        let printed = check(&rig.home)?;
        let log = service.stderr();
        // A slow broker may not answer the check of the topology in time. This check does not read the consumers.
        let is_unexpected = |line: &str| {
            let is_unchecked =
                line.contains("not checked") && !line.contains("topology not checked");
            is_unchecked || line.contains("to this program")
        };
        ensure!(!log.lines().any(is_unexpected), "{log}");
        ensure!(!printed.contains("another program (connection"), "{printed}");
        ensure!(metric(address, "ordain_topology_changes_total")?.unwrap_or(0) == 0, "{log}");
        service.end()?;
    }
    Ok(())
}
