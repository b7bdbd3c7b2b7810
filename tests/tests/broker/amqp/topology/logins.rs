//! Tests of a broker that refuses the connections of the host: a changed password, withdrawn rights, or a limit of
//! connections.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use ordain_tests::alerts;
use ordain_tests::http::{admin, get};
use ordain_tests::log::in_turn;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service, wait_until};

use super::super::support::{ADMIN, FIFO, Halves, rig_of_user};
use super::changes;

#[derive(Debug, Clone, Copy)]
enum Refusal {
    Password,
    /// The user has no rights to the virtual host.
    Rights,
}

impl Refusal {
    /// Makes the broker refuse the connections of a user, or makes it accept them again. Open connections remain.
    fn set(self, rig: &Rig, user: &str, is_refused: bool) -> Result<()> {
        match self {
            Self::Password => {
                rig.rabbit.change_password(user, if is_refused { "rotated" } else { "guest" })
            }
            Self::Rights => rig.rabbit.set_access(user, !is_refused),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Password => "ACCESS_REFUSED",
            Self::Rights => "NOT_ALLOWED",
        }
    }
}

/// The broker refuses a connection until an operator corrects the password or the rights of the user. The host repeats
/// its warning, because a single log line is easily overlooked. Afterwards the host continues.
#[test]
fn refused_subscription_is_reported_repeatedly() -> Result<()> {
    for (user, ordering, refusal) in [
        ("other", "", Refusal::Password),
        ("another", FIFO, Refusal::Password),
        ("barred", "", Refusal::Rights),
        ("barred-too", FIFO, Refusal::Rights),
    ] {
        let rig = rig_of_user(user, ADMIN, ordering)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let halves = Halves::begin(&rig, in_turn(3, 10))?;
        refusal.set(&rig, user, true)?;
        rig.rabbit.close_connections()?;
        service.until_lines(2, &["queue not consumed", refusal.word()])?;
        let address = admin(&mut service)?;
        let not_ready = get(address, "/readyz")?;
        ensure!(not_ready.status == 503, "{not_ready:?}");
        ensure!(
            not_ready.problem()?.contains("stream cases: no events have arrived from its source")
        );
        let metrics = get(address, "/metrics")?.body;
        for row in [
            "ordain_stream_consuming{stream=\"cases\",partition=\"0\"} 0",
            "ordain_broker_connected 0",
        ] {
            ensure!(metrics.contains(row), "{row}: {metrics}");
        }
        let firing = alerts::firing(&metrics, &metrics)?;
        for alert in ["OrdainBrokerDisconnected", "OrdainStreamNotConsuming"] {
            ensure!(firing.contains(alert), "{alert} is not in {firing:?}");
        }
        refusal.set(&rig, user, false)?;
        service.until_says("queue consumed again")?;
        service
            .until("readiness", || get(address, "/readyz").is_ok_and(|page| page.status == 200))?;
        let rig = Rig { client: rig.connect()?, ..rig };
        halves.end(&rig)?;
        service.end()?;
    }
    Ok(())
}

/// The host checks the topology over an additional connection, which the broker refuses because the user has reached
/// the limit of connections. The topology itself is as configured, so the host must not report a wrong topology.
#[test]
fn refused_connection_is_no_difference_of_the_topology() -> Result<()> {
    for (user, ordering) in [("three-links", ""), ("three-links-fifo", FIFO)] {
        let rig = rig_of_user(user, ADMIN, ordering)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        wait_until("the marker", || Ok(!rig.rabbit.bound_to_exchange("cases")?.is_empty()))?;
        // The host keeps three connections: the consumer, the sink, and the watch of the broker.
        rig.rabbit.limit_connections(user, Some(3))?;
        service.until_says("topology not checked")?;
        service.until_says("connection limit (3) is reached")?;
        let lines = in_turn(3, 10);
        rig.publish(&lines)?;
        rig.check(&lines)?;
        ensure!(changes(&mut service)? == 0 && !service.stderr().contains("not as configured"));
        // The next check detects a difference again.
        rig.rabbit.limit_connections(user, None)?;
        rig.client.delete_exchange("cases")?;
        service.until_says("exchange missing: declared again")?;
        wait_until("a counted change", || Ok(changes(&mut service)? > 0))?;
        service.end()?;
    }
    Ok(())
}

/// A password changes in the broker and in the file that the URL names. The running host logs in with the new password.
#[test]
fn rotated_password_in_a_file_is_used() -> Result<()> {
    for (user, ordering) in [("rotating", ""), ("rotating-fifo", FIFO)] {
        let rig = Rig::new()?;
        rig.rabbit.add_user(user, "old", ".*")?;
        rig.home.write("password", "old\n")?;
        let file = rig.home.path("password");
        let login = format!("{user}:${{file:{}}}", file.display());
        let url = rig.rabbit.url().replace("guest:guest", &login);
        rig.home.write("ordain.toml", config(&url, ADMIN, ordering, ""))?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let halves = Halves::begin(&rig, in_turn(3, 20))?;
        rig.rabbit.change_password(user, "new")?;
        rig.home.write("password", "new\n")?;
        rig.rabbit.close_connections()?;
        service.until_says("queue consumed again")?;
        let rig = Rig { client: rig.connect()?, ..rig };
        halves.end(&rig)?;
        service.end()?;
    }
    Ok(())
}

/// A password changes in the broker, and the URL names an environment variable. The running host cannot read the new
/// value, so its log must advise a restart. After the restart with the new value, the host must continue.
#[test]
fn password_in_the_environment_needs_a_restart() -> Result<()> {
    for (user, ordering) in [("environment", ""), ("environment-fifo", FIFO)] {
        let rig = Rig::new()?;
        rig.rabbit.add_user(user, "old", ".*")?;
        let login = format!("{user}:${{BROKER_PASSWORD}}");
        let url = rig.rabbit.url().replace("guest:guest", &login);
        rig.home.write("ordain.toml", config(&url, ADMIN, ordering, ""))?;
        let start = |password: &str| {
            let environment = [("BROKER_PASSWORD", PathBuf::from(password))];
            Service::start_with(&rig.home, &RUN_WITH_SHORT_WAITS, &environment)
        };
        let mut service = start("old")?;
        service.until_says("ready: stream cases receives events")?;
        rig.rabbit.change_password(user, "new")?;
        rig.rabbit.close_connections()?;
        let advice = "If the login in `broker.url` has changed, restart the process";
        service.until_lines(1, &["queue not consumed", "ACCESS_REFUSED", advice])?;
        service.end()?;
        let mut service = start("new")?;
        let rig = Rig { client: rig.connect()?, ..rig };
        let lines = in_turn(3, 10);
        rig.publish(&lines)?;
        rig.check(&lines)?;
        service.end()?;
    }
    Ok(())
}
