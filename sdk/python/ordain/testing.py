"""Runs a handler natively, without WebAssembly: passes the events of one key to the handler, and keeps the state from
event to event.

    from ordain.testing import Runner

    run = Runner(handle)
    outcome = run.event("account.deposited", {"amount_cents": 500})
    assert outcome.messages[0].json() == {"balance_cents": 500}
    assert run.state == Account(balance_cents=500)
"""

from __future__ import annotations

import random
from typing import Any

from ordain.call import Call, Handle, seed_random
from ordain.codec import encode
from ordain.event import Event, decode_state
from ordain.failure import Reject
from ordain.outcome import BYTES, JSON, Outcome

__all__ = ["Runner"]


class Runner:
    """A handler with the state and the next sequence of one key.

    The runner converts data and state to bytes and back, as a component does. A test therefore detects a conversion
    that loses data. The runner seeds the module `random` for each event, as a component does. The clock is the clock
    of the machine, whereas a component sees the time of the event.
    """

    stream: str
    """Name of the stream."""
    key: str
    """The key of all events."""
    sequence: int
    """Sequence of the next event."""
    ended: bool
    """True if an event or an outcome has ended the key."""
    state_bytes: bytes | None
    """The state, encoded; `None` without a state."""

    def __init__(
        self,
        handle: Handle,
        *,
        stream: str = "test",
        key: str = "key",
        first: int = 1,
        state: Any = None,
    ) -> None:
        """Creates a runner for a key with the state `state`. `first` is the sequence of the first event."""
        self._call = Call(handle)
        self.stream = stream
        self.key = key
        self.sequence = first
        self.ended = False
        self.state_bytes = None if state is None else encode(state)

    def event(self, type: str, data: Any = b"", **attributes: Any) -> Outcome:
        """Passes the next event of the key to the handler; see `next_event` and `send`."""
        return self.send(self.next_event(type, data, **attributes))

    def next_event(self, type: str, data: Any = b"", **attributes: Any) -> Event:
        """Returns the next event of the key without passing it to the handler.

        `bytes` as data stay unchanged; any other value becomes JSON. `attributes` sets other fields of the event, for
        example `time_ms` or `end_of_sequence`.
        """
        is_raw = isinstance(data, (bytes, bytearray, memoryview))
        fields: dict[str, Any] = {
            "stream": self.stream,
            "key": self.key,
            "sequence": self.sequence,
            "id": f"{self.key}/{self.sequence}",
            "source": "/test",
            "time_ms": 0,
            "content_type": BYTES if is_raw else JSON,
        }
        return Event(**(fields | attributes | {"type": type, "data": encode(data)}))

    def send(self, event: Event) -> Outcome:
        """Passes an event to the handler, and returns the outcome.

        A `Reject` settles the event, as in Ordain: the exception reaches the test, and the next event has the next
        sequence. A `Retry`, and any other exception (a fault), also reaches the test, and the runner stays unchanged.
        """
        if self.ended:
            raise AssertionError(f"the key has ended before event {event.sequence} {event.type!r}")
        # The test's own random numbers do not depend on the events.
        random_state = random.getstate()
        seed_random(event)
        try:
            outcome = self._call(event, self.state_bytes)
        except Reject:
            self._settle(event, ends_key=False)
            raise
        finally:
            random.setstate(random_state)
        if outcome.change != "keep":
            self.state_bytes = outcome.state
        self._settle(event, outcome.ends_key)
        return outcome

    def _settle(self, event: Event, ends_key: bool) -> None:
        # A test may send an event with an earlier sequence. Such an event does not advance the key.
        self.sequence = max(self.sequence, event.sequence + 1)
        self.ended = ends_key or event.end_of_sequence

    @property
    def state(self) -> Any:
        """The state, decoded as the handler's type; `None` without a state."""
        return None if self.state_bytes is None else decode_state(self.state_bytes, self._call.state_type)
