"""Tests of the guide page, of the examples and of the template: their commands and files must work as they are."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tests.component import ORDAIN, SDK, needs_ordain

PAGE = SDK.parent.parent / "docs" / "guide" / "python.md"
WIT = SDK.parent.parent / "wit" / "handler.wit"


def run(folder: Path, command: str) -> str:
    """Runs shell commands in a folder with `ordain` in the path. Returns their output."""
    environment = dict(os.environ)
    environment["PATH"] = f"{os.path.dirname(os.path.abspath(ORDAIN))}:{environment['PATH']}"
    environment.setdefault("PYTHONPATH", str(SDK))
    done = subprocess.run(["sh", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def blocks() -> tuple[dict[str, str], list[str]]:
    """Returns the files by name, and the commands, of the page's first section."""
    section = PAGE.read_text(encoding="utf-8").split("\n## ")[1]
    parts = section.split("```")
    files, commands = {}, []
    for before, block in zip(parts[::2], parts[1::2], strict=False):
        language, text = block.split("\n", 1)
        if language == "sh":
            commands.append(text)
        else:
            files[before.rstrip().rpartition("\n\n")[2].split("`")[1]] = text
    return files, commands


def template(folder: Path) -> None:
    """Creates the project that `ordain new` creates, with the name `my-bank`."""
    lines = (SDK / "template" / "README-for-new.txt").read_text(encoding="utf-8").splitlines()
    for line in filter(lambda line: (SDK / line).is_file(), lines):
        copy = folder / "vendor" / "ordain-sdk" / line
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SDK / line, copy)
    for file in (SDK / "template").rglob("*"):
        name = str(file.relative_to(SDK / "template")).replace("gitignore", ".gitignore")
        if file.is_file() and file.name != "README-for-new.txt" and "__pycache__" not in name:
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text(encoding="utf-8")
            copy.write_text(text.replace("{{name}}", "my-bank").replace("{{ident}}", "my_bank"), encoding="utf-8")


class Files(unittest.TestCase):
    def test_wit_is_that_of_the_repository(self):
        if not WIT.is_file():
            self.skipTest("this is not a clone of the repository")
        self.assertEqual((SDK / "ordain" / "wit" / "handler.wit").read_bytes(), WIT.read_bytes())

    def test_template_lists_every_file_of_the_package(self):
        listed = (SDK / "template" / "README-for-new.txt").read_text(encoding="utf-8").split()
        for file in (SDK / "ordain").rglob("*"):
            if file.is_file() and "__pycache__" not in str(file):
                self.assertIn(str(file.relative_to(SDK)), listed)

    def test_tests_of_the_examples_pass(self):
        for folder in ("orders", "conformance"):
            with self.subTest(folder=folder):
                self.assertIn("OK", run(SDK / "examples" / folder, f"{sys.executable} -m unittest"))

    def test_tests_of_the_template_pass(self):
        with tempfile.TemporaryDirectory() as folder:
            template(Path(folder))
            self.assertIn("OK", run(Path(folder), f"{sys.executable} -m unittest discover src"))


@needs_ordain
class Projects(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # The project installs the SDK itself.
        os.environ["PYTHONPATH"] = ""
        self.addCleanup(os.environ.pop, "PYTHONPATH")

    def events(self, printed: str, key: str) -> list[object]:
        messages = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        return [message["data"] for message in messages if message["subject"] == key]

    def test_guide_page_works(self):
        files, [build, execute] = blocks()
        self.assertEqual(list(files), ["account.py", "test_account.py", "ordain.toml", "events.ndjson"])
        for name, text in files.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        build = build.replace("python3 -m venv", f"{sys.executable} -m venv").replace("../ordain/sdk/python", str(SDK))
        self.assertIn("Ran 1 test", run(self.folder, build))
        printed = run(self.folder, execute)
        self.assertEqual(self.events(printed, "anna"), [{"balance_cents": 500}, {"balance_cents": 200}], printed)
        self.assertIn("the balance would be -1 cents", printed)

    def test_template_works(self):
        template(self.folder)
        readme = (self.folder / "README.md").read_text(encoding="utf-8")
        install, test = [line for line in readme.splitlines() if ".venv/bin" in line][:2]
        run(self.folder, install.replace("python3", sys.executable, 1))
        self.assertIn("OK", run(self.folder, test))
        build = next(line for line in readme.splitlines() if "ordain.build" in line)
        self.assertIn(build, (self.folder / "ordain.toml").read_text(encoding="utf-8"))
        printed = run(self.folder, f"{build}\nordain check\nordain run --once\nordain dead list accounts")
        self.assertEqual(self.events(printed, "anna"), [{"balance_cents": 10000}, {"balance_cents": 7000}], printed)
        self.assertEqual(self.events(printed, "ben"), [{"balance_cents": 500}, {"balance_cents": 900}], printed)
        self.assertIn("the balance is 500 cents: cannot withdraw 800 cents", printed)


if __name__ == "__main__":
    unittest.main()
