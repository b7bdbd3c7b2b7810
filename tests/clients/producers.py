"""Publishes one message with each named client, with the defaults of the client. Each message goes to the exchange with
the name of its client. Celery declares this exchange, and a queue with the same name.

Usage: producers.py URL CLIENT...
"""

import asyncio
import sys

import aio_pika
import celery
import kombu
import pika


def publish_with_pika(url):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().basic_publish("pika", "order-1", b'{"n": 1}')
    connection.close()


def publish_with_kombu(url):
    with kombu.Connection(url) as connection:
        connection.Producer().publish({"n": 1}, exchange="kombu", routing_key="order-1")


def publish_with_celery(url):
    with celery.Celery("shop", broker=url) as app:
        app.send_task("orders.pay", args=[17])


async def publish_with_aio_pika(url):
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange("aio-pika", ensure=False)
        await exchange.publish(aio_pika.Message(b'{"n": 1}'), routing_key="order-1")


publish = {
    "pika": publish_with_pika,
    "kombu": publish_with_kombu,
    "celery": publish_with_celery,
    "aio-pika": lambda url: asyncio.run(publish_with_aio_pika(url)),
}
for client in sys.argv[2:]:
    publish[client](sys.argv[1])
