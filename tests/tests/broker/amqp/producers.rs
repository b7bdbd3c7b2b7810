//! Tests of the page "Your producer" (`docs/guide/your-producer.md`): messages as common libraries send them, read with
//! the settings in the table of the page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use ordain_servers::Rabbit;
use ordain_tests::amqp::Outgoing;
use ordain_tests::guide::producer_settings;
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;
use serde_json::{Value, json};

/// The time of the messages: as text, and in seconds and milliseconds since 1970.
const TIME: &str = "2025-11-25T12:00:00.125Z";
const TIME_IN_SECONDS: &str = "2025-11-25T12:00:00.000Z";
const SECONDS: u64 = 1_764_072_000;
const MS: i64 = 1_764_072_000_125;

struct Case {
    /// The first cell of the producer's row in the table.
    producer: &'static str,
    routing_key: &'static str,
    properties: BasicProperties,
    body: Value,
    /// The bytes of the body; `None` if they are the text of `body`.
    encoded_body: Option<Vec<u8>>,
    key: &'static str,
    /// The id; `None` if it is computed from the content.
    id: Option<&'static str>,
    kind: &'static str,
    time: Option<&'static str>,
    /// The data; `None` if the data is the body.
    data: Option<Value>,
    /// The headers that the event must have, according to the table of the page.
    headers: Vec<(&'static str, &'static str)>,
}

impl Case {
    /// Returns the case of a message with the body `{"orderId":17,"cents":1200}`. Its event has the key 17, an id from
    /// the content, and neither a type nor a time.
    fn new(producer: &'static str, properties: BasicProperties) -> Self {
        Self {
            producer,
            routing_key: "orders",
            properties,
            body: json!({ "orderId": 17, "cents": 1200 }),
            encoded_body: None,
            key: "17",
            id: None,
            kind: "",
            time: None,
            data: None,
            headers: Vec::new(),
        }
    }

    fn with_body(self, body: Value) -> Self {
        Self { body, ..self }
    }

    fn with_routing_key(self, routing_key: &'static str) -> Self {
        Self { routing_key, ..self }
    }

    fn with_id(self, id: &'static str) -> Self {
        Self { id: Some(id), ..self }
    }

    fn with_type(self, kind: &'static str) -> Self {
        Self { kind, ..self }
    }

    fn with_time(self, time: &'static str) -> Self {
        Self { time: Some(time), ..self }
    }

    fn with_headers<const N: usize>(self, headers: [(&'static str, &'static str); N]) -> Self {
        Self { headers: headers.into(), ..self }
    }

    fn message(&self) -> Outgoing {
        let body = self.encoded_body.clone();
        Outgoing {
            routing_key: self.routing_key.to_owned(),
            properties: self.properties.clone(),
            body: body.unwrap_or_else(|| self.body.to_string().into_bytes()),
        }
    }
}

fn properties() -> BasicProperties {
    BasicProperties::default()
}

fn json_properties() -> BasicProperties {
    properties().with_content_type("application/json".into()).with_delivery_mode(2)
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn headers<const N: usize>(values: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in values {
        table.insert(name.into(), value);
    }
    table
}

fn python_cases() -> Vec<Case> {
    let celery = headers([
        ("lang", text("py")),
        ("task", text("orders.pay")),
        ("id", text("task-1")),
        ("shadow", AMQPValue::Void),
        ("eta", AMQPValue::Void),
        ("retries", AMQPValue::LongInt(0)),
        ("timelimit", AMQPValue::FieldArray(vec![AMQPValue::Void, AMQPValue::Void].into())),
        ("root_id", text("task-1")),
        ("argsrepr", text("(17,)")),
        ("origin", text("gen1@shop")),
        ("ignore_result", AMQPValue::Boolean(false)),
    ]);
    let celery = json_properties()
        .with_content_encoding("utf-8".into())
        .with_priority(0)
        .with_correlation_id("task-1".into())
        .with_reply_to("replies-1".into())
        .with_headers(celery);
    let options = json!({ "callbacks": null, "errbacks": null, "chain": null, "chord": null });
    let dramatiq = json!({
        "queue_name": "default", "actor_name": "pay", "args": [17], "kwargs": {}, "options": {},
        "message_id": "m-1", "message_timestamp": MS,
    });
    let kombu = json_properties().with_content_encoding("utf-8".into()).with_priority(0);
    let aio_pika =
        properties().with_message_id("m-1".into()).with_delivery_mode(1).with_priority(0);
    let fast_stream = json_properties()
        .with_message_id("m-1".into())
        .with_correlation_id("c-1".into())
        .with_priority(0)
        .with_timestamp(SECONDS);
    vec![
        Case::new("pika", properties()),
        Case::new("kombu", kombu)
            .with_headers([("property:content_encoding", "utf-8"), ("property:priority", "0")]),
        Case::new("Celery", celery)
            .with_routing_key("celery")
            .with_body(json!([[17], {}, options]))
            .with_id("task-1")
            .with_type("orders.pay"),
        Case::new("aio-pika", aio_pika).with_id("m-1").with_headers([("property:priority", "0")]),
        Case::new("FastStream", fast_stream)
            .with_id("m-1")
            .with_time(TIME_IN_SECONDS)
            .with_headers([("property:priority", "0")]),
        Case::new("dramatiq", properties().with_delivery_mode(2))
            .with_body(dramatiq)
            .with_id("m-1")
            .with_type("pay")
            .with_time(TIME),
    ]
}

fn javascript_cases() -> Vec<Case> {
    let order = json!({ "orderId": 17, "cents": 1200 });
    // RabbitMQ replaces the pseudo-queue `amq.rabbitmq.reply-to` by an address of this form.
    let request = properties()
        .with_delivery_mode(2)
        .with_correlation_id("r-1".into())
        .with_reply_to("amq.rabbitmq.reply-to.g1h2AA5yZXBseUAxMDAwMjA.aHR0cA==".into());
    vec![
        Case::new("amqplib", properties().with_headers(FieldTable::default())),
        Case::new("rascal", json_properties().with_message_id("m-1".into())).with_id("m-1"),
        Case::new("rabbitmq-client", json_properties().with_timestamp(SECONDS))
            .with_time(TIME_IN_SECONDS),
        Case::new("NestJS", properties().with_headers(FieldTable::default()))
            .with_body(json!({ "pattern": "order.paid", "data": order }))
            .with_type("order.paid"),
        Case::new("NestJS", request)
            .with_body(json!({ "pattern": { "cmd": "pay" }, "data": order, "id": "r-1" }))
            .with_id("r-1")
            .with_type("pay"),
    ]
}

fn dotnet_cases() -> Vec<Case> {
    let order = json!({ "OrderId": 17, "Cents": 1200 });
    let mass_transit = json!({
        "messageId": "m-1", "conversationId": "c-1", "sourceAddress": "rabbitmq://shop/web",
        "destinationAddress": "rabbitmq://shop/Shop:OrderPaid",
        "messageType": ["urn:message:Shop:OrderPaid", "urn:message:Shop:OrderEvent"],
        "message": { "orderId": 17, "cents": 1200 },
        "sentTime": "2025-11-25T12:00:00.1250000Z", "headers": {}, "host": { "machineName": "web-1" },
    });
    let mass_transit_properties = properties()
        .with_content_type("application/vnd.masstransit+json".into())
        .with_delivery_mode(2)
        .with_message_id("m-1".into())
        .with_headers(headers([("publishId", text("1"))]));
    let types =
        "Shop.OrderPaid, Shop.Messages, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null";
    let service_bus = json_properties()
        .with_message_id("m-1".into())
        .with_correlation_id("c-1".into())
        .with_type("Shop.OrderPaid".into())
        .with_reply_to("web".into())
        .with_headers(headers([
            ("NServiceBus.MessageId", text("m-1")),
            ("NServiceBus.ConversationId", text("c-1")),
            ("NServiceBus.EnclosedMessageTypes", text(types)),
            ("NServiceBus.TimeSent", text("2025-11-25 12:00:00:125000 Z")),
            ("NServiceBus.ContentType", text("application/json")),
        ]));
    let easy_net_q = properties()
        .with_type("Shop.OrderPaid, Shop.Messages".into())
        .with_correlation_id("m-1".into())
        .with_delivery_mode(2);
    let rebus = json_properties()
        .with_message_id("m-1".into())
        .with_content_encoding("utf-8".into())
        .with_headers(headers([
            ("rbs2-msg-id", text("m-1")),
            ("rbs2-msg-type", text("Shop.OrderPaid, Shop.Messages")),
            ("rbs2-senttime", text("2025-11-25T12:00:00.1250000+00:00")),
            ("rbs2-content-type", text("application/json;charset=utf-8")),
            ("rbs2-corr-seq", text("0")),
        ]));
    vec![
        Case::new("MassTransit", mass_transit_properties)
            .with_routing_key("")
            .with_body(mass_transit)
            .with_id("m-1")
            .with_type("urn:message:Shop:OrderPaid")
            .with_time(TIME),
        Case::new("NServiceBus", service_bus)
            .with_routing_key("")
            .with_body(order.clone())
            .with_id("m-1")
            .with_type("Shop.OrderPaid")
            .with_time(TIME)
            .with_headers([
                ("NServiceBus.MessageId", "m-1"),
                ("NServiceBus.ConversationId", "c-1"),
                ("NServiceBus.EnclosedMessageTypes", types),
                ("NServiceBus.TimeSent", "2025-11-25 12:00:00:125000 Z"),
                ("NServiceBus.ContentType", "application/json"),
            ]),
        Case::new("EasyNetQ", easy_net_q)
            .with_routing_key("")
            .with_body(order.clone())
            .with_id("m-1")
            .with_type("Shop.OrderPaid, Shop.Messages"),
        Case::new("Rebus", rebus)
            .with_body(order)
            .with_id("m-1")
            .with_type("Shop.OrderPaid, Shop.Messages")
            .with_time(TIME)
            .with_headers([
                ("rbs2-msg-id", "m-1"),
                ("rbs2-msg-type", "Shop.OrderPaid, Shop.Messages"),
                ("rbs2-senttime", "2025-11-25T12:00:00.1250000+00:00"),
                ("rbs2-content-type", "application/json;charset=utf-8"),
                ("rbs2-corr-seq", "0"),
            ]),
    ]
}

fn other_cases() -> Vec<Case> {
    let dapr = json!({
        "specversion": "1.0", "id": "m-1", "source": "checkout", "type": "com.dapr.event.sent",
        "time": TIME, "topic": "orders", "pubsubname": "rabbit", "datacontenttype": "application/json",
        "data": { "orderId": 17, "cents": 1200 },
    });
    let spring = json_properties()
        .with_content_encoding("UTF-8".into())
        .with_priority(0)
        .with_headers(headers([("__TypeId__", text("com.shop.OrderPaid"))]));
    let symfony = json_properties()
        .with_timestamp(SECONDS)
        .with_headers(headers([("type", text("App\\Message\\OrderPaid"))]));
    let bunny = properties()
        .with_content_type("application/octet-stream".into())
        .with_delivery_mode(2)
        .with_priority(0);
    let mqtt = |more: Option<&str>| {
        let mut table = headers([("x-mqtt-publish-qos", AMQPValue::ShortShortInt(1))]);
        if let Some(id) = more {
            table.insert("id".into(), text(id));
        }
        properties().with_delivery_mode(2).with_headers(table)
    };
    let amqp_1_0 = json_properties()
        .with_message_id("m-1".into())
        .with_timestamp(SECONDS)
        .with_headers(headers([("tenant", text("blue"))]));
    // If a client publishes an AMQP 1.0 value of type string, RabbitMQ delivers a message with the type `amqp-1.0`. The
    // body is the encoded value.
    let mut value =
        Case::new("AMQP 1.0", amqp_1_0.clone().with_type("amqp-1.0".into())).with_id("m-1");
    let data = value.body.to_string();
    let size = u8::try_from(data.len()).expect("a short text");
    value.encoded_body = Some([&[0x00, 0x53, 0x77, 0xa1, size][..], data.as_bytes()].concat());
    vec![
        Case::new("Spring AMQP", spring)
            .with_routing_key("order.paid")
            .with_type("com.shop.OrderPaid"),
        Case::new("Symfony Messenger", symfony)
            .with_type("App\\Message\\OrderPaid")
            .with_time(TIME_IN_SECONDS),
        Case::new("Bunny", bunny),
        Case::new("Dapr", properties().with_content_type("text/plain".into()))
            .with_routing_key("")
            .with_body(dapr)
            .with_id("m-1")
            .with_type("com.dapr.event.sent")
            .with_time(TIME),
        Case::new("MQTT", mqtt(Some("u-1"))).with_routing_key("orders.17.paid").with_id("u-1"),
        Case::new("MQTT", mqtt(None)).with_routing_key("orders.17.paid"),
        Case::new("AMQP 1.0", amqp_1_0)
            .with_id("m-1")
            .with_time(TIME_IN_SECONDS)
            .with_headers([("tenant", "blue")]),
        value.with_time(TIME_IN_SECONDS),
    ]
}

fn cloud_event_cases() -> Vec<Case> {
    let binary = |prefix: &str, time: AMQPValue| {
        let mut table = FieldTable::default();
        for (name, value) in [
            ("specversion", text("1.0")),
            ("id", text("e-1")),
            ("source", text("/shop")),
            ("type", text("order.paid")),
            ("subject", text("17")),
            ("time", time),
            ("tenant", text("blue")),
        ] {
            table.insert(format!("{prefix}{name}").into(), value);
        }
        Case::new("CloudEvents SDKs, binary mode", json_properties().with_headers(table))
            .with_id("e-1")
            .with_type("order.paid")
            .with_time(TIME)
            .with_headers([("tenant", "blue")])
    };
    let order = json!({ "orderId": 17, "cents": 1200 });
    let body = json!({
        "specversion": "1.0", "id": "e-1", "source": "/shop", "type": "order.paid", "subject": "17",
        "time": TIME, "data": order,
    });
    let kind = "application/cloudevents+json; charset=utf-8";
    let producer = "CloudEvents SDKs, structured mode";
    let structured = Case::new(producer, properties().with_content_type(kind.into()))
        .with_body(body)
        .with_id("e-1")
        .with_type("order.paid")
        .with_time(TIME);
    vec![
        binary("cloudEvents_", AMQPValue::LongLongInt(MS)),
        binary("cloudEvents:", text(TIME)),
        binary("ce-", text(TIME)),
        Case { data: Some(order), ..structured },
    ]
}

fn all_cases() -> Vec<Case> {
    [python_cases(), javascript_cases(), dotnet_cases(), other_cases(), cloud_event_cases()]
        .into_iter()
        .flatten()
        .collect()
}

/// Returns a configuration with one stream for each case. The handler rejects every event, so the dead letters show
/// the events.
fn config(rabbit: &Rabbit, cases: &[Case], table: &BTreeMap<String, String>) -> Result<String> {
    let mut text = format!("[broker]\nurl = \"{}\"\n", rabbit.url());
    for (index, case) in cases.iter().enumerate() {
        let settings = table.get(case.producer);
        let settings = settings.with_context(|| format!("no row of {}", case.producer))?;
        write!(
            text,
            "[streams.cases-{index}]\nhandler = \"faulty\"\nordering = \"fifo\"\n\
             source = {{ kind = \"amqp\", exchange = \"cases-{index}\", queue = \"cases-{index}\", {settings} }}\n"
        )?;
    }
    Ok(text)
}

/// The producer sends each message twice, and the stream recognises the repeat by the id.
#[test]
fn messages_of_common_producers_are_read_with_the_settings_in_the_guide() -> Result<()> {
    let cases = all_cases();
    let table = producer_settings()?;
    let shown: BTreeSet<&str> = cases.iter().map(|case| case.producer).collect();
    let rows: BTreeSet<&str> = table.keys().map(String::as_str).collect();
    ensure!(shown == rows, "rows without a message: {:?}", rows.difference(&shown));
    let rig = Rig::new()?;
    rig.home.write("ordain.toml", config(&rig.rabbit, &cases, &table)?)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    let names: Vec<String> = (0..cases.len()).map(|index| format!("cases-{index}")).collect();
    for name in &names {
        rig.until_bound(name, &[name.as_str()])?;
    }
    rig.rabbit.sync()?;
    for (name, case) in names.iter().zip(&cases) {
        rig.client.publish(name, &[case.message(), case.message()])?;
    }
    rig.until_empty()?;
    service.end()?;
    for (name, case) in names.iter().zip(&cases) {
        let producer = case.producer;
        let letters = rig.home.rows(&["dead", "list", name, "--json"])?;
        ensure!(letters.len() == 1, "{producer}: {letters:?}");
        let letter = &letters[0];
        ensure!(letter["cause"] == "rejected", "{producer}: {letter}");
        ensure!(letter["key"] == case.key, "{producer}: {letter}");
        let event = &letter["event"];
        let id = event["id"].as_str().context("an id")?;
        let is_digest = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        ensure!(case.id.map_or(is_digest, |expected| id == expected), "{producer}: {event}");
        ensure!(event["type"].as_str().unwrap_or_default() == case.kind, "{producer}: {event}");
        ensure!(event["time"].as_str() == case.time, "{producer}: {event}");
        let data = case.data.as_ref().unwrap_or(&case.body);
        ensure!(event["data"] == *data, "{producer}: {event}");
        let headers = event["headers"].as_array().context("headers")?;
        for (header, value) in &case.headers {
            ensure!(headers.contains(&json!([header, value])), "{producer}: {header}: {event}");
        }
        // A header that contains only values of the type void is missing.
        let void = ["null", "[null,null]"];
        ensure!(
            !headers.iter().any(|header| void.iter().any(|text| header[1] == *text)),
            "{producer}: {event}"
        );
    }
    Ok(())
}
