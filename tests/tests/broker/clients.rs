//! Tests with other clients of RabbitMQ and with the SDKs of CloudEvents (`tests/clients`). The handler rejects every
//! event, so the dead letters show what a handler sees.

use anyhow::{Context as _, Result, ensure};
use lapin::BasicProperties;
use ordain_tests::amqp::Outgoing;
use ordain_tests::clients::{javascript, python};
use ordain_tests::http::{admin, metric};
use ordain_tests::log::in_turn;
use ordain_tests::rig::Rig;
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

/// A client, the settings of the source with which a stream reads its messages, and the event that a handler sees.
struct Producer {
    name: &'static str,
    settings: &'static str,
    key: &'static str,
    kind: &'static str,
    content_type: &'static str,
    data: Value,
}

/// Returns the producers. All of them publish with the defaults of the client. Celery declares its queue and exchange.
fn producers() -> Vec<Producer> {
    let plain = Producer {
        name: "pika",
        settings: "id = \"content\"",
        key: "order-1",
        kind: "",
        content_type: "",
        data: json!({ "n": 1 }),
    };
    vec![
        Producer { name: "aio-pika", settings: "", data: plain.data.clone(), ..plain },
        Producer { name: "amqplib", data: plain.data.clone(), ..plain },
        Producer {
            name: "kombu",
            content_type: "application/json",
            data: plain.data.clone(),
            ..plain
        },
        Producer {
            name: "rascal",
            settings: "",
            content_type: "application/json",
            data: plain.data.clone(),
            ..plain
        },
        Producer {
            name: "celery",
            settings: "declare = false\nkey = \"data:/0/0\"\nid = \"header:id\"\ntype = \"header:task\"",
            key: "17",
            kind: "orders.pay",
            content_type: "application/json",
            data: json!([
                [17],
                {},
                { "callbacks": null, "errbacks": null, "chain": null, "chord": null },
            ]),
        },
        plain,
    ]
}

/// Waits until the host has written this number of dead letters, and ends the host.
fn end_after(service: &mut Service, letters: usize) -> Result<()> {
    let address = admin(service)?;
    service.until("a dead letter of each message", || {
        metric(address, "ordain_dead_letters_total").ok().flatten() == Some(letters as u64)
    })?;
    service.end()
}

/// Returns the event of the only dead letter of a stream, with its key.
fn only_event(rig: &Rig, stream: &str) -> Result<Value> {
    let letters = rig.home.rows(&["dead", "list", stream, "--json"])?;
    let [letter] = &letters[..] else { anyhow::bail!("{stream}: {letters:?}") };
    ensure!(letter["cause"] == "rejected", "{stream}: {letter}");
    let mut event = letter["event"].clone();
    event["key"] = letter["key"].clone();
    Ok(event)
}

#[test]
fn messages_of_other_clients_are_read() -> Result<()> {
    let rig = Rig::new()?;
    let producers = producers();
    let mut config = format!(
        "[broker]\nurl = \"{}\"\n[sinks.faulty]\nkind = \"amqp\"\nexchange = \"out\"\n",
        rig.rabbit.url()
    );
    for Producer { name, settings, .. } in &producers {
        config += &format!(
            "[streams.{name}]\nhandler = \"faulty\"\nordering = \"fifo\"\n[streams.{name}.source]\nkind = \"amqp\"\n\
             exchange = \"{name}\"\nqueue = \"{name}\"\n{settings}\n"
        );
    }
    rig.home.write("ordain.toml", config)?;
    let url = rig.rabbit.url();
    python("producers.py", &[&url, "celery"])?;
    let mut service = Service::start(&rig.home, &["run"])?;
    for producer in &producers {
        rig.until_bound(producer.name, &[producer.name])?;
    }
    python("producers.py", &[&url, "pika", "kombu", "aio-pika"])?;
    javascript("producers.js", &[&url])?;
    end_after(&mut service, producers.len())?;
    for producer in &producers {
        let Producer { name, key, kind, content_type, data, .. } = producer;
        let event = only_event(&rig, name)?;
        ensure!(event["key"] == *key && event["type"] == *kind, "{name}: {event}");
        ensure!(event["content_type"] == *content_type, "{name}: {event}");
        ensure!(event["data"] == *data, "{name}: {event}");
        ensure!(event["id"].as_str().is_some_and(|id| !id.is_empty()), "{name}: {event}");
    }
    Ok(())
}

/// A client of NestJS declares a queue, and publishes an event and a request to this queue. The stream passes the
/// request on to a sink. The passed message has the `correlation_id` of the request, so the client reads the message as
/// the reply.
#[test]
fn event_of_nestjs_is_read_and_its_request_is_answered() -> Result<()> {
    let rig = Rig::new()?;
    let url = rig.rabbit.url();
    rig.client.queue("replies")?;
    rig.client.bind("replies", "out", "#")?;
    let config = format!(
        "[broker]\nurl = \"{url}\"\n[sinks.faulty]\nkind = \"amqp\"\nexchange = \"out\"\n\
         [streams.nestjs]\nhandler = \"faulty\"\nordering = \"fifo\"\n\
         types = [\"order.paid\"]\nother_types = \"faulty\"\n\
         [streams.nestjs.source]\nkind = \"amqp\"\nqueue = \"nestjs\"\ndeclare = false\n\
         format = \"nestjs\"\nkey = \"data:/data/orderId\"\nid = [\"data:/id\", \"content\"]\n"
    );
    rig.home.write("ordain.toml", config)?;
    javascript("nestjs.js", &["emit", &url])?;
    let mut service = Service::start(&rig.home, &["run"])?;
    let reply = javascript("nestjs.js", &["send", &url])?;
    end_after(&mut service, 1)?;

    let reply: Value = serde_json::from_str(&reply).with_context(|| reply.clone())?;
    ensure!(reply["pattern"] == json!({ "cmd": "price" }), "{reply}");
    ensure!(reply["data"] == json!({ "orderId": 18 }), "{reply}");
    let event = only_event(&rig, "nestjs")?;
    ensure!(event["key"] == "17" && event["type"] == "order.paid", "{event}");
    let data = json!({ "pattern": "order.paid", "data": { "orderId": 17, "cents": 1200 } });
    ensure!(event["data"] == data, "{event}");
    Ok(())
}

/// Returns a request that the handler answers.
fn request(id: &str, key: &str, reply_to: Option<&str>) -> Outgoing {
    let mut properties = BasicProperties::default().with_message_id(id.into());
    if let Some(queue) = reply_to {
        properties = properties.with_reply_to(queue.into());
    }
    let body = br#"{"do":"reply","sink":"replies"}"#.to_vec();
    Outgoing { routing_key: key.to_owned(), properties, body }
}

/// Sends two requests with pika, and checks that the handler has answered both.
fn check_replies(rig: &Rig, mode: &str, names: [&str; 2]) -> Result<()> {
    let replies = python("rpc.py", &[&rig.rabbit.url(), mode, names[0], names[1]])?;
    let replies: Value = serde_json::from_str(&replies).with_context(|| replies.clone())?;
    let expected = json!({ (names[0]): names[0], (names[1]): names[1] });
    ensure!(replies == expected, "{mode}: {replies}");
    Ok(())
}

/// The client receives replies from an exclusive queue, and direct replies. The queue that other requests name does not
/// exist. The replies to these requests must not delay other replies of the same key, and must not be published later.
#[test]
fn requests_are_answered_over_the_default_exchange() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"", "")?;
    let config = rig.home.read("ordain.toml").replace("tally", "faulty");
    let replies = "[sinks.replies]\nkind = \"amqp\"\nexchange = \"\"\n\
                   routing_key = \"{property:reply_to}\"\n";
    rig.home.write("ordain.toml", config + replies)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let address = admin(&mut service)?;
    let unanswered = [request("1", "a", Some("gone")), request("2", "a", Some("gone"))];
    rig.client.publish("cases", &unanswered)?;
    service.until_says("message dropped: the queue \"gone\" does not exist")?;
    rig.client.publish("cases", &[request("3", "a", None)])?;
    check_replies(&rig, "exclusive", ["a", "b"])?;
    check_replies(&rig, "direct", ["c", "d"])?;
    for (name, count) in [
        ("ordain_unroutable_messages_total{sink=\"replies\"}", 3),
        ("ordain_published_messages_total{sink=\"replies\"}", 7),
    ] {
        service.until(name, || metric(address, name).ok().flatten() == Some(count))?;
    }
    service.end()?;

    rig.client.queue("gone")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    check_replies(&rig, "exclusive", ["e", "f"])?;
    service.end()?;
    let late = rig.client.take_all("gone")?;
    ensure!(late.is_empty(), "{late:?}");
    Ok(())
}

/// The SDKs publish events with the same attributes in all forms that they support. Only the id differs. The SDK for
/// Python also declares each event the last event of its key.
#[test]
fn cloudevents_of_the_sdks_are_read() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"", "")?;
    rig.home.write("ordain.toml", rig.home.read("ordain.toml").replace("tally", "faulty"))?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let url = rig.rabbit.url();
    python("publish_cloudevents.py", &[&url])?;
    javascript("publish_cloudevents.js", &[&url])?;
    let forms = [
        "python-rabbitmq-binary",
        "python-rabbitmq-structured",
        "python-amqp-binary",
        "python-amqp-structured",
        "javascript-binary",
        "javascript-structured",
    ];
    end_after(&mut service, forms.len())?;
    let letters = rig.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == forms.len(), "{letters:?}");
    for form in forms {
        // The key is the subject or the routing key.
        let letter = letters.iter().find(|letter| letter["key"] == form);
        let letter = letter.with_context(|| format!("no dead letter of {form}: {letters:?}"))?;
        ensure!(letter["cause"] == "rejected", "{letter}");
        let event = &letter["event"];
        for (name, value) in [
            ("id", form),
            ("type", "order.paid"),
            ("source", "/shop"),
            ("time", "2025-11-25T12:00:00.125Z"),
            ("content_type", "application/json"),
        ] {
            ensure!(event[name] == value, "{form}: {name}: {event}");
        }
        ensure!(event["data"] == json!({ "n": 1, "city": "Köln" }), "{form}: {event}");
        ensure!(event["end_of_sequence"] == form.starts_with("python"), "{form}: {event}");
        let headers = event["headers"].as_array().context("headers")?;
        ensure!(headers.contains(&json!(["tenant", "blue"])), "{form}: {event}");
    }
    Ok(())
}

/// The SDKs validate the attributes of an event: they report an error if the event has no id, source, type or version.
/// A server of NestJS needs the type, because the server uses the type as the pattern.
#[test]
fn published_messages_are_read_by_the_sdks_and_nestjs() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.publish(&in_turn(1, 3))?;
    wait_until("the messages", || {
        Ok(rig.rabbit.queues()?.get("out").is_some_and(|left| *left == (3, 0)))
    })?;
    service.end()?;
    let url = rig.rabbit.url();
    let read = [
        python("read_cloudevent.py", &[&url, "out"])?,
        javascript("read_cloudevent.js", &[&url, "out"])?,
    ];
    for (text, sequence) in read.iter().zip(1..) {
        let event: Value = serde_json::from_str(text).with_context(|| text.clone())?;
        for (name, value) in [
            ("specversion", "1.0"),
            ("type", "tally"),
            ("source", "/ordain/cases"),
            ("subject", "k0"),
            ("datacontenttype", "application/json"),
        ] {
            ensure!(event[name] == value, "{name}: {event}");
        }
        let id = event["id"].as_str().context("an id")?;
        ensure!(id.starts_with("cases/k0/") && id.ends_with("/0"), "{event}");
        ensure!(event["data"]["key"] == "k0", "{event}");
        ensure!(event["data"]["sequence"] == sequence, "{event}");
    }
    let text = javascript("nestjs.js", &["receive", &url, "out"])?;
    let message: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    ensure!(message["key"] == "k0" && message["data"]["key"] == "k0", "{message}");
    ensure!(message["data"]["sequence"] == 3, "{message}");
    let id = message["id"].as_str().context("an id")?;
    ensure!(id.starts_with("cases/k0/") && id.ends_with("/0"), "{message}");
    Ok(())
}
