"""Tests of components in the program `ordain`."""

import random
import unittest

from ordain import keep
from ordain.testing import Runner
from tests.component import Project, build, event, needs_ordain

HARM = """
from dataclasses import dataclass
import datetime
import logging
import random
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
        case "random":
            return keep().emit("out", "random", random.random())
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
        names = "late decimal date encoding random deep exit none surrogate surrogate-key exception large".split()
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

    def test_random_numbers_are_those_of_the_runner(self):
        run = Runner(lambda event, state: keep().emit("out", "random", random.random()), stream="cases", key="random")
        self.assertEqual(self.data["random"], run.event("random").messages[0].json())

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
