"""Tests of the examples, and of the list of files in a new project."""

import subprocess
import sys
import unittest
from pathlib import Path

SDK = Path(__file__).resolve().parent.parent


class Files(unittest.TestCase):
    def test_template_lists_every_file_of_the_package(self):
        listed = (SDK / "template" / "README-for-new.txt").read_text(encoding="utf-8").split()
        for file in (SDK / "ordain").rglob("*"):
            if file.is_file() and "__pycache__" not in str(file):
                self.assertIn(str(file.relative_to(SDK)), listed)

    def test_tests_of_the_examples_pass(self):
        for folder in sorted((SDK / "examples").iterdir()):
            with self.subTest(folder=folder.name):
                command = [sys.executable, "-m", "unittest"]
                environment = {"PYTHONPATH": str(SDK), "PYTHONDONTWRITEBYTECODE": "1"}
                done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
                self.assertRegex(done.stderr, r"Ran [1-9]\d* tests?(.|\n)*OK")


if __name__ == "__main__":
    unittest.main()
