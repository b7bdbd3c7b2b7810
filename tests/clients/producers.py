"""Publishes one message with each named client, with the defaults of the client. Each message goes to the exchange with
the name of its client. Celery declares this exchange, and a queue with the same name. The program prints the id of
Celery's task.

Usage: producers.py URL CLIENT...
"""

import asyncio
import json
import sys

import aio_pika
import celery
import kombu
import pika

ORDER = {"orderId": 17, "cents": 1200}


def publish_with_pika(url):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().basic_publish("pika", "orders", json.dumps(ORDER).encode())
    connection.close()


def publish_with_kombu(url):
    with kombu.Connection(url) as connection:
        connection.Producer().publish(ORDER, exchange="kombu", routing_key="orders")


def publish_with_celery(url):
    with celery.Celery("shop", broker=url) as app:
        print(app.send_task("orders.pay", args=[17]).id)


async def publish_with_aio_pika(url):
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange("aio-pika", ensure=False)
        message = aio_pika.Message(json.dumps(ORDER).encode())
        await exchange.publish(message, routing_key="orders")


publish = {
    "pika": publish_with_pika,
    "kombu": publish_with_kombu,
    "celery": publish_with_celery,
    "aio-pika": lambda url: asyncio.run(publish_with_aio_pika(url)),
}
for client in sys.argv[2:]:
    publish[client](sys.argv[1])
