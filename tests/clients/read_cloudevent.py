"""Takes a message from a queue, reads it with the SDK for Python, and prints the event as JSON.

Usage: read_cloudevent.py URL QUEUE
"""

import json
import sys

import pika
from cloudevents.core.bindings import amqp, rabbitmq

url, queue = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
_, properties, body = connection.channel().basic_get(queue, auto_ack=True)
connection.close()

message = amqp.AMQPMessage(
    properties={"content-type": properties.content_type},
    application_properties=properties.headers,
    application_data=body,
)
event = amqp.from_amqp_event(message)
# The SDK's binding for RabbitMQ reads the same attributes with another prefix.
headers = {
    name.replace("cloudEvents:", "ce-"): value for name, value in properties.headers.items()
}
message = rabbitmq.RabbitMQMessage(
    headers=headers, content_type=properties.content_type, body=body
)
other = rabbitmq.from_rabbitmq_event(message)
# The SDK adds the current time to an event without a time.
attributes, others = (
    {name: value for name, value in read.get_attributes().items() if name != "time"}
    for read in (event, other)
)
assert attributes == others, (attributes, others)
print(json.dumps({**attributes, "data": event.get_data()}))
