"""Checks of texts and numbers that a component passes to its host. A wrong value fails in the handler's own line."""

from __future__ import annotations

import json

_U64_LIMIT = 1 << 64


def checked_text(value: object, name: str) -> str:
    """Returns `value` if it is a `str` that UTF-8 can encode; `name` describes the value in the error."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} contains half of a surrogate pair: {value!a}") from None
    return value


def checked_u64(value: object, name: str) -> int:
    """Returns `value` if it is an `int` that fits in 64 bits without a sign."""
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 0 <= value < _U64_LIMIT:
        raise ValueError(f"{name} must be from 0 to {_U64_LIMIT - 1}, not {value}")
    return value


def printable(value: str) -> str:
    """Returns `value` with an escape sequence for each half of a surrogate pair, which UTF-8 cannot encode."""
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


def quoted(value: str) -> str:
    """Returns `value` in double quotes, with escape sequences for quotes and control characters."""
    return json.dumps(value, ensure_ascii=False)
