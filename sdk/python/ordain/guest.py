"""The WebAssembly side of the SDK: imports the handler while the component is built, and converts between the types of
the generated bindings and the types of this package. Only the entry module that `ordain.build` writes imports this
module.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import linecache
import logging
import sys
from typing import Any

from componentize_py_types import Err
from wit_world import exports
from wit_world.imports import fault
from wit_world.imports import logging as host_log
from wit_world.imports import types as wit

from ordain import TRACE
from ordain.call import Call, HandlerError, seed_random
from ordain.event import Event
from ordain.failure import Reject, Retry
from ordain.fault import describe
from ordain.outcome import Outcome
from ordain.text import printable

_ENCODINGS = ("ascii", "cp1252", "latin_1", "utf_16", "utf_16_be", "utf_16_le", "utf_8_sig")
"""The encodings that are usable without an import by the handler: Python imports the module of an encoding when the
encoding is first used, and a component cannot import any module that was not imported during the build.
"""


_LEVELS = (
    (logging.ERROR, host_log.Level.ERROR),
    (logging.WARNING, host_log.Level.WARN),
    (logging.INFO, host_log.Level.INFO),
    (logging.DEBUG, host_log.Level.DEBUG),
)
"""Levels of `logging`, and the host's level for records from this level on. Lower records get the level TRACE."""


def load(module: str, function: str, late_imports: list[str], report_path: str) -> type:
    """Imports the handler `function` of `module`, and returns the class that the bindings export.

    Also imports the modules `late_imports`, which functions of the handler import. Writes a report for `ordain.build`
    to `report_path`. If the handler cannot be used, the report contains the error, and this function raises it.
    """
    report: dict[str, Any] = {}
    try:
        host_handler = _open_output()
        is_random_loaded = "random" in sys.modules
        call, root = _import_handler(module, function)
        report["missing"] = _import_late(late_imports)
        uses_random = "random" in sys.modules and not is_random_loaded
        handler_class = _export(call, root, uses_random)
        _keep_sources(root)
        host_handler.setFormatter(_Formatter(root))
        host_handler.has_host = True
        gc.collect()
        gc.freeze()
        return handler_class
    except BaseException as error:
        words = "" if isinstance(error, HandlerError) else "the handler cannot be imported:\n"
        report["error"] = words + describe(error)
        raise
    finally:
        with open(report_path, "w", encoding="utf-8") as file:
            json.dump(report, file)


def _open_output() -> _HostHandler:
    """Connects `logging` and `print` with the host's log."""
    handler = _HostHandler()
    logging.addLevelName(TRACE, "TRACE")
    root = logging.getLogger()
    root.setLevel(1)
    root.addHandler(handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return handler


class _HostHandler(logging.Handler):
    """Writes the records of `logging` to the host's log. During the build, no host exists: the records are dropped."""

    has_host = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.has_host:
            return
        try:
            text = printable(self.format(record))
        except Exception:
            self.handleError(record)
            return
        for lowest, level in _LEVELS:
            if record.levelno >= lowest:
                host_log.log(level, text)
                return
        host_log.log(host_log.Level.TRACE, text)


class _Formatter(logging.Formatter):
    """Formats the exception of a record as `ordain.fault` describes an uncaught exception."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self._root = root

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return describe(ei[1], self._root) if ei[1] else ""


def _import_handler(module_name: str, function: str) -> tuple[Call, str]:
    """Returns the handler, and the folder of its modules with a slash at the end."""
    module = importlib.import_module(module_name)
    file = module.__file__ or ""
    if not hasattr(module, function):
        raise HandlerError(f"{file.rpartition('/')[2]} has no function `{function}`")
    folder = file.rpartition("/")[0]
    if file.endswith("/__init__.py"):
        folder = folder.rpartition("/")[0]
    return Call(getattr(module, function)), folder + "/"


def _export(call: Call, root: str, uses_random: bool) -> type:
    class Handler(exports.Handler):  # type: ignore[misc]
        """The export of the component."""

        def handle(self, event: wit.Event, state: bytes | None) -> wit.Outcome:
            """Passes one call of the host to the handler."""
            try:
                own_event = _event(event)
                if uses_random:
                    seed_random(own_event)
                return _outcome(call(own_event, state))
            except Reject as reject:
                failure: wit.Failure = wit.Failure_Reject(printable(reject.reason))
            except Retry as retry:
                info = wit.RetryInfo(printable(retry.reason), retry.after_ms)
                failure = wit.Failure_Retry(info)
            except BaseException as error:
                fault.fail(describe(error, root))
                raise
            raise Err(failure)

    return Handler


def _event(event: wit.Event) -> Event:
    return Event(
        event.stream,
        event.key,
        event.sequence,
        event.id,
        event.type,
        event.source,
        event.time_ms,
        event.content_type,
        event.headers,
        event.data,
        event.end_of_sequence,
    )


_KEEP = wit.Change_Keep()
_DELETE = wit.Change_Delete()


def _outcome(outcome: Outcome) -> wit.Outcome:
    if outcome.change == "put":
        change: wit.Change = wit.Change_Put(outcome.state or b"")
    else:
        change = _KEEP if outcome.change == "keep" else _DELETE
    # The bindings read a record by the names of its fields, so that the messages need no conversion.
    messages: Any = outcome.messages
    return wit.Outcome(change, messages, outcome.ends_key)


def _import_late(names: list[str]) -> dict[str, str]:
    """Imports modules that the handler imports during an event. Returns the errors by the name of the module."""
    missing = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
    for encoding in _ENCODINGS:
        importlib.import_module(f"encodings.{encoding}")
    if "datetime" in sys.modules:
        importlib.import_module("_strptime")
    return missing


def _keep_sources(root: str) -> None:
    """Keeps the lines of the imported files in `root` for tracebacks, because a component cannot read files later."""
    files = [getattr(module, "__file__", None) or "" for module in sys.modules.values()]
    for file in files:
        if file.startswith(root):
            lines = linecache.getlines(file)
            # Without a time of modification, `linecache` does not compare the entry with the file.
            linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
