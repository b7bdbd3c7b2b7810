//! Tests of bindings of earlier configurations, which still route messages.

use anyhow::{Result, bail, ensure};
use ordain_tests::amqp::from_line;
use ordain_tests::http::admin;
use ordain_tests::log::{in_turn, line};
use ordain_tests::printed::run_all;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};
use serde_json::json;

use super::super::support::ADMIN;

/// The bindings of an earlier configuration still route messages to the queue, although the present configuration does
/// not contain them. The host reports these bindings, and a command removes them.
#[test]
fn bindings_of_earlier_configurations_are_named_and_removed() -> Result<()> {
    let bind =
        |key: &str| format!("bind = [{{ exchange = \"amq.topic\", routing_key = \"{key}\" }}]");
    let rig = Rig::with(ADMIN, "", &bind("order.*"))?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_bound("amq.topic", &["cases"])?;
    let lines = in_turn(3, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    service.end()?;
    let url = rig.rabbit.url();
    let narrow = config(&url, ADMIN, "", &bind("order.paid"))
        .replace("exchange = \"cases\", queue", "exchange = \"cases2\", queue");
    rig.home.write("ordain.toml", narrow)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_bound("cases2", &["cases"])?;
    for text in [
        "from exchange \"cases\" to queue \"cases\"",
        "from exchange \"amq.topic\" to exchange \"cases\" with routing key \"order.*\"",
        "`ordain streams unbind cases`",
    ] {
        service.until_says(text)?;
    }
    let outputs = run_all(&rig.home, &service.stderr())?;
    let [(command, removed)] = &outputs[..] else { bail!("{outputs:#?} of {}", service.stderr()) };
    ensure!(command == "ordain streams unbind cases", "{command}");
    ensure!(removed.matches("removed the binding ").count() == 2, "{removed}");
    let address = format!("http://{}", admin(&mut service)?);
    let unbind = ["streams", "unbind", "cases", "--json", "--admin", &address];
    ensure!(rig.rabbit.bound("cases")?.is_empty(), "{:?}", rig.rabbit.bound("cases")?);
    ensure!(rig.rabbit.bound("amq.topic")? == ["cases2"], "{:?}", rig.rabbit.bound("amq.topic")?);
    ensure!(rig.home.rows(&unbind)?.is_empty());
    service.end()?;

    // The configuration no longer has the stream `cases`, but the bindings still route messages to its queue.
    let other = config(&url, ADMIN, "", "").replace("streams.cases", "streams.other");
    let other =
        other.replace("queue = \"cases\"", "queue = \"other\"").replace("\"cases\"", "\"others\"");
    // The command in the log must name this configuration: the file `ordain.toml` still has the stream.
    rig.home.write("an other.toml", other)?;
    let args = [&RUN_WITH_SHORT_WAITS[..], &["an other.toml"]].concat();
    let mut service = Service::start(&rig.home, &args)?;
    service.until_says("still deliver messages to its queues")?;
    service.end()?;
    let outputs = run_all(&rig.home, &service.stderr())?;
    let [(_, removed)] = &outputs[..] else { bail!("{outputs:#?} of {}", service.stderr()) };
    ensure!(removed.matches("removed the binding ").count() == 2, "{removed}");
    ensure!(rig.rabbit.bound("cases2")?.is_empty() && rig.rabbit.bound("amq.topic")?.is_empty());
    Ok(())
}

/// The queues of two streams are bound to the same exchange. Only the first stream configures the binding from another
/// exchange to this exchange. If the first stream is removed, the second stream still needs this binding.
#[test]
fn unbinding_keeps_bindings_that_another_stream_needs() -> Result<()> {
    let bind = "bind = [{ exchange = \"amq.topic\", routing_key = \"#\" }]";
    let rig = Rig::with(ADMIN, "", bind)?;
    let url = rig.rabbit.url();
    let other = "[streams.other]\nhandler = \"tally\"\n\
                 source = { kind = \"amqp\", exchange = \"cases\", queue = \"other\" }\n";
    rig.home.write("ordain.toml", config(&url, ADMIN, "", bind) + other)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_bound("amq.topic", &["cases"])?;
    rig.until_bound("cases", &["other"])?;
    let message = from_line(&line("a", 1, &json!({ "n": 1 })))?;
    rig.client.publish("amq.topic", &[message])?;
    rig.client.take("out", 2)?;
    service.end()?;

    let alone = config(&url, ADMIN, "", "").replace("streams.cases", "streams.other");
    rig.home.write("ordain.toml", alone.replace("queue = \"cases\"", "queue = \"other\""))?;
    let removed = rig.home.rows(&["streams", "unbind", "cases", "--json"])?;
    ensure!(removed.len() == 1, "{removed:?}");
    ensure!(rig.rabbit.bound("amq.topic")? == ["cases"], "{:?}", rig.rabbit.bound("amq.topic")?);
    ensure!(rig.rabbit.bound("cases")? == ["other"], "{:?}", rig.rabbit.bound("cases")?);
    Ok(())
}
