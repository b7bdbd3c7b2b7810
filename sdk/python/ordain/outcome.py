"""The outcome of an event: the change of the state, and the messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ordain.codec import decoder, encode
from ordain.text import checked_text, checked_u64

if TYPE_CHECKING:
    from typing_extensions import Unpack

Headers = Mapping[str, str] | Iterable[tuple[str, str]]
"""Headers of a message: a mapping, or pairs of a name and a value, in order."""

JSON = "application/json"
BYTES = "application/octet-stream"


class MessageOptions(TypedDict, total=False):
    """The optional arguments of `Message`, by name."""

    key: str | None
    content_type: str | None
    headers: Headers
    delay_ms: int | None
    end_of_sequence: bool


@dataclass(init=False, slots=True)
class Message:
    """A message to a sink. Ordain publishes the message after the commit, at least once, always under the same id."""

    sink: str
    """Name of a sink in the configuration of Ordain."""
    key: str | None
    """Key of the message; `None` means the key of the event."""
    type: str
    """Type of the message, for example `order.paid`."""
    content_type: str
    """Media type of the data."""
    headers: list[tuple[str, str]]
    """Names and values of the headers, in order."""
    data: bytes
    """The encoded data."""
    delay_ms: int | None
    """Minimum delay between the commit and the publishing, in ms. This release of Ordain supports no delays."""
    end_of_sequence: bool
    """True if the message is the last message of its key in a sequenced sink."""

    def __init__(
        self,
        sink: str,
        type: str,
        data: Any = b"",
        *,
        key: str | None = None,
        content_type: str | None = None,
        headers: Headers = (),
        delay_ms: int | None = None,
        end_of_sequence: bool = False,
    ) -> None:
        """Creates a message, and encodes `data` at once: `bytes` stay unchanged, any other value becomes JSON.

        Without `content_type`, the media type is `application/json` for JSON, `application/octet-stream` for bytes,
        and empty without data.
        """
        self.sink = checked_text(sink, "the sink of a message")
        self.type = checked_text(type, "the type of a message")
        self.key = None if key is None else checked_text(key, "the key of a message")
        if content_type is not None:
            self.content_type = checked_text(content_type, "the content type of a message")
        elif isinstance(data, (bytes, bytearray, memoryview)):
            self.content_type = BYTES if data else ""
        else:
            self.content_type = JSON
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        self.headers = [
            (checked_text(name, "the name of a header"), checked_text(value, f"the header {name!r}"))
            for name, value in pairs
        ]
        self.data = encode(data)
        self.delay_ms = None if delay_ms is None else checked_u64(delay_ms, "delay_ms")
        self.end_of_sequence = bool(end_of_sequence)

    def json(self) -> Any:
        """Returns the data, decoded as JSON; useful in tests."""
        return decoder(Any)(self.data)


@dataclass(slots=True)
class Outcome:
    """The effect of one event. Ordain commits either the whole effect or nothing.

    `put`, `keep` and `delete` create an outcome. The methods return the same outcome, so that calls can be chained.
    """

    change: Literal["keep", "put", "delete"]
    """The change of the key's state."""
    state: bytes | None = None
    """The new state of the change `put`, encoded."""
    messages: list[Message] = field(default_factory=list)
    """The messages to publish, in this order."""
    ends_key: bool = False
    """True if the key ends after this event."""

    def emit(self, sink: str, type: str, data: Any = b"", **options: Unpack[MessageOptions]) -> Outcome:
        """Adds a message; the parameters and the options are those of `Message`."""
        self.messages.append(Message(sink, type, data, **options))
        return self

    def emit_all(self, messages: Iterable[Message]) -> Outcome:
        """Adds messages."""
        self.messages.extend(messages)
        return self

    def complete(self, end: bool = True) -> Outcome:
        """Ends the key after this event, if `end` is true. Until `complete_ttl` has passed since the end of the key,
        Ordain dead-letters all later events of the key.
        """
        self.ends_key = bool(end)
        return self


def keep() -> Outcome:
    """Creates an outcome that keeps the state."""
    return Outcome("keep")


def put(state: Any) -> Outcome:
    """Creates an outcome that replaces the state, and encodes `state` at once: `bytes` stay unchanged, any other value
    becomes JSON.
    """
    return Outcome("put", encode(state))


def delete() -> Outcome:
    """Creates an outcome that removes the state: the key's next event finds no state."""
    return Outcome("delete")
