//! Tests of `ordain check --connect`. The command reports the state of the broker, and changes nothing in the broker.

use anyhow::{Context, Result, ensure};
use lapin::ExchangeKind;
use lapin::types::{AMQPValue, FieldTable};
use ordain_servers::{Rabbit, RabbitOptions};
use ordain_tests::host::Home;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::Service;
use serde_json::Value;

use super::support::log_in;

/// Runs `ordain check --connect`, which must exit with `code`. Returns its standard output and standard error.
fn check(home: &Home, code: i32) -> Result<[String; 2]> {
    let output = home.output(&["check", "--connect"])?;
    let printed = [String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?];
    ensure!(output.status.code() == Some(code), "{}: {printed:?}", output.status);
    Ok(printed)
}

fn ensure_contains(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "no {part:?} in {text}");
    }
    Ok(())
}

fn queues(rig: &Rig) -> Result<Vec<String>> {
    Ok(rig.rabbit.queues()?.into_keys().collect())
}

fn arguments(pairs: &[(&str, AMQPValue)]) -> FieldTable {
    let mut arguments = FieldTable::default();
    for (name, value) in pairs {
        arguments.insert((*name).into(), value.clone());
    }
    arguments
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// Before the first start of the host, the check lists the objects that the start will declare, and declares nothing
/// itself. After the start, the check reports that all objects exist in the declared form.
#[test]
fn new_and_declared_topologies_are_reported_and_unchanged() -> Result<()> {
    let rig = Rig::with("", "", "partitions = 4")?;
    let [out, _] = check(&rig.home, 0)?;
    let (major, minor) = rig.rabbit.version()?;
    let version = format!(": RabbitMQ {major}.{minor}.");
    ensure_contains(
        &out,
        &[
            &format!("broker: amqp://127.0.0.1:{}", rig.rabbit.port()),
            &version,
            &format!("as user \"guest\" to the virtual host {:?}", rig.rabbit.virtual_host()),
            "the queue \"cases.0\" of stream cases does not exist: a start declares it",
            "the queue \"cases.3\" of stream cases does not exist: a start declares it",
            "the queue \"cases.dropped\" of stream cases does not exist: a start declares it",
            "the exchange \"cases\" of stream cases does not exist: a start declares it",
            "the exchange \"out\" of the sink tally exists",
            "rabbitmqctl list_policies",
        ],
    )?;
    ensure!(!out.contains("guest:guest") && !out.contains("warning"), "{out}");
    ensure!(queues(&rig)? == ["out"], "{:?}", queues(&rig)?);

    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.end()?;
    let before = queues(&rig)?;
    let [out, _] = check(&rig.home, 0)?;
    ensure_contains(
        &out,
        &[
            "the queue \"cases.3\" of stream cases exists, with 0 waiting messages",
            "consumers, in the form that Ordain declares",
            "the queue \"cases.dropped\" of stream cases exists, and is empty",
            "the exchange \"cases\" of stream cases exists, in the form that Ordain declares",
        ],
    )?;
    ensure!(!out.contains("warning") && !out.contains("does not exist"), "{out}");
    ensure!(queues(&rig)? == before, "{:?} after {before:?}", queues(&rig)?);

    let output = rig.home.output(&["check", "--connect", "--json"])?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let broker = report["servers"].as_array().and_then(|servers| servers.last());
    let broker = broker.context("a list of servers")?;
    let findings = broker["findings"].as_array().context("a list of findings")?;
    let is_note = |finding: &Value| finding["severity"] == "note";
    ensure!(broker["role"] == "broker" && findings.iter().all(is_note), "{report}");
    Ok(())
}

/// The broker has a queue and an exchange whose form differs from the configuration, and two exchanges of the
/// configuration are missing, so a host could not start. One run of the check must report all these problems, and must
/// report a difference in form in the words of the broker.
#[test]
fn objects_in_another_form_are_errors() -> Result<()> {
    let rig = Rig::new()?;
    let ttl = arguments(&[("x-message-ttl", AMQPValue::LongInt(60_000))]);
    rig.client.queue_with("cases", ttl)?;
    rig.client.exchange("cases", ExchangeKind::Topic)?;
    let url = rig.rabbit.url();
    let other = config(&url, "", "", "bind = [{ exchange = \"nowhere\" }]");
    rig.home.write("ordain.toml", other.replace("exchange = \"out\"", "exchange = \"none\""))?;
    let before = queues(&rig)?;
    let [_, errors] = check(&rig.home, 78)?;
    ensure_contains(
        &errors,
        &[
            "inequivalent arg 'x-message-ttl' for queue 'cases'",
            "inequivalent arg 'x-queue-type' for queue 'cases'",
            "inequivalent arg 'type' for exchange 'cases'",
            "set declare = false",
            "the exchange \"nowhere\", which `bind` of stream cases names, does not exist",
            "the exchange \"none\" of the sink tally cannot be used",
        ],
    )?;
    ensure!(queues(&rig)? == before, "{:?} after {before:?}", queues(&rig)?);
    Ok(())
}

/// A start waits for a missing exchange of a sink, so the check reports the exchange as unavailable.
#[test]
fn missing_exchange_of_a_sink_is_unavailable() -> Result<()> {
    let rig = Rig::new()?;
    let text = config(&rig.rabbit.url(), "", "", "");
    rig.home.write("ordain.toml", text.replace("exchange = \"out\"", "exchange = \"none\""))?;
    let [_, errors] = check(&rig.home, 75)?;
    ensure_contains(&errors, &["the exchange \"none\" of the sink tally cannot be used"])
}

/// A start also waits for a missing exchange that `bind` names.
#[test]
fn missing_exchange_of_bind_is_unavailable() -> Result<()> {
    let rig = Rig::with("", "", "bind = [{ exchange = \"nowhere\" }]")?;
    let [_, errors] = check(&rig.home, 75)?;
    ensure_contains(
        &errors,
        &["the exchange \"nowhere\", which `bind` of stream cases names, does not exist"],
    )
}

/// With `declare = false`, a start also waits for a missing queue or exchange of a stream.
#[test]
fn missing_objects_without_declarations_are_unavailable() -> Result<()> {
    let rig = Rig::with("", "", "declare = false")?;
    let [_, errors] = check(&rig.home, 75)?;
    for kind in ["queue", "exchange"] {
        let words = format!(
            "the {kind} \"cases\" of stream cases does not exist, and the source has declare = false"
        );
        ensure!(errors.contains(&words), "{errors}");
    }
    ensure!(queues(&rig)? == ["out"], "{:?}", queues(&rig)?);
    Ok(())
}

/// With `declare = false`, Ordain uses a queue in its present form. The check must list the arguments of the queue, and
/// must warn of the arguments with which the broker may drop events. The check must report a queue of type stream as an
/// error.
#[test]
fn foreign_queue_is_described() -> Result<()> {
    let rig = Rig::with("", "", "declare = false")?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    let lossy = [
        ("x-dead-letter-exchange", text("elsewhere")),
        ("x-max-length", AMQPValue::LongInt(1_000)),
        ("x-message-ttl", AMQPValue::LongInt(60_000)),
    ];
    rig.client.queue_with("cases", arguments(&lossy))?;
    let [out, _] = check(&rig.home, 0)?;
    ensure_contains(
        &out,
        &[
            "its type is classic, with x-dead-letter-exchange = elsewhere, x-max-length = 1000, x-message-ttl = 60000",
            "warning: broker: the queue \"cases\" has x-max-length = 1000",
            "warning: broker: the queue \"cases\" has x-message-ttl = 60000",
        ],
    )?;

    rig.client.delete_queue("cases")?;
    let stream = [("x-queue-type", text("stream")), ("x-max-age", text("1D"))];
    rig.client.queue_with("cases", arguments(&stream))?;
    let [_, errors] = check(&rig.home, 78)?;
    ensure_contains(&errors, &["the queue \"cases\" is of type stream"])
}

/// The queue was declared under RabbitMQ 3, without the argument for its delivery limit. RabbitMQ 4 applies a default
/// limit to this queue. The check must then name the limit, and a command that removes it.
#[test]
fn default_delivery_limit_of_a_queue_is_reported() -> Result<()> {
    let rig = Rig::new()?;
    let earlier = [
        ("x-queue-type", text("quorum")),
        ("x-single-active-consumer", AMQPValue::Boolean(true)),
        ("x-dead-letter-exchange", text("cases.dropped")),
    ];
    rig.client.queue_with("cases", arguments(&earlier))?;
    let [out, _] = check(&rig.home, 0)?;
    ensure_contains(&out, &["the queue \"cases\" of stream cases exists"])?;
    let is_limited = rig.rabbit.version()? >= (4, 0);
    for part in [
        "warning: broker: queues of stream cases have no argument x-delivery-limit (cases)",
        "RabbitMQ 4 delivers each message at most 20 times",
        "rabbitmqctl set_policy",
        " ordain-no-delivery-limit-cases '^(cases)$' '{\"delivery-limit\": -1}' --apply-to quorum_queues",
    ] {
        ensure!(out.contains(part) == is_limited, "{part:?}: {out}");
    }
    Ok(())
}

/// A wrong login results in exit code 75, because a later attempt may succeed after an operator has corrected the
/// login. The output must not contain the password.
#[test]
fn wrong_login_is_unavailable_without_the_password() -> Result<()> {
    let rig = Rig::new()?;
    let wrong = rig.rabbit.url().replace("guest:guest", "guest:secret");
    rig.home.write("ordain.toml", config(&wrong, "", "", ""))?;
    let [out, errors] = check(&rig.home, 75)?;
    ensure_contains(&errors, &["error: broker: ", "user \"guest\"", "ACCESS_REFUSED"])?;
    ensure_contains(&out, &[": RabbitMQ "])?;
    ensure!(!out.contains("secret") && !errors.contains("secret"), "{out}{errors}");
    Ok(())
}

/// A user who has only the documented rights can run the host and the check. The broker may refuse to compare an object
/// with the configuration if the user has no right to declare the object. The check must succeed nevertheless.
#[test]
fn user_with_narrow_rights_can_check() -> Result<()> {
    let rig = Rig::new()?;
    rig.rabbit.add_narrow_user("checker")?;
    log_in(&rig, "checker", "", "", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.end()?;
    let [out, _] = check(&rig.home, 0)?;
    ensure_contains(&out, &["the queue \"cases\" of stream cases exists", "in the form"])
}

#[test]
fn missing_plugin_and_stopped_broker_are_reported() -> Result<()> {
    let rabbit = Rabbit::with(&RabbitOptions::new().without_plugins())?;
    let rig = Rig::on(rabbit, "", "", "partitions = 4")?;
    if rig.rabbit.has_hash_exchange()? {
        check(&rig.home, 0)?;
    } else {
        let [_, errors] = check(&rig.home, 78)?;
        ensure_contains(&errors, &["rabbitmq-plugins enable rabbitmq_sharding"])?;
    }
    rig.rabbit.stop()?;
    let [out, errors] = check(&rig.home, 75)?;
    ensure_contains(&errors, &["error: broker: ", "refused"])?;
    ensure_contains(&out, &["ordain.toml is valid"])
}
