//! Tests with other clients of RabbitMQ and with the SDKs of CloudEvents (`tests/clients`). The handler rejects every
//! event, so the dead letters show what a handler sees.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use lapin::BasicProperties;
use lapin::types::AMQPValue;
use ordain_tests::amqp::{Outgoing, from_line};
use ordain_tests::clients::{javascript, python, ruby};
use ordain_tests::guide::producer_settings;
use ordain_tests::http::{admin, metric};
use ordain_tests::log::in_turn;
use ordain_tests::rig::Rig;
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

/// A client, and the event that a handler sees. The table of the page "Your producer" in the guide names the settings
/// with which a stream reads the message of the client.
struct Producer<'a> {
    /// The first cell of the client's row in the table.
    name: &'static str,
    /// False if the client publishes to its queue over the default exchange.
    has_exchange: bool,
    /// True if the stream declares the queue and the exchange; false if the client declares them.
    declare: bool,
    kind: &'static str,
    content_type: &'static str,
    has_time: bool,
    /// The data; `None` if each message has other data.
    data: Option<Value>,
    /// Some of the headers that the handler sees.
    headers: Vec<(&'static str, &'a str)>,
}

impl Producer<'_> {
    fn stream(&self) -> String {
        self.name.to_lowercase()
    }
}

/// Returns the producers. All of them publish with the defaults of the client. Celery and dramatiq declare their queues
/// themselves. Celery has published the task with the id `task`.
fn producers(task: &str) -> Vec<Producer<'_>> {
    let plain = |name: &'static str, content_type: &'static str| Producer {
        name,
        has_exchange: true,
        declare: true,
        kind: "",
        content_type,
        has_time: false,
        data: Some(json!({ "orderId": 17, "cents": 1200 })),
        headers: Vec::new(),
    };
    vec![
        plain("pika", ""),
        Producer {
            headers: vec![("property:content_encoding", "utf-8"), ("property:priority", "0")],
            ..plain("kombu", "application/json")
        },
        Producer { headers: vec![("property:priority", "0")], ..plain("aio-pika", "") },
        Producer {
            has_time: true,
            headers: vec![("property:priority", "0")],
            ..plain("FastStream", "application/json")
        },
        plain("amqplib", ""),
        plain("rascal", "application/json"),
        Producer { has_time: true, ..plain("rabbitmq-client", "application/json") },
        Producer {
            headers: vec![("property:priority", "0")],
            ..plain("Bunny", "application/octet-stream")
        },
        Producer {
            has_exchange: false,
            declare: false,
            kind: "pay",
            has_time: true,
            data: None,
            ..plain("dramatiq", "")
        },
        Producer {
            declare: false,
            kind: "orders.pay",
            data: Some(json!([
                [17],
                {},
                { "callbacks": null, "errbacks": null, "chain": null, "chord": null },
            ])),
            headers: vec![("id", task), ("task", "orders.pay"), ("property:correlation_id", task)],
            ..plain("Celery", "application/json")
        },
    ]
}

/// Returns the configuration of a stream with the settings of a producer in the guide. The stream, its queue and its
/// exchange have the same name.
fn stream_config(producer: &Producer<'_>, table: &BTreeMap<String, String>) -> Result<String> {
    let Producer { name, has_exchange, declare, .. } = producer;
    let stream = producer.stream();
    let exchange = if *has_exchange { format!("exchange = \"{stream}\", ") } else { String::new() };
    let settings = table.get(*name).with_context(|| format!("no row of {name}"))?;
    Ok(format!(
        "[streams.{stream}]\nhandler = \"faulty\"\nordering = \"fifo\"\n\
         source = {{ kind = \"amqp\", {exchange}queue = \"{stream}\", declare = {declare}, {settings} }}\n"
    ))
}

fn end_after(service: &mut Service, letters: usize) -> Result<()> {
    let address = admin(service)?;
    service.until("a dead letter of each message", || {
        metric(address, "ordain_dead_letters_total").ok().flatten() == Some(letters as u64)
    })?;
    service.end()
}

fn only_event(rig: &Rig, stream: &str) -> Result<Value> {
    let letters = rig.home.rows(&["dead", "list", stream, "--json"])?;
    let [letter] = &letters[..] else { anyhow::bail!("{stream}: {letters:?}") };
    ensure!(letter["cause"] == "rejected", "{stream}: {letter}");
    let mut event = letter["event"].clone();
    event["key"] = letter["key"].clone();
    Ok(event)
}

/// Each stream has the settings that the guide lists for its client.
#[test]
fn messages_of_other_clients_are_read() -> Result<()> {
    let rig = Rig::new()?;
    let url = rig.rabbit.url();
    let task = python("producers.py", &[&url, "celery", "dramatiq"])?;
    let producers = producers(task.trim());
    let table = producer_settings()?;
    let mut config =
        format!("[broker]\nurl = \"{url}\"\n[sinks.faulty]\nkind = \"amqp\"\nexchange = \"out\"\n");
    for producer in &producers {
        config += &stream_config(producer, &table)?;
    }
    rig.home.write("ordain.toml", config)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    for producer in producers.iter().filter(|producer| producer.has_exchange) {
        let stream = producer.stream();
        rig.until_bound(&stream, &[&stream])?;
    }
    python("producers.py", &[&url, "pika", "kombu", "aio-pika", "faststream"])?;
    javascript("producers.js", &[&url])?;
    ruby("bunny.rb", &["publish", &url])?;
    end_after(&mut service, producers.len())?;
    for producer in &producers {
        let Producer { name, kind, content_type, has_time, data, headers, .. } = producer;
        let event = only_event(&rig, &producer.stream())?;
        ensure!(event["key"] == "17" && event["type"] == *kind, "{name}: {event}");
        ensure!(event["content_type"] == *content_type, "{name}: {event}");
        ensure!(event["time"].is_string() == *has_time, "{name}: {event}");
        ensure!(data.as_ref().is_none_or(|data| event["data"] == *data), "{name}: {event}");
        let id = event["id"].as_str().context("an id")?;
        ensure!(!id.is_empty(), "{name}: {event}");
        if *name == "Celery" {
            ensure!(id == task.trim(), "{event}");
        }
        if *name == "dramatiq" {
            ensure!(event["data"]["message_id"] == id, "{event}");
            ensure!(event["data"]["args"] == json!([17]), "{event}");
        }
        let found = event["headers"].as_array().context("headers")?;
        for (header, value) in headers {
            ensure!(found.contains(&json!([header, value])), "{name}: {header}: {event}");
        }
        // Celery writes some headers with the type void.
        ensure!(!found.iter().any(|header| header[1] == "null"), "{name}: {event}");
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
    let table = producer_settings()?;
    let settings = table.get("NestJS").context("no row of NestJS")?;
    let config = format!(
        "[broker]\nurl = \"{url}\"\n[sinks.faulty]\nkind = \"amqp\"\nexchange = \"out\"\n\
         [streams.nestjs]\nhandler = \"faulty\"\nordering = \"fifo\"\n\
         types = [\"order.paid\"]\nother_types = \"faulty\"\n\
         source = {{ kind = \"amqp\", queue = \"nestjs\", declare = false, {settings} }}\n"
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

/// Sends two requests with pika, and checks both answers.
fn check_replies(rig: &Rig, mode: &str, names: [&str; 2]) -> Result<()> {
    let replies = python("rpc.py", &[&rig.rabbit.url(), mode, names[0], names[1]])?;
    let replies: Value = serde_json::from_str(&replies).with_context(|| replies.clone())?;
    let expected = json!({ (names[0]): names[0], (names[1]): names[1] });
    ensure!(replies == expected, "{mode}: {replies}");
    Ok(())
}

/// The client receives replies from an exclusive queue, and direct replies. Other requests name a queue that does not
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

/// The events have the same attributes, except the id, in all forms that the SDKs support. The SDK for Python also
/// declares each event the last event of its key.
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

/// Each client receives the same message through a queue of its own. The clients kombu, FastStream, rascal and
/// rabbitmq-client decode the data, because they know its content type.
#[test]
fn published_messages_are_read_by_other_clients() -> Result<()> {
    let clients = [
        "pika",
        "kombu",
        "aio-pika",
        "faststream",
        "amqplib",
        "rascal",
        "rabbitmq-client",
        "bunny",
    ];
    let rig = Rig::new()?;
    for client in clients {
        rig.client.queue(client)?;
        rig.client.bind(client, "out", "#")?;
    }
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.publish(&in_turn(1, 1))?;
    wait_until("the message in each queue", || {
        let queues = rig.rabbit.queues()?;
        Ok(clients.iter().all(|client| queues.get(*client) == Some(&(1, 0))))
    })?;
    service.end()?;
    let url = rig.rabbit.url();
    let mut printed = python("read.py", &[&url, "pika", "kombu", "aio-pika", "faststream"])?;
    printed += &javascript("read.js", &[&url])?;
    printed += &ruby("bunny.rb", &["read", &url])?;
    let read: Vec<Value> =
        printed.lines().map(serde_json::from_str).collect::<serde_json::Result<_>>()?;
    ensure!(read.len() == clients.len(), "{printed}");
    for (client, message) in clients.iter().zip(&read) {
        for (name, value) in
            [("client", *client), ("type", "tally"), ("content_type", "application/json")]
        {
            ensure!(message[name] == value, "{client}: {name}: {message}");
        }
        let id = message["id"].as_str().context("an id")?;
        ensure!(id.starts_with("cases/k0/") && id.ends_with("/0"), "{client}: {message}");
        for (name, value) in [
            ("X-Key", "k0"),
            ("cloudEvents:specversion", "1.0"),
            ("cloudEvents:id", id),
            ("cloudEvents:type", "tally"),
            ("cloudEvents:source", "/ordain/cases"),
            ("cloudEvents:subject", "k0"),
        ] {
            ensure!(message["headers"][name] == value, "{client}: {name}: {message}");
        }
        let data = &message["data"];
        ensure!(data["key"] == "k0" && data["sequence"] == 1, "{client}: {message}");
        ensure!(data["count"] == 1, "{client}: {message}");
    }
    Ok(())
}

/// Celery executes a message whose headers name a task and an id. The test publishes an event with these headers, and
/// the stream passes the event on to the sink that the setting `other_types` names. Such a message has the same form as
/// a message of a handler with these headers.
#[test]
fn published_message_is_executed_by_celery() -> Result<()> {
    let rig = Rig::with("", "types = [\"other\"]\nother_types = \"tally\"", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let mut event = from_line(&in_turn(1, 1)[0])?;
    let mut headers = event.properties.headers().clone().unwrap_or_default();
    for (name, value) in [("task", "orders.ship"), ("id", "task-1")] {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    event.properties = event.properties.with_headers(headers);
    event.body = json!([[17], { "express": true }, {}]).to_string().into_bytes();
    rig.client.publish("cases", &[event])?;
    wait_until("the message", || Ok(rig.rabbit.queues()?.get("out") == Some(&(1, 0))))?;
    service.end()?;
    let printed = python("execute_task.py", &[&rig.rabbit.url(), "out"])?;
    let outcome: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
    let arguments = json!({ "order": 17, "express": true });
    ensure!(outcome == json!({ "id": "task-1", "arguments": arguments }), "{outcome}");
    Ok(())
}

/// A task of a real client has many headers, some of them without a value. The stream passes the task on with texts as
/// the values of its headers.
#[test]
fn passed_on_task_is_executed_by_celery() -> Result<()> {
    let rig = Rig::new()?;
    let url = rig.rabbit.url();
    let table = producer_settings()?;
    let settings = table.get("Celery").context("no row of Celery")?;
    let config = format!(
        "[broker]\nurl = \"{url}\"\n[sinks.others]\nkind = \"amqp\"\nexchange = \"out\"\n\
         [streams.celery]\nhandler = \"faulty\"\nordering = \"fifo\"\n\
         types = [\"orders.ship\"]\nother_types = \"others\"\n\
         source = {{ kind = \"amqp\", queue = \"celery\", declare = false, {settings} }}\n"
    );
    rig.home.write("ordain.toml", config)?;
    let task = python("producers.py", &[&url, "celery"])?;
    let mut service = Service::start(&rig.home, &["run"])?;
    wait_until("the task", || Ok(rig.rabbit.queues()?.get("out") == Some(&(1, 0))))?;
    service.end()?;
    let printed = python("execute_task.py", &[&url, "out"])?;
    let outcome: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
    let arguments = json!({ "order": 17 });
    ensure!(outcome == json!({ "id": task.trim(), "arguments": arguments }), "{outcome}");
    Ok(())
}

/// A worker of dramatiq executes a message whose data is a task in dramatiq's form. A handler emits the message to the
/// queue of the worker.
#[test]
fn published_message_is_executed_by_dramatiq() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"", "")?;
    let config = rig.home.read("ordain.toml").replace("tally", "faulty");
    let sink = "[sinks.tasks]\nkind = \"amqp\"\nexchange = \"\"\nrouting_key = \"tasks\"\n";
    rig.home.write("ordain.toml", config + sink)?;
    let url = rig.rabbit.url();
    python("run_actor.py", &[&url, "tasks", "declare"])?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let task = json!({
        "queue_name": "tasks", "actor_name": "ship", "args": [17], "kwargs": { "express": true },
        "options": {}, "message_id": "task-1", "message_timestamp": 1_764_072_000_125_i64,
    });
    let command = json!({ "do": "publish", "sink": "tasks", "text": task.to_string() });
    let event = Outgoing {
        routing_key: "17".to_owned(),
        properties: BasicProperties::default().with_message_id("1".into()),
        body: command.to_string().into_bytes(),
    };
    rig.client.publish("cases", &[event])?;
    let printed = python("run_actor.py", &[&url, "tasks", "execute"])?;
    service.end()?;
    let outcome: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
    ensure!(outcome == json!({ "id": "task-1", "order": 17, "express": true }), "{outcome}");
    Ok(())
}
