"""The exceptions by which a handler ends a call on purpose."""

from __future__ import annotations

from ordain.text import checked_u64


class Reject(Exception):
    """Rejects the event for good: Ordain dead-letters the event and continues with the key's next event."""

    def __init__(self, reason: str) -> None:
        """Creates the exception with the reason, as text for people."""
        super().__init__(reason)

    @property
    def reason(self) -> str:
        """The reason, as text for people."""
        return str(self)


class Retry(Exception):
    """Requests another try of the event. The later events of the key wait."""

    after_ms: int | None
    """Delay before the retry, in ms; the longest delay of the stream's `retry.backoff` limits this delay. With `None`,
    `retry.backoff` alone determines the delay."""

    def __init__(self, reason: str, after_ms: int | None = None) -> None:
        """Creates the exception with the reason, as text for people, and the delay before the retry, in ms."""
        super().__init__(reason)
        self.after_ms = None if after_ms is None else checked_u64(after_ms, "after_ms")

    @property
    def reason(self) -> str:
        """The reason, as text for people."""
        return str(self)
