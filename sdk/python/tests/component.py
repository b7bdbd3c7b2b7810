"""Builds components and runs them in the program `ordain`, which the variable `ORDAIN` names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

SDK = Path(__file__).resolve().parent.parent
ORDAIN = os.environ.get("ORDAIN", "")

needs_ordain = unittest.skipUnless(ORDAIN, "the variable ORDAIN does not name the program `ordain`")

CONFIG = """
[streams.cases]
handler = "case"
source = { kind = "file", path = "events.ndjson" }
retry = { attempts = 2 }

[sinks]
out = { kind = "file", path = "out.ndjson" }

[plugins]
timeout = "2s"

[admin]
listen = "127.0.0.1:0"
"""


def event(sequence: int, type: str, data: Any = None, key: str = "klíč", **attributes: Any) -> dict[str, Any]:
    """Returns a CloudEvent; `bytes` as data become base64."""
    content = {"data": data} if data is not None else {}
    if isinstance(data, bytes):
        import base64

        content = {"data_base64": base64.b64encode(data).decode()}
    return {
        "specversion": "1.0",
        "id": f"{key}/{sequence}",
        "source": "/test",
        "type": type,
        "subject": key,
        "sequence": str(sequence),
        "time": "2026-01-02T03:04:05.678Z",
        **content,
        **attributes,
    }


def build(source: Path, output: Path) -> str:
    """Runs the build command, which must succeed. Returns its output to standard error."""
    command = [sys.executable, "-m", "ordain.build", str(source), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(SDK)})
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stderr


class Project:
    """A temporary folder with a configuration, in which tests run `ordain`."""

    def __init__(self) -> None:
        """Creates the folder."""
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)
        (self.path / "ordain.toml").write_text(CONFIG, encoding="utf-8")

    def close(self) -> None:
        """Removes the folder."""
        self._folder.cleanup()

    def ordain(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `ordain` with these arguments."""
        command = [os.path.abspath(ORDAIN), *arguments]
        return subprocess.run(command, cwd=self.path, capture_output=True, text=True, timeout=300)

    def run(self, events: list[dict[str, Any]]) -> str:
        """Passes events to the handler. Returns the log."""
        lines = "".join(json.dumps(one) + "\n" for one in events)
        (self.path / "events.ndjson").write_text(lines, encoding="utf-8")
        done = self.ordain("--log", "warn,handler=trace", "run", "--once")
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done.stderr

    def messages(self) -> list[dict[str, Any]]:
        """Returns the messages that the handler has emitted, in order."""
        file = self.path / "out.ndjson"
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    def letters(self) -> list[str]:
        """Returns the reasons of the dead letters."""
        rows = self.ordain("dead", "list", "cases", "--json").stdout.splitlines()
        return [json.loads(row)["error"] for row in rows]

    def why(self, key: str) -> str:
        """Returns why a key waits."""
        return self.ordain("keys", "why", "cases", key).stdout
