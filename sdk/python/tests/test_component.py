"""Tests of components in the program `ordain`."""

import base64
import sys
import unittest

from ordain import Reject, Retry
from ordain.testing import Runner
from tests.component import SDK, Project, build, event, needs_ordain

CONFORMANCE = SDK / "examples" / "conformance"
sys.path.insert(0, str(CONFORMANCE))
import conformance  # noqa: E402

HARM = """
from dataclasses import dataclass
import datetime
import logging
import sys
import rules
from ordain import keep, put, Event, Outcome

logging.warning("a line of the build")
print("a line of the build")

@dataclass
class Data:
    numbers: list[int] | None = None

def handle(event: Event, state: int | None, data: Data | None) -> Outcome:
    match event.type:
        case "late":
            import decimal
            import optional.extra
        case "decimal":
            import decimal
            return keep().emit("out", "decimal", str(decimal.Decimal("0.1") * 3))
        case "date":
            day = datetime.datetime.strptime("2026-01-02", "%Y-%m-%d")
            now = datetime.datetime.now(datetime.timezone.utc)
            return keep().emit("out", "date", [day.isoformat(), now.isoformat()])
        case "encoding":
            return keep().emit("out", "encoding", "ž".encode("utf-16").hex() + "é".encode("latin-1").hex())
        case "deep":
            return rules.deep(0)
        case "exit":
            sys.exit("bye")
        case "none":
            return None
        case "surrogate":
            print("\\ud800"); logging.error("\\ud800"); return keep().emit("out", "s", "\\ud800")
        case "surrogate-key":
            return keep().emit("out", "s", key="\\ud800")
        case "exception":
            try:
                1 / 0
            except ZeroDivisionError:
                logging.exception("it failed")
            return keep()
        case "large":
            return put(7).emit("out", "large", "x" * 200_000)
"""
RULES = "def deep(n):\n    return deep(n + 1)\n"


@needs_ordain
class Conformance(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.project = Project()
        cls.addClassCleanup(cls.project.close)
        build(CONFORMANCE / "conformance.py", cls.project.path / "plugins" / "case.wasm")
        cls.raw = bytes(range(256))
        cls.events = [
            event(1, "echo", cls.raw, datacontenttype="application/x-☃", xfirst="a ☃", xsecond=""),
            event(2, "describe"),
            event(3, "get"),
            event(4, "put", cls.raw),
            event(5, "get"),
            event(6, "delete"),
            event(7, "add", {"amount": 5}),
            event(8, "add", {"amount": 2}),
            event(9, "add", {"amount": "x"}),
            event(10, "exact", {"n": 2**64 - 1}),
            event(11, "clock"),
            event(12, "random"),
            event(13, "log"),
            event(14, "print"),
            event(15, "many", {"messages": 3}),
            event(16, "reject"),
            event(17, "other"),
            event(18, "end"),
            event(19, "complete"),
            event(1, "fault", key="fault"),
            event(1, "retry", key="retry"),
            event(1, "put", {"total": None}, key="state"),
            event(2, "add", {"amount": 1}, key="state"),
            event(1, "spin", key="spin"),
            event(1, "grow", key="grow"),
        ]
        cls.log = cls.project.run(cls.events)
        cls.messages = cls.project.messages()
        cls.by_type = {message["type"]: message for message in cls.messages}

    def test_data_and_headers_are_unchanged(self):
        echoed = self.by_type["echoed"]
        self.assertEqual(base64.b64decode(echoed["data_base64"]), self.raw)
        self.assertEqual(echoed["datacontenttype"], "application/x-☃")
        self.assertEqual((echoed["xfirst"], echoed["xsecond"]), ("a ☃", ""))
        self.assertEqual(base64.b64decode(self.by_type["state"]["data_base64"]), self.raw)

    def test_event_is_described(self):
        described = self.by_type["described"]["data"]
        self.assertEqual((described["stream"], described["key"], described["sequence"]), ("cases", "klíč", 2))
        self.assertEqual((described["time_ms"], described["headers"]), (1767323045678, []))

    def test_values_are_exact(self):
        self.assertEqual(self.by_type["exact"]["data"], {"n": 2**64 - 1})
        self.assertEqual(self.by_type["clock"]["data"], {"now_ms": 1767323045678})
        totals = [message["data"] for message in self.messages if message["type"] == "added"]
        self.assertEqual(totals, [{"total": 5}, {"total": 7}])

    def test_random_numbers_are_those_of_the_runner(self):
        run = Runner(conformance.handle, stream="cases", key="klíč", first=12)
        self.assertEqual(self.by_type["random"]["data"], run.event("random").messages[0].json())

    def test_messages_are_in_order(self):
        many = [(message["subject"], message["data"]) for message in self.messages if message["type"] == "many"]
        self.assertEqual(many, [(f"klíč/{index}", {"index": index}) for index in range(3)])

    def test_log_levels_reach_the_host(self):
        for level in ("trace", "debug", "info", "warn", "error"):
            [line] = [line for line in self.log.splitlines() if f"{level} ☃" in line]
            self.assertIn(level.upper(), line)
        for level, text in (("INFO", "printed ☃"), ("WARN", "complained ☃")):
            [line] = [line for line in self.log.splitlines() if text in line]
            self.assertIn(level, line)

    def test_reasons_of_rejections_are_those_of_the_runner(self):
        expected = ["no state", "rejected on request ☃", "unknown type other"]
        self.assertLessEqual(set(expected), set(self.project.letters()))
        with self.assertRaises(Reject) as caught:
            Runner(conformance.handle).event("add", {"amount": "x"})
        self.assertIn(caught.exception.reason, self.project.letters())

    def test_fault_has_the_message_and_the_lines_of_the_user(self):
        why = self.project.why("fault")
        for part in ("RuntimeError: failed on request ☃", 'File "conformance.py", line', "in fail"):
            self.assertIn(part, why)
        for part in ("ordain/", "panicked", "Python function threw"):
            self.assertNotIn(part, why)

    def test_undecodable_state_is_a_fault(self):
        self.assertIn("the state of this key (14 bytes) cannot be decoded: `total`", self.project.why("state"))

    def test_retry_is_tried_again(self):
        self.assertIn("retried on request ☃", self.project.why("retry"))
        self.assertRaises(Retry, Runner(conformance.handle).event, "retry")

    def test_limits_stop_only_their_key(self):
        self.assertIn("plugins.timeout", self.project.why("spin"))
        self.assertIn("plugins.memory", self.project.why("grow"))
        self.assertEqual(self.by_type["completed"]["subject"], "klíč")
        self.assertEqual(self.by_type["ended"]["data"], {"end": False})


@needs_ordain
class Environment(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.project = Project()
        cls.addClassCleanup(cls.project.close)
        package = cls.project.path / "package"
        package.mkdir()
        (package / "harm.py").write_text(HARM, encoding="utf-8")
        (package / "rules.py").write_text(RULES, encoding="utf-8")
        cls.warnings = build(package / "harm.py", cls.project.path / "plugins" / "case.wasm")
        names = "late decimal date encoding deep exit none surrogate surrogate-key exception large".split()
        cls.log = cls.project.run([event(1, name, {"numbers": [1]}, key=name) for name in names])
        cls.data = {message["subject"]: message.get("data") for message in cls.project.messages()}

    def test_import_inside_a_function(self):
        self.assertEqual(self.data["decimal"], "0.3")
        self.assertRegex(self.warnings, r"harm\.py:\d+: the import of `optional\.extra` inside a function will fail")
        self.assertNotIn("decimal", self.warnings)
        self.assertIn("ModuleNotFoundError: No module named 'optional'", self.project.why("late"))

    def test_modules_that_the_library_imports_late_are_present(self):
        self.assertEqual(self.data["date"], ["2026-01-02T00:00:00", "2026-01-02T03:04:05.678000+00:00"])
        self.assertEqual(self.data["encoding"], "fffe7e01e9")

    def test_faults_are_described(self):
        for key, parts in {
            "deep": ["RecursionError", "times in a row", 'File "rules.py", line 2, in deep', "return deep(n + 1)"],
            "exit": ["SystemExit: bye", 'sys.exit("bye")'],
            "none": ["TypeError: `handle` returned a value of type NoneType"],
            "surrogate-key": ["ValueError: the key of a message contains half of a surrogate pair"],
        }.items():
            with self.subTest(key=key):
                for part in parts:
                    self.assertIn(part, self.project.why(key))

    def test_half_surrogate_is_no_fault_in_data_and_in_the_log(self):
        self.assertEqual(self.data["surrogate"], "\ud800")
        self.assertEqual(sum("\\ud800" in line for line in self.log.splitlines() if 'key="surrogate"' in line), 2)

    def test_logged_exception_has_its_traceback(self):
        self.assertRegex(self.log, r"ZeroDivisionError: division by zero(.|\n)*1 / 0")

    def test_output_of_the_build_is_not_in_the_log(self):
        self.assertNotIn("a line of the build", self.log)

    def test_large_message_is_complete(self):
        self.assertEqual(self.data["large"], "x" * 200_000)


@needs_ordain
class Package(unittest.TestCase):
    def test_folder_is_a_handler(self):
        project = Project()
        self.addCleanup(project.close)
        folder = project.path / "bank"
        folder.mkdir()
        (folder / "__init__.py").write_text("from .rules import handle\n", encoding="utf-8")
        (folder / "rules.py").write_text(
            "from ordain import put\n\ndef handle(event, state, data):\n"
            "    return put((state or 0) + data).emit('out', 'sum', 1 / data)\n",
            encoding="utf-8",
        )
        build(folder, project.path / "plugins" / "case.wasm")
        project.run([event(1, "add", 2), event(2, "add", 0)])
        self.assertEqual([message["data"] for message in project.messages()], [0.5])
        self.assertIn('File "bank/rules.py", line 4, in handle', project.why("klíč"))


if __name__ == "__main__":
    unittest.main()
