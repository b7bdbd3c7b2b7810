"""Publishes one message with each named client, with the defaults of the client. Each message goes to the exchange with
the name of its client. Celery declares this exchange, and a queue with the same name. The program prints the id of
Celery's task. dramatiq declares only the queue, and publishes to the default exchange.

Usage: producers.py URL CLIENT...
"""

import asyncio
import json
import sys

import aio_pika
import celery
import dramatiq
import kombu
import pika
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from faststream.rabbit import RabbitBroker, RabbitExchange

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


async def publish_with_faststream(url):
    async with RabbitBroker(url, logger=None) as broker:
        exchange = RabbitExchange("faststream", declare=False)
        await broker.publish(ORDER, routing_key="orders", exchange=exchange)


def publish_with_dramatiq(url):
    broker = RabbitmqBroker(url=url)

    @dramatiq.actor(broker=broker, queue_name="dramatiq")
    def pay(order):
        pass

    pay.send(17)
    broker.close()


publish = {
    "pika": publish_with_pika,
    "kombu": publish_with_kombu,
    "celery": publish_with_celery,
    "aio-pika": lambda url: asyncio.run(publish_with_aio_pika(url)),
    "faststream": lambda url: asyncio.run(publish_with_faststream(url)),
    "dramatiq": publish_with_dramatiq,
}
for client in sys.argv[2:]:
    publish[client](sys.argv[1])
