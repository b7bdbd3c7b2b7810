//! What cannot be used ends a start in words, with the exit code that says whose affair it is.

use anyhow::{Result, ensure};
use lapin::ExchangeKind;
use lapin::types::FieldTable;
use ordain_servers::{Rabbit, RabbitOptions};
use ordain_tests::host::Home;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};

/// A start must be refused with this exit code and these words; all that it says.
fn refused(home: &Home, code: i32, parts: &[&str]) -> Result<String> {
    let output = home.output(&RUN_WITH_SHORT_WAITS)?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(code), "{:?}: {told}", output.status);
    for part in parts {
        ensure!(told.contains(part), "no {part:?} in {told}");
    }
    Ok(told)
}

#[test]
fn a_missing_plugin() -> Result<()> {
    let rabbit = Rabbit::with(&RabbitOptions::new().without_plugins())?;
    let rig = Rig::on(rabbit, "", "", "partitions = 4")?;
    refused(&rig.home, 78, &["rabbitmq-plugins enable rabbitmq_sharding", "exchange \"cases\""])
        .map(drop)
}

#[test]
fn what_is_there_in_another_form_or_not_at_all() -> Result<()> {
    let rig = Rig::new()?;
    rig.client.queue_with("cases", FieldTable::default())?;
    refused(&rig.home, 78, &["queue \"cases\"", "inequivalent arg", "declare = false"])?;
    rig.client.exchange("other", ExchangeKind::Fanout)?;
    let url = rig.rabbit.url();
    let other = config(&url, "", "", "partitions = 4");
    let other = other
        .replace("exchange = \"cases\", queue = \"cases\"", "exchange = \"other\", queue = \"q\"");
    rig.home.write("ordain.toml", other)?;
    refused(&rig.home, 78, &["exchange \"other\"", "inequivalent arg", "declare = false"])?;

    rig.home.write("ordain.toml", config(&url, "", "", "declare = false, partitions = 2"))?;
    refused(&rig.home, 78, &["queue \"cases.0\"", "no queue"])?;

    let other =
        config(&url, "", "", "partitions = 1").replace("queue = \"cases\"", "queue = \"q\"");
    rig.home.write("ordain.toml", other.replace("exchange = \"out\"", "exchange = \"none\""))?;
    refused(&rig.home, 78, &["exchange \"none\"", "sink tally", "no exchange"]).map(drop)
}

#[test]
fn a_wrong_login_and_a_broker_that_is_away() -> Result<()> {
    let rig = Rig::new()?;
    let wrong = rig.rabbit.url().replace("guest:guest", "guest:secret");
    rig.home.write("ordain.toml", config(&wrong, "", "", ""))?;
    let told = refused(&rig.home, 78, &["user \"guest\"", "ACCESS_REFUSED"])?;
    ensure!(!told.contains("secret"), "a password is shown: {told}");

    let nobody = rig.rabbit.url().replace(&rig.rabbit.port().to_string(), "1");
    rig.home.write("ordain.toml", config(&nobody, "", "", ""))?;
    refused(&rig.home, 75, &["broker unavailable", "127.0.0.1:1"]).map(drop)
}

/// Who may make only what the stream has may do enough, before RabbitMQ 4.0.
#[test]
fn a_user_with_narrow_rights() -> Result<()> {
    let rig = Rig::new()?;
    rig.rabbit.add_user("narrow", "guest", r"^cases(\.dropped)?$")?;
    let url = rig.rabbit.url().replace("guest:guest", "narrow:guest");
    rig.home.write("ordain.toml", config(&url, "", "", ""))?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.end()
}

/// A queue of numbered events must not be made again behind their backs.
#[test]
fn a_fifo_stream_whose_queue_has_gone() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.publish(&ordain_tests::log::in_turn(3, 10))?;
    rig.client.take("out", 30)?;
    rig.until_empty()?;
    rig.client.delete_queue("cases")?;
    let status = service.wait()?;
    ensure!(status.code() == Some(1), "{status}: {}", service.stderr());
    ensure!(service.stderr().contains("no queue 'cases'"), "{}", service.stderr());
    refused(&rig.home, 78, &["queue \"cases\"", "no queue"]).map(drop)
}
