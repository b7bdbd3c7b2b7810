"""A handler that shows each feature of the contract between Ordain and a handler. The type of the event selects the
feature. The handlers of the conformance test in other languages behave in the same way.
"""

import logging
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from ordain import TRACE, Event, Outcome, Reject, Retry, decode_state, delete, keep, put

SINK = "out"


@dataclass
class Addition:
    amount: int


@dataclass
class Total:
    total: int


@dataclass
class Exact:
    n: int


@dataclass
class Many:
    messages: int


def handle(event: Event, state: bytes | None) -> Outcome:
    action = ACTIONS.get(event.type)
    if action is None:
        raise Reject(f"unknown type {event.type}")
    return action(event, state)


def echo(event: Event, state: bytes | None) -> Outcome:
    return keep().emit(SINK, "echoed", event.data, content_type=event.content_type, headers=event.headers)


def describe(event: Event, state: bytes | None) -> Outcome:
    description = {
        "stream": event.stream,
        "key": event.key,
        "sequence": event.sequence,
        "id": event.id,
        "type": event.type,
        "source": event.source,
        "time_ms": event.time_ms,
        "content_type": event.content_type,
        "end_of_sequence": event.end_of_sequence,
        "headers": event.headers,
    }
    return keep().emit(SINK, "described", description)


def put_data(event: Event, state: bytes | None) -> Outcome:
    return put(event.data)


def get(event: Event, state: bytes | None) -> Outcome:
    if state is None:
        raise Reject("no state")
    return keep().emit(SINK, "state", state, content_type="application/octet-stream")


def delete_state(event: Event, state: bytes | None) -> Outcome:
    return delete()


def add(event: Event, state: bytes | None) -> Outcome:
    addition = event.decode(Addition)
    total = Total(0) if state is None else decode_state(state, Total)
    total.total += addition.amount
    return put(total).emit(SINK, "added", total)


def exact(event: Event, state: bytes | None) -> Outcome:
    return keep().emit(SINK, "exact", event.decode(Exact))


def clock(event: Event, state: bytes | None) -> Outcome:
    return keep().emit(SINK, "clock", {"now_ms": time.time_ns() // 1_000_000})


def draw(event: Event, state: bytes | None) -> Outcome:
    return keep().emit(SINK, "random", {"values": [random.random(), random.random()]})


def log(event: Event, state: bytes | None) -> Outcome:
    logging.log(TRACE, "trace ☃")
    logging.debug("debug ☃")
    logging.info("info ☃")
    logging.warning("warn ☃")
    logging.error("error ☃")
    return keep()


def print_lines(event: Event, state: bytes | None) -> Outcome:
    print("printed ☃")
    print("complained ☃", file=sys.stderr)
    return keep()


def many(event: Event, state: bytes | None) -> Outcome:
    outcome = keep()
    for index in range(event.decode(Many).messages):
        outcome.emit(SINK, "many", {"index": index}, key=f"{event.key}/{index}")
    return outcome


def reject(event: Event, state: bytes | None) -> Outcome:
    raise Reject("rejected on request ☃")


def retry(event: Event, state: bytes | None) -> Outcome:
    raise Retry("retried on request ☃", after_ms=20)


def fail(event: Event, state: bytes | None) -> Outcome:
    raise RuntimeError("failed on request ☃")


def complete(event: Event, state: bytes | None) -> Outcome:
    return keep().emit(SINK, "completed").complete()


def end(event: Event, state: bytes | None) -> Outcome:
    is_last = event.end_of_sequence
    return keep().emit(SINK, "ended", {"end": is_last}, end_of_sequence=is_last)


def spin(event: Event, state: bytes | None) -> Outcome:
    while True:
        pass


def grow(event: Event, state: bytes | None) -> Outcome:
    blocks = []
    while True:
        blocks.append(bytearray(1 << 20))


ACTIONS: dict[str, Callable[[Event, bytes | None], Outcome]] = {
    "echo": echo,
    "describe": describe,
    "put": put_data,
    "get": get,
    "delete": delete_state,
    "add": add,
    "exact": exact,
    "clock": clock,
    "random": draw,
    "log": log,
    "print": print_lines,
    "many": many,
    "reject": reject,
    "retry": retry,
    "fault": fail,
    "complete": complete,
    "end": end,
    "spin": spin,
    "grow": grow,
}
