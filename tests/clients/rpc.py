"""Sends requests to the exchange `cases`, and waits for the replies. Prints the replies as JSON: the text of each reply,
by its correlation id. The name of a request is its key, its text and its correlation id.

Usage: rpc.py URL exclusive REQUEST...  receives the replies from an exclusive queue
       rpc.py URL direct REQUEST...     receives direct replies, without a queue
"""

import json
import sys
import time

import pika

TIMEOUT_SECONDS = 60

url, mode, *requests = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
if mode == "direct":
    address = "amq.rabbitmq.reply-to"
else:
    address = channel.queue_declare("", exclusive=True).method.queue
replies = {}


def receive(_channel, _method, properties, body):
    assert properties.correlation_id not in replies, properties
    assert properties.reply_to is None, properties
    replies[properties.correlation_id] = body.decode()


channel.basic_consume(address, receive, auto_ack=True)
for request in requests:
    properties = pika.BasicProperties(
        message_id=request, correlation_id=request, reply_to=address
    )
    command = {"do": "reply", "sink": "replies", "text": request}
    channel.basic_publish("cases", request, json.dumps(command), properties)
deadline = time.monotonic() + TIMEOUT_SECONDS
while len(replies) < len(requests):
    assert time.monotonic() < deadline, replies
    connection.process_data_events(time_limit=1)
connection.close()
print(json.dumps(replies))
