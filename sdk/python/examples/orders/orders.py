"""The lifecycle of an order. Each key is an order.

The part of an event's type after the last dot names the new status: `order.paid` makes the order *paid*. `NEXT` lists
the valid steps. A step to *refunded*, or from *created* to *cancelled*, ends the order and its key. A created order can
also be updated, any number of times: `order.updated` changes the amount and keeps the status. The handler rejects all
other events.

The data is empty or a JSON object. `order.created` and `order.updated` require the field `amount_cents`, a whole number
of at least 0. The handler ignores all other fields.

The handler emits a message to the sink `receipts` when an order is paid, shipped, delivered, cancelled or refunded, and
when an update changes its amount. The data of the message is `{"order": KEY, "status": …, "amount_cents": …}`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ordain import Event, Outcome, Reject, delete, keep, put

SINK = "receipts"
AMOUNT_LIMIT = 1 << 64


class Status(str, Enum):
    CREATED = "created"
    PAID = "paid"
    PACKED = "packed"
    SHIPPED = "shipped"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    REFUNDED = "refunded"


NEXT: dict[Status | None, tuple[Status, ...]] = {
    None: (Status.CREATED,),
    Status.CREATED: (Status.PAID, Status.CANCELLED),
    Status.PAID: (Status.PACKED, Status.CANCELLED),
    Status.PACKED: (Status.SHIPPED, Status.CANCELLED),
    Status.SHIPPED: (Status.DELIVERED,),
    Status.DELIVERED: (Status.REFUNDED,),
    Status.CANCELLED: (Status.REFUNDED,),
    Status.REFUNDED: (),
}
"""The next statuses of each status; `None` is an order that does not exist."""

WITHOUT_RECEIPT = (Status.CREATED, Status.PACKED)


@dataclass
class Details:
    """The fields of an event's data that the handler reads."""

    amount_cents: int | None = None

    def __post_init__(self) -> None:
        if self.amount_cents is not None and not 0 <= self.amount_cents < AMOUNT_LIMIT:
            raise ValueError(f"amount_cents must be from 0 to {AMOUNT_LIMIT - 1}, not {self.amount_cents}")


@dataclass
class Order:
    """The state of a key. A step that ends the order removes the state."""

    status: Status
    amount_cents: int


def handle(event: Event, state: Order | None, data: Details | None) -> Outcome:
    step = event.type.rpartition(".")[2]
    amount_cents = data.amount_cents if data else None
    if step == "updated":
        return update(event, state, amount_cents)
    status = read_status(step, event.type)
    before = state.status if state else None
    check_step(before, status)
    if state:
        order = Order(status, state.amount_cents)
    elif amount_cents is not None:
        order = Order(status, amount_cents)
    else:
        raise Reject('creating an order requires "amount_cents" in the data')

    ended = status is Status.REFUNDED or (before, status) == (Status.CREATED, Status.CANCELLED)
    outcome = delete().complete() if ended else put(order)
    if status not in WITHOUT_RECEIPT:
        emit_receipt(outcome, event, f"order.{status.value}", order, ended or event.end_of_sequence)
    return outcome


def update(event: Event, state: Order | None, amount_cents: int | None) -> Outcome:
    if state is None or state.status is not Status.CREATED:
        raise Reject("only a created order that is not yet paid can be updated")
    if amount_cents is None:
        raise Reject('updating an order requires "amount_cents" in the data')
    if amount_cents == state.amount_cents:
        return keep()
    order = Order(Status.CREATED, amount_cents)
    return emit_receipt(put(order), event, "order.updated", order, event.end_of_sequence)


def emit_receipt(outcome: Outcome, event: Event, type: str, order: Order, is_last: bool) -> Outcome:
    receipt = {"order": event.key, "status": order.status, "amount_cents": order.amount_cents}
    return outcome.emit(SINK, type, receipt, end_of_sequence=is_last)


def read_status(step: str, type: str) -> Status:
    try:
        return Status(step)
    except ValueError:
        quoted = json.dumps(type, ensure_ascii=False)
        raise Reject(f"{quoted} is not a step of an order: the type must end in {any_of(Status)}") from None


def check_step(before: Status | None, after: Status) -> None:
    if after in NEXT[before]:
        return
    right = any_of(NEXT[before])
    if before is None:
        raise Reject(f"an order that does not exist cannot be {after.value}: it must be {right} first")
    raise Reject(f"an order that is {before.value} cannot be {after.value}: it can be {right}")


def any_of(choices: Iterable[Status]) -> str:
    return " or ".join(status.value for status in choices)
