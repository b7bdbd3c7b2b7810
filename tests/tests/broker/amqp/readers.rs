//! Tests of the page "Your producer" (`docs/guide/your-producer.md`): Ordain's messages for libraries whose clients the
//! tests cannot install. For each library, a function finds the type and the data of a message in the places in which
//! the library finds them, according to the library's source code. `broker/clients.rs` tests the other libraries with
//! their clients.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{FieldTable, ShortString};
use ordain_tests::amqp::{Outgoing, header};
use ordain_tests::guide::{producer_settings, reader_tests};
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;
use serde_json::{Value, json};

/// The rows of the table that `broker/clients.rs` tests with the client.
const CLIENT_ROWS: [&str; 13] = [
    "pika",
    "kombu",
    "Celery",
    "aio-pika",
    "FastStream",
    "dramatiq",
    "amqplib",
    "rascal",
    "rabbitmq-client",
    "NestJS",
    "Bunny",
    "CloudEvents SDKs, binary mode",
    "CloudEvents SDKs, structured mode",
];

type Found = (String, Value);

struct Case {
    /// The first cell of the library's row in the table.
    reader: &'static str,
    command: Value,
    data: Value,
    read: fn(&Delivery) -> Result<Found>,
    expected: (&'static str, Value),
}

fn text(property: Option<&ShortString>) -> &str {
    property.map_or("", ShortString::as_str)
}

fn kind(message: &Delivery) -> String {
    text(message.properties.kind().as_ref()).to_owned()
}

fn content_type(message: &Delivery) -> &str {
    text(message.properties.content_type().as_ref())
}

fn json_body(message: &Delivery) -> Result<Value> {
    serde_json::from_slice(&message.data).context("data in JSON")
}

fn ensure_id(message: &Delivery) -> Result<()> {
    ensure!(!text(message.properties.message_id().as_ref()).is_empty(), "no message_id");
    Ok(())
}

/// MassTransit chooses a deserializer by the content type. `application/vnd.masstransit+json` is an envelope. With the
/// raw JSON deserializer, `application/json` is the message itself. If the header `MT-MessageType` is missing, the
/// message can have any type.
fn read_with_mass_transit(message: &Delivery) -> Result<Found> {
    let body = json_body(message)?;
    if content_type(message) == "application/vnd.masstransit+json" {
        let kind = body["messageType"][0].as_str().context("messageType")?;
        return Ok((kind.to_owned(), body["message"].clone()));
    }
    ensure!(content_type(message) == "application/json", "another content type");
    ensure!(header(message, "MT-MessageType").is_none(), "another type");
    Ok((String::new(), body))
}

/// NServiceBus needs a message id. Without the header `NServiceBus.EnclosedMessageTypes`, the property `type` contains
/// the full name of the class. The content type must be the content type of the serializer.
fn read_with_nservicebus(message: &Delivery) -> Result<Found> {
    ensure_id(message)?;
    ensure!(content_type(message) == "application/json", "another content type");
    let types = header(message, "NServiceBus.EnclosedMessageTypes");
    Ok((types.unwrap_or_else(|| kind(message)), json_body(message)?))
}

/// EasyNetQ reads the class and its assembly from the property `type`.
fn read_with_easy_net_q(message: &Delivery) -> Result<Found> {
    let kind = kind(message);
    ensure!(kind.contains(", "), "the type needs an assembly: {kind}");
    Ok((kind, json_body(message)?))
}

/// Rebus reads the class and the content type from headers, and ignores the property `content_type`. Without the header
/// `rbs2-msg-id`, Rebus uses the property `message_id`.
fn read_with_rebus(message: &Delivery) -> Result<Found> {
    ensure_id(message)?;
    let content_type = header(message, "rbs2-content-type").context("rbs2-content-type")?;
    ensure!(content_type.starts_with("application/json"), "another content type: {content_type}");
    Ok((header(message, "rbs2-msg-type").context("rbs2-msg-type")?, json_body(message)?))
}

/// The JSON converter of Spring AMQP converts messages with a content type of JSON. If a listener does not determine
/// the class, the converter reads the class from the header `__TypeId__`.
fn read_with_spring(message: &Delivery) -> Result<Found> {
    ensure!(content_type(message) == "application/json", "another content type");
    let encoding = text(message.properties.content_encoding().as_ref());
    ensure!(encoding.is_empty(), "another encoding: {encoding}");
    Ok((header(message, "__TypeId__").context("__TypeId__")?, json_body(message)?))
}

/// The Symfony serializer needs a body, and the class in the header `type`. It interprets each header with the prefix
/// `X-Message-Stamp-` as a serialized object of PHP.
fn read_with_symfony(message: &Delivery) -> Result<Found> {
    let headers = message.properties.headers().as_ref().map(FieldTable::inner);
    let mut names = headers.context("headers")?.keys();
    ensure!(names.all(|name| !name.as_str().starts_with("X-Message-Stamp-")), "a stamp");
    Ok((header(message, "type").context("the header type")?, json_body(message)?))
}

/// Dapr reads the body as a CloudEvent in structured mode.
fn read_with_dapr(message: &Delivery) -> Result<Found> {
    let event = json_body(message)?;
    ensure!(event["specversion"] == "1.0" && event["id"].is_string(), "no CloudEvent: {event}");
    Ok((event["type"].as_str().context("type")?.to_owned(), event["data"].clone()))
}

/// RabbitMQ publishes a message to MQTT if an exchange routes it from `amq.topic`. The topic is the routing key, with
/// `/` for `.`. In this test, the type is the topic.
fn read_with_mqtt(message: &Delivery) -> Result<Found> {
    ensure!(message.exchange.as_str() == "amq.topic", "another exchange");
    Ok((message.routing_key.as_str().replace('.', "/"), json_body(message)?))
}

/// RabbitMQ converts the properties of a message to properties of AMQP 1.0, and the headers to application properties.
fn read_with_amqp_1_0(message: &Delivery) -> Result<Found> {
    ensure_id(message)?;
    ensure!(content_type(message) == "application/json", "another content type");
    let kind = header(message, "cloudEvents:type").context("cloudEvents:type")?;
    Ok((kind, json_body(message)?))
}

/// Returns a case in which the library must find exactly the data of the message.
fn case(
    reader: &'static str,
    command: Value,
    read: fn(&Delivery) -> Result<Found>,
    expected_type: &'static str,
) -> Case {
    let order = json!({ "orderId": 17, "cents": 1200 });
    Case { reader, command, data: order.clone(), read, expected: (expected_type, order) }
}

fn cases() -> Vec<Case> {
    let urn = "urn:message:Shop:OrderPaid";
    let dotnet_type = "Shop.OrderPaid, Shop.Messages";
    let rebus = json!({
        "headers": {
            "rbs2-msg-type": dotnet_type,
            "rbs2-content-type": "application/json;charset=utf-8",
        },
    });
    let envelope = case(
        "MassTransit",
        json!({ "content_type": "application/vnd.masstransit+json" }),
        read_with_mass_transit,
        urn,
    );
    let envelope_data = json!({ "messageType": [urn], "message": envelope.data });
    let dapr = case(
        "Dapr",
        json!({ "content_type": "application/cloudevents+json" }),
        read_with_dapr,
        "order.paid",
    );
    let cloud_event = json!({
        "specversion": "1.0", "id": "m-1", "source": "/shop", "type": "order.paid",
        "datacontenttype": "application/json", "data": dapr.data,
    });
    let java_type = "com.shop.OrderPaid";
    let spring = json!({ "headers": { "__TypeId__": java_type } });
    let php_type = "App\\Message\\OrderPaid";
    let symfony = json!({ "headers": { "type": php_type } });
    vec![
        Case { data: envelope_data, ..envelope },
        case("MassTransit", json!({}), read_with_mass_transit, ""),
        case(
            "NServiceBus",
            json!({ "type": "Shop.OrderPaid" }),
            read_with_nservicebus,
            "Shop.OrderPaid",
        ),
        case("EasyNetQ", json!({ "type": dotnet_type }), read_with_easy_net_q, dotnet_type),
        case("Rebus", rebus, read_with_rebus, dotnet_type),
        case("Spring AMQP", spring, read_with_spring, java_type),
        case("Symfony Messenger", symfony, read_with_symfony, php_type),
        Case { data: cloud_event, ..dapr },
        case("MQTT", json!({ "sink": "mqtt" }), read_with_mqtt, "receipts/MQTT"),
        case("AMQP 1.0", json!({ "type": "order.paid" }), read_with_amqp_1_0, "order.paid"),
    ]
}

/// Returns the key of the case with this index. The key of the message to MQTT is a part of its topic.
fn key(index: usize, case: &Case) -> String {
    if case.reader == "MQTT" { case.reader.to_owned() } else { index.to_string() }
}

/// Returns an event whose handler emits the message of a case.
fn event(key: &str, case: &Case) -> Outgoing {
    let mut command = case.command.clone();
    command["do"] = "publish".into();
    command["text"] = case.data.to_string().into();
    Outgoing {
        routing_key: key.to_owned(),
        properties: BasicProperties::default().with_message_id(key.into()),
        body: command.to_string().into_bytes(),
    }
}

/// All messages come from a handler that sets only the parts that the table of the page names.
#[test]
fn messages_have_the_parts_that_libraries_need_to_read_them() -> Result<()> {
    let rig = Rig::with("", "ordering = \"fifo\"", "")?;
    rig.client.queue("mqtt")?;
    rig.client.bind("mqtt", "amq.topic", "receipts.#")?;
    let config = rig.home.read("ordain.toml").replace("tally", "faulty");
    let sink = "[sinks.mqtt]\nkind = \"amqp\"\nexchange = \"amq.topic\"\nrouting_key = \"receipts.{key}\"\n";
    rig.home.write("ordain.toml", config + sink)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let cases = cases();
    let events: Vec<Outgoing> =
        cases.iter().enumerate().map(|(index, case)| event(&key(index, case), case)).collect();
    rig.client.publish("cases", &events)?;
    let mut taken = rig.client.take("out", cases.len() - 1)?;
    taken.extend(rig.client.take("mqtt", 1)?);
    service.end()?;
    let by_key: BTreeMap<String, &Delivery> = taken
        .iter()
        .map(|message| anyhow::Ok((header(message, "X-Key").context("a key")?, message)))
        .collect::<Result<_>>()?;
    for (index, case) in cases.iter().enumerate() {
        let Case { reader, data, expected, .. } = case;
        let message = *by_key.get(&key(index, case)).with_context(|| format!("no {reader}"))?;
        ensure!(message.data == data.to_string().as_bytes(), "{reader}: {message:?}");
        let found = (case.read)(message).with_context(|| format!("{reader}: {message:?}"))?;
        let (kind, body) = found;
        ensure!(kind == expected.0 && body == expected.1, "{reader}: {kind}: {body}");
    }
    Ok(())
}

/// The table names for each library how it reads Ordain's messages, and which kind of test shows this.
#[test]
fn each_producer_of_the_guide_has_a_tested_way_back() -> Result<()> {
    let producers: BTreeSet<String> = producer_settings()?.into_keys().collect();
    let readers = reader_tests()?;
    let names: BTreeSet<String> = readers.keys().cloned().collect();
    let difference = producers.symmetric_difference(&names).collect::<Vec<_>>();
    ensure!(difference.is_empty(), "rows in only one of the two tables: {difference:?}");
    let with_message: BTreeSet<&str> = cases().iter().map(|case| case.reader).collect();
    for (reader, test) in &readers {
        let expected = match reader.as_str() {
            reader if CLIENT_ROWS.contains(&reader) => "client",
            reader if with_message.contains(reader) => "message",
            _ => "nothing",
        };
        ensure!(test == expected, "{reader} is tested with {expected}, the guide names {test}");
    }
    Ok(())
}
