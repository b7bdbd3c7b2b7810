"""Describes an uncaught exception: the message first, then the frames of the user's code."""

from __future__ import annotations

import itertools
import linecache
import os
import types
from collections.abc import Iterator

from ordain.call import HandlerError
from ordain.event import StateError
from ordain.text import printable

FRAME_LIMIT = 10
"""Maximum number of frames in a description, counted from the innermost frame. Equal frames in a row count once."""

_CAUSE_LIMIT = 3
"""Maximum number of causes of an exception in its description."""

_MESSAGE_LIMIT = 2000
"""Maximum number of characters of an exception's own message."""

_SDK_FOLDER = os.path.dirname(__file__) + "/"
_LIBRARY_FOLDER = os.path.dirname(linecache.__file__) + "/"
_SITE_FOLDER = _LIBRARY_FOLDER + "site-packages/"


def describe(error: BaseException, root: str = "") -> str:
    """Returns the message of an exception, the frames of its traceback, and its causes.

    The frames of this package and of Python's standard library are left out. File names are relative to the folder
    `root`.
    """
    if isinstance(error, (StateError, HandlerError)):
        return printable(str(error))
    parts = [_message(error)]
    frames = [(code, line, len(list(same))) for (code, line), same in itertools.groupby(_frames(error.__traceback__))]
    if frames:
        parts.append("Traceback (most recent call last):")
    if len(frames) > FRAME_LIMIT:
        parts.append(f"  … {len(frames) - FRAME_LIMIT} more frames")
    for code, line, count in frames[-FRAME_LIMIT:]:
        file = code.co_filename
        parts.append(f'  File "{file.removeprefix(root)}", line {line}, in {code.co_name}')
        lines = linecache.getlines(file)
        if 0 < line <= len(lines):
            parts.append(f"    {lines[line - 1].strip()}")
        if count > 1:
            parts.append(f"    … {count} times in a row")
    parts.extend(f"caused by: {_message(cause)}" for cause in _causes(error))
    return printable("\n".join(parts))


def _message(error: BaseException) -> str:
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        text = str(error)
    except Exception as fault:
        text = f"<the message cannot be created: {type(fault).__name__}>"
    text = text if len(text) <= _MESSAGE_LIMIT else text[:_MESSAGE_LIMIT] + "…"
    return f"{name}: {text}" if text else name


def _frames(traceback: types.TracebackType | None) -> Iterator[tuple[types.CodeType, int]]:
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not _is_noise(code.co_filename):
            yield code, traceback.tb_lineno or 0
        traceback = traceback.tb_next


def _is_noise(file: str) -> bool:
    if file.startswith((_SDK_FOLDER, "<frozen ")):
        return True
    return file.startswith(_LIBRARY_FOLDER) and not file.startswith(_SITE_FOLDER)


def _causes(error: BaseException) -> Iterator[BaseException]:
    for _ in range(_CAUSE_LIMIT):
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None:
            return
        yield cause
        error = cause
