"""Takes a message with each named client from the queue with the name of the client, and prints the parts of the
message as JSON, one line for each client.

Usage: read.py URL CLIENT...
"""

import asyncio
import json
import sys

import aio_pika
import kombu
import pika
from faststream.rabbit import RabbitBroker, RabbitQueue

TIMEOUT_SECONDS = 60


def read_with_pika(url):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    _, properties, body = connection.channel().basic_get("pika", auto_ack=True)
    connection.close()
    return {
        "id": properties.message_id,
        "type": properties.type,
        "content_type": properties.content_type,
        "headers": properties.headers,
        "data": json.loads(body),
    }


def read_with_kombu(url):
    # Without `no_declare`, kombu would declare the queue in another form than the form of the existing queue.
    queue = kombu.Queue("kombu", no_declare=True)
    with kombu.Connection(url) as connection, connection.SimpleQueue(queue) as messages:
        message = messages.get(timeout=TIMEOUT_SECONDS)
        message.ack()
        return {
            "id": message.properties["message_id"],
            "type": message.properties["type"],
            "content_type": message.content_type,
            "headers": message.headers,
            # kombu decodes the body, because it knows the content type.
            "data": message.payload,
        }


async def read_with_aio_pika(url):
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.get_queue("aio-pika")
        message = await queue.get(timeout=TIMEOUT_SECONDS)
        async with message.process():
            return {
                "id": message.message_id,
                "type": message.type,
                "content_type": message.content_type,
                "headers": message.headers,
                "data": json.loads(message.body),
            }


async def read_with_faststream(url):
    broker = RabbitBroker(url, logger=None)
    # Without `declare=False`, FastStream would declare the queue again, and the form of this declaration differs from
    # the form of the existing queue.
    subscriber = broker.subscriber(RabbitQueue("faststream", declare=False))
    async with broker:
        await broker.start()
        message = await subscriber.get_one(timeout=TIMEOUT_SECONDS)
        return {
            "id": message.message_id,
            "type": message.raw_message.type,
            "content_type": message.content_type,
            "headers": message.headers,
            # FastStream decodes the body, because it knows the content type.
            "data": await message.decode(),
        }


read = {
    "pika": read_with_pika,
    "kombu": read_with_kombu,
    "aio-pika": lambda url: asyncio.run(read_with_aio_pika(url)),
    "faststream": lambda url: asyncio.run(read_with_faststream(url)),
}
for client in sys.argv[2:]:
    print(json.dumps({"client": client, **read[client](sys.argv[1])}))
