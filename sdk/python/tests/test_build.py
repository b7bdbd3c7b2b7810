"""Tests of the build command. The tests that build a component need componentize-py."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from ordain.build import COMPONENTIZE_PY_VERSION, main
from ordain.scan import scan

SDK = Path(__file__).resolve().parent.parent
HANDLER = "from ordain import keep\n\ndef handle(event, state):\n    return keep()\n"


def has_tool() -> bool:
    found = subprocess.run(
        [sys.executable, "-c", "import componentize_py"], capture_output=True, cwd=os.path.dirname(sys.executable)
    )
    return found.returncode == 0


needs_tool = unittest.skipUnless(has_tool(), "componentize-py is not installed")


class Folder(unittest.TestCase):
    """A test with a folder of files."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def build(self, source: str, *arguments: str) -> tuple[int, str]:
        """Runs the command. Returns its exit code and its output to standard error."""
        errors = io.StringIO()
        output = str(self.folder / "out" / "handler.wasm")
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code = main([str(self.folder / source), "-o", output, *arguments])
        return code, errors.getvalue()

    def assert_fails(self, source: str, *parts: str, arguments: tuple[str, ...] = ()) -> None:
        code, errors = self.build(source, *arguments)
        self.assertEqual(code, 1, errors)
        for part in parts:
            self.assertIn(part, errors)
        self.assertNotIn("Stack backtrace", errors)
        self.assertEqual([path.name for path in self.folder.glob("out/*")], [])


class Refusals(Folder):
    def test_wrong_source_is_refused(self):
        self.write({"my-handler.py": HANDLER, "plugin.py": HANDLER, "json.py": HANDLER, "notes.txt": "", "empty/a": ""})
        self.write({"account.py": "import types\n" + HANDLER, "types.py": ""})
        for source, text in [
            ("missing.py", "missing.py does not exist"),
            ("notes.txt", "its name must end with `.py`"),
            ("empty", "a folder without a file `__init__.py`"),
            ("my-handler.py", "rename it to `my_handler`"),
            ("plugin.py", "plugin.py: the component itself has a module `plugin`"),
            ("json.py", "json.py: the name hides the module `json` of Python's standard library"),
            ("account.py", "types.py: the name hides the module `types`"),
        ]:
            with self.subTest(source=source):
                self.assert_fails(source, text)

    def test_missing_tool_is_reported_with_the_command_that_installs_it(self):
        self.write({"account.py": HANDLER})
        self.write({"bin/componentize-py": "#!/bin/sh\necho componentize-py 0.1.0\n"})
        (self.folder / "bin/componentize-py").chmod(0o755)
        install = f"{sys.executable} -m pip install componentize-py=={COMPONENTIZE_PY_VERSION}"
        import ordain.build

        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        scripts = ordain.build.sysconfig.get_path
        self.addCleanup(setattr, ordain.build.sysconfig, "get_path", scripts)
        ordain.build.sysconfig.get_path = lambda name: str(self.folder / "none")
        os.environ["PATH"] = str(self.folder / "none")
        self.assert_fails("account.py", "componentize-py is missing", install)
        os.environ["PATH"] = str(self.folder / "bin") + ":/usr/bin:/bin"
        self.assert_fails("account.py", "has the version 0.1.0", install)


class Scans(Folder):
    def test_files_and_late_imports_are_found(self):
        self.write(
            {
                "bank/__init__.py": "import os.path\nfrom .rules import limit\nfrom bank.parts import one\n",
                "bank/rules.py": "def limit():\n    import decimal\n    from . import late\n    __import__(name)\n",
                "bank/late.py": "f = lambda: importlib.import_module(name)\n",
                "bank/parts/__init__.py": "",
                "bank/parts/one.py": "class A:\n    import json\n    async def a(self):\n        import a.b, c\n",
                "bank/unused.py": "def f():\n    import q\n",
            }
        )
        found = scan(self.folder, "bank")
        self.assertEqual(set(found.files), {"bank", "bank.rules", "bank.late", "bank.parts", "bank.parts.one"})
        late = {(item.file.name, item.line, item.module) for item in found.late_imports}
        expected = {
            ("rules.py", 2, "decimal"),
            ("rules.py", 3, "bank"),
            ("rules.py", 3, "bank.late"),
            ("rules.py", 4, None),
            ("late.py", 1, None),
            ("one.py", 4, "a.b"),
            ("one.py", 4, "c"),
        }
        self.assertEqual(late, expected)

    def test_file_with_newer_syntax_is_left_to_the_component(self):
        self.write({"account.py": "this is no Python"})
        self.assertEqual(list(scan(self.folder, "account").files), ["account"])


@needs_tool
class ImportErrors(Folder):
    def test_import_error_shows_the_lines_of_the_user(self):
        self.write({"account.py": "import rules\n", "rules.py": "\nimport nosuch\n"})
        rules = self.folder / "rules.py"
        self.assert_fails(
            "account.py",
            "the handler cannot be imported:\nModuleNotFoundError: No module named 'nosuch'",
            f'File "{rules}", line 2, in <module>\n    import nosuch',
        )

    def test_syntax_error_shows_the_line(self):
        self.write({"account.py": "def handle(event, state)\n    pass\n"})
        self.assert_fails("account.py", "SyntaxError: expected ':'", "account.py", "line 1")

    def test_wrong_annotation_is_reported(self):
        self.write({"account.py": HANDLER.replace("state)", "state, data: set[int])")})
        self.assert_fails("account.py", "the annotation of `data` in `handle`: set[int]: the type set[int] cannot")

    def test_missing_function_is_reported(self):
        self.write({"account.py": HANDLER})
        self.assert_fails("account.py", "account.py has no function `run`", arguments=("--function", "run"))


if __name__ == "__main__":
    unittest.main()
