"""Takes a message from a queue, executes the message in the same way as a worker of Celery, and prints the id and the
result of the task as JSON. The application has only the task `orders.ship`.

Usage: execute_task.py URL QUEUE
"""

import json
import sys

import celery
import kombu
from celery.worker.request import Request

url, queue = sys.argv[1:]
with celery.Celery("shop", broker=url) as app:

    @app.task(name="orders.ship")
    def ship(order, express):
        return {"order": order, "express": express}

    with app.connection_for_read() as connection:
        source = kombu.Queue(queue, channel=connection.default_channel)
        message = source.get(no_ack=True, accept=app.conf.accept_content)
        task = app.tasks[message.headers["task"]]
        request = Request(message, app=app, task=task)
        print(json.dumps({"id": request.id, "result": request.execute()}))
