"""Publishes a CloudEvent in each form of the SDK for Python to the exchange `cases`. The name of the form is the id, the
subject and the routing key.

Usage: publish_cloudevents.py URL
"""

import datetime
import sys

import pika
from cloudevents.core.bindings import amqp, rabbitmq
from cloudevents.core.v1.event import CloudEvent


def event(form):
    attributes = {
        "id": form,
        "type": "order.paid",
        "source": "/shop",
        "subject": form,
        "time": datetime.datetime(2025, 11, 25, 12, 0, 0, 125000, datetime.timezone.utc),
        "datacontenttype": "application/json",
        "tenant": "blue",
        # In the binary form for RabbitMQ, the SDK writes the text `True`.
        "endofsequence": True,
    }
    return CloudEvent(attributes=attributes, data={"n": 1, "city": "Köln"})


connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
for form, convert in [
    ("python-rabbitmq-binary", rabbitmq.to_binary_event),
    ("python-rabbitmq-structured", rabbitmq.to_structured_event),
]:
    message = convert(event(form))
    properties = pika.BasicProperties(
        content_type=message.content_type, headers=message.headers
    )
    channel.basic_publish("cases", form, message.body, properties)
for form, convert in [
    ("python-amqp-binary", amqp.to_binary_event),
    ("python-amqp-structured", amqp.to_structured_event),
]:
    message = convert(event(form))
    properties = pika.BasicProperties(
        content_type=message.properties["content-type"],
        headers=message.application_properties,
    )
    channel.basic_publish("cases", form, message.application_data, properties)
connection.close()
