"""Takes a message from a queue, executes the message in the same way as a worker of Celery, and prints the id and the
arguments of the task as JSON. The application has the tasks `orders.pay` and `orders.ship`.

Usage: execute_task.py URL QUEUE
"""

import json
import sys

import celery
import kombu
from celery.concurrency.solo import TaskPool
from celery.worker.request import Request

url, queue = sys.argv[1:]
executed = []
with celery.Celery("shop", broker=url) as app:

    @app.task(name="orders.pay")
    def pay(order):
        executed.append({"order": order})

    @app.task(name="orders.ship")
    def ship(order, express):
        executed.append({"order": order, "express": express})

    with app.connection_for_read() as connection:
        source = kombu.Queue(queue, channel=connection.default_channel)
        message = source.get(no_ack=True, accept=app.conf.accept_content)
        task = app.tasks[message.headers["task"]]
        request = Request(message, app=app, task=task)
        request.execute_using_pool(TaskPool(app=app))
        [arguments] = executed
        print(json.dumps({"id": request.id, "arguments": arguments}))
