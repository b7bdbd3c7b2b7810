"""Counts and hashes the events of a key, and distributes its messages among three keys.

Several streams can form a chain with this handler. A checker can compute the count and the hash of each message from
the input alone. The checker can thus verify that each event took effect once and in order.

After each event, the handler emits one message to the sink with the name of the stream. The key of the message is the
key of the event, a slash, and the remainder of the event's sequence divided by `PARTS`. The type of the message is
`tally`, and the data is `{"key": …, "sequence": …, "count": …, "hash": "16 hexadecimal digits"}` with the key and the
sequence of the event. `count` and `hash` cover this event and all events of its key before it. `plugins/tally`
describes the hash.
"""

from dataclasses import dataclass

from ordain import Event, Outcome, put

PARTS = 3
FIRST_HASH = 0xCBF29CE484222325
PRIME = 0x100000001B3


@dataclass
class Tally:
    """The state of a key."""

    count: int = 0
    hash: str = f"{FIRST_HASH:016x}"


@dataclass
class Report:
    """The data of a message."""

    key: str
    sequence: int
    count: int
    hash: str


def handle(event: Event, state: Tally | None) -> Outcome:
    before = state or Tally()
    tally = Tally(before.count + 1, f"{hash_event(int(before.hash, 16), event):016x}")
    report = Report(event.key, event.sequence, tally.count, tally.hash)
    return put(tally).emit(event.stream, "tally", report, key=f"{event.key}/{event.sequence % PARTS}")


def hash_event(hash: int, event: Event) -> int:
    kind = event.type.encode()
    for part in (number(event.sequence), number(len(kind)), kind, number(len(event.data)), event.data):
        for byte in part:
            hash = (hash ^ byte) * PRIME & 0xFFFFFFFFFFFFFFFF
    return hash


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")
