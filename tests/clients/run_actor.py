"""Declares the queue of an actor of dramatiq, or executes one message of this queue with a worker of dramatiq. Prints the
id and the argument of the executed message as JSON. The application has only the actor `ship`.

Usage: run_actor.py URL QUEUE declare
       run_actor.py URL QUEUE execute
"""

import json
import sys
import threading

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import CurrentMessage

TIMEOUT_SECONDS = 60

url, queue, command = sys.argv[1:]
broker = RabbitmqBroker(url=url, middleware=[CurrentMessage()])
executed = threading.Event()


@dramatiq.actor(broker=broker, queue_name=queue)
def ship(order, express):
    message = CurrentMessage.get_current_message()
    print(json.dumps({"id": message.message_id, "order": order, "express": express}))
    executed.set()


if command == "declare":
    broker.declare_queue(queue, ensure=True)
else:
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    assert executed.wait(TIMEOUT_SECONDS), "no message arrived"
    worker.stop()
broker.close()
