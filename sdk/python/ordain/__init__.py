"""An SDK for Ordain handlers in Python.

A handler is a function. The function receives one event of a key and the state of the key after the previous event.
The function returns an `Outcome`: the change of the state and the messages to publish. Ordain calls the function for
each event of a key, in order, and commits either the whole outcome of a call or nothing.

    from dataclasses import dataclass
    from ordain import Event, Outcome, Reject, put

    @dataclass
    class Account:
        balance_cents: int = 0

    @dataclass
    class Transfer:
        amount_cents: int

    def handle(event: Event, state: Account | None, data: Transfer) -> Outcome:
        account = state or Account()
        account.balance_cents += data.amount_cents
        if account.balance_cents < 0:
            raise Reject(f"the balance would be {account.balance_cents} cents")
        return put(account).emit("changes", "account.changed", account)

The annotations of `state` and `data` select the types to decode:

| annotation | value |
|---|---|
| a dataclass, or a type made of the types in `ordain.codec` | the JSON, checked against the type |
| `bytes` | the bytes, unchanged |
| `Any`, or no annotation | the JSON, unchecked |

A handler without the third parameter reads the data itself: `event.data` are the bytes, `event.decode(Type)` decodes
them.

A call ends in one of four ways:

| end of the call | effect |
|---|---|
| `return put(state)`, `keep()` or `delete()` | Ordain commits the outcome. |
| `raise Reject(reason)`, or data that cannot be decoded | The event becomes a dead letter, and the key continues. |
| `raise Retry(reason)` | Ordain tries the event again. |
| any other exception, or a state that cannot be decoded | A fault: after a second try, the key stops at the event. |

This package is pure Python. The same function runs natively in tests (`ordain.testing`), and in a WebAssembly component
that `python -m ordain.build` creates.
"""

from ordain.codec import DecodeError
from ordain.event import Event, StateError, decode_state
from ordain.failure import Reject, Retry
from ordain.outcome import Message, Outcome, delete, keep, put

__all__ = [
    "TRACE",
    "DecodeError",
    "Event",
    "Message",
    "Outcome",
    "Reject",
    "Retry",
    "StateError",
    "decode_state",
    "delete",
    "keep",
    "put",
]

__version__ = "0.1.0"

TRACE = 5
"""The level of `logging` for Ordain's log level TRACE: `logging.log(TRACE, "…")`."""
