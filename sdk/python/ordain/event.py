"""The event that a handler receives."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from ordain.codec import DecodeError, decoder
from ordain.failure import Reject
from ordain.text import quoted

T = TypeVar("T")


class StateError(Exception):
    """A state that cannot be decoded: a fault, because this or another version of the handler wrote the state."""


@dataclass(slots=True)
class Event:
    """An event of a key."""

    stream: str
    """Name of the stream."""
    key: str
    """The unit of order: an order id, an account, a session."""
    sequence: int
    """Number of the event within its key. Usually one higher than the number of the key's previous event."""
    id: str
    """Id of the event, set by the producer."""
    type: str
    """Type of the event, for example `order.paid`."""
    source: str = ""
    """Name of the producer (the CloudEvents attribute `source`); may be empty."""
    time_ms: int | None = None
    """Time of the event by the producer's clock, in ms since the Unix epoch; `None` if the producer set no time."""
    content_type: str = ""
    """Media type of the data, set by the producer; may be empty."""
    headers: list[tuple[str, str]] = field(default_factory=list)
    """Names and values of the other attributes of the event, in order. A value that is not text is encoded as JSON."""
    data: bytes = b""
    """The data, as the producer encoded them."""
    end_of_sequence: bool = False
    """True if the producer marked the event as the last event of its key. The key then ends after this event, even if
    the handler rejects the event."""

    def header(self, name: str) -> str | None:
        """Returns the value of the first header with this name, in upper or lower case, or `None`."""
        wanted = name.lower()
        return next((value for name, value in self.headers if name.lower() == wanted), None)

    @overload
    def decode(self) -> Any: ...
    @overload
    def decode(self, as_type: builtins.type[T]) -> T: ...
    def decode(self, as_type: Any = Any) -> Any:
        """Decodes the data as a value of `as_type`; `ordain.codec` lists the possible types. Rejects the event if the
        data do not match the type.
        """
        read = decoder(as_type)
        try:
            return read(self.data)
        except DecodeError as error:
            raise Reject(
                f"the data of this event of type {quoted(self.type)} ({len(self.data)} bytes of "
                f"{quoted(self.content_type)}) cannot be decoded: {error}"
            ) from None


@overload
def decode_state(state: bytes) -> Any: ...
@overload
def decode_state(state: bytes, as_type: type[T]) -> T: ...
def decode_state(state: bytes, as_type: Any = Any) -> Any:
    """Decodes a state as a value of `as_type`, for a handler whose parameter `state` has the type `bytes | None`.

    Raises `StateError` if the state does not match the type.
    """
    read = decoder(as_type)
    try:
        return read(state)
    except DecodeError as error:
        raise StateError(
            f"the state of this key ({len(state)} bytes) cannot be decoded: {error}. If another version of the handler "
            "wrote the state, this version must be able to read that state"
        ) from None
