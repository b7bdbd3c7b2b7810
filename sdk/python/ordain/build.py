"""Builds a component from a handler: `python -m ordain.build account.py -o plugins/account.wasm`.

The source is a file, or a folder with a file `__init__.py`. The build imports the source, and all modules that the
source imports: from the source's folder, from the packages of the running Python's environment (pure Python only), and
from the standard library of Python 3.14. The component contains these modules, and executes none of their top-level
code again. The clock, the files and the environment of the build are therefore not those of a later event.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ordain.scan import LateImport, Scan, scan

COMPONENTIZE_PY = "componentize-py"
COMPONENTIZE_PY_VERSION = "0.25.1"

_WORLD = "plugin"
_ENTRY = "ordain_entry"
_RESERVED = ("plugin", "ordain", "ordain_entry", "wit_world", "componentize_py_types", "componentize_py_runtime")
"""Names of modules that the component itself uses. `plugin` is the name of the world in the WIT."""


class BuildError(Exception):
    """A reason why a handler cannot be built, in words for the user."""


@dataclass(frozen=True)
class _Source:
    """The handler's module, and the folder from which it is imported."""

    root: Path
    module: str


def build(source: Path, output: Path, function: str = "handle") -> list[str]:
    """Builds the component `output` from the handler `function` in `source`. Returns warnings.

    Raises `BuildError` if the handler cannot be built.
    """
    handler = _find_source(source)
    found = scan(handler.root, handler.module)
    _check_names(found)
    tool = _find_tool()
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ordain-build-") as folder:
        entry = Path(folder)
        late = sorted({late.module for late in found.late_imports if late.module})
        _write_entry(entry, handler.module, function, late)
        # Ordain ignores files whose names begin with a dot, and never sees an incomplete component.
        unfinished = output.with_name(f".{output.name}.{os.getpid()}")
        try:
            report = _run_tool(tool, entry, handler, unfinished)
            os.replace(unfinished, output)
        finally:
            unfinished.unlink(missing_ok=True)
    return [_warning(late, report["missing"]) for late in found.late_imports if _is_broken(late, report["missing"])]


def _find_source(source: Path) -> _Source:
    path = Path(os.path.abspath(source))
    if path.is_dir():
        if not (path / "__init__.py").is_file():
            raise BuildError(
                f"{source} is a folder without a file `__init__.py`; name the file with the handler instead"
            )
    elif not path.is_file():
        raise BuildError(f"{source} does not exist")
    elif path.suffix != ".py":
        raise BuildError(f"{source} is not a Python file: its name must end with `.py`")
    module = path.name if path.is_dir() else path.stem
    if not module.isidentifier():
        better = re.sub(r"\W", "_", module)
        raise BuildError(f"{source}: Python cannot import a module with the name `{module}`; rename it to `{better}`")
    return _Source(path.parent, module)


def _check_names(found: Scan) -> None:
    """Refuses the handler's own modules whose names hide other modules."""
    for name, file in found.files.items():
        if "." in name:
            continue
        if name in _RESERVED:
            raise BuildError(f"{file.name}: the component itself has a module `{name}`; give your module another name")
        if name in sys.stdlib_module_names:
            raise BuildError(
                f"{file.name}: the name hides the module `{name}` of Python's standard library; give your module "
                "another name"
            )


def _find_tool() -> str:
    scripts = sysconfig.get_path("scripts")
    tool = shutil.which(COMPONENTIZE_PY, path=os.pathsep.join((scripts, os.environ.get("PATH", ""))))
    install = f"{sys.executable} -m pip install {COMPONENTIZE_PY}=={COMPONENTIZE_PY_VERSION}"
    if tool is None:
        raise BuildError(f"{COMPONENTIZE_PY} is missing; install it with:\n  {install}")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout.split()[-1:]
    if version != [COMPONENTIZE_PY_VERSION]:
        raise BuildError(
            f"{tool} has the version {''.join(version) or 'unknown'}, and this SDK needs {COMPONENTIZE_PY_VERSION}; "
            f"install it with:\n  {install}"
        )
    return tool


def _write_entry(folder: Path, module: str, function: str, late_imports: list[str]) -> None:
    lines = [
        "import os",
        "import sys",
        "sys.dont_write_bytecode = True",
        "from ordain.guest import load",
        "report = os.path.join(os.path.dirname(__file__), 'report.json')",
        f"Handler = load({module!r}, {function!r}, {late_imports!r}, report)",
    ]
    (folder / f"{_ENTRY}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _run_tool(tool: str, entry: Path, handler: _Source, output: Path) -> dict[str, dict[str, str]]:
    """Runs componentize-py. Returns the report that the entry module has written during the build."""
    package = Path(__file__).resolve().parent
    folders = list(dict.fromkeys((entry, handler.root, package.parent, Path(sysconfig.get_path("purelib")))))
    command = [tool, "-q", "-d", str(package / "wit"), "-w", _WORLD, "componentize", _ENTRY, "-o", str(output)]
    for folder in folders:
        command += ["-p", str(folder)]
    # Without this variable, componentize-py adds the packages of another Python that is in the path.
    environment = os.environ | {"VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    report_file = entry / "report.json"
    report = json.loads(report_file.read_text(encoding="utf-8")) if report_file.is_file() else {}
    if "error" in report:
        raise BuildError(_with_real_paths(report["error"], folders))
    if done.returncode != 0 or not output.is_file():
        text = (done.stderr + done.stdout).split("\nStack backtrace:")[0].strip()
        raise BuildError(f"{COMPONENTIZE_PY} failed:\n{_with_real_paths(text, folders)}")
    return report


def _with_real_paths(text: str, folders: Sequence[Path]) -> str:
    """Replaces the folders inside the component by the folders of this machine."""

    def replace(match: re.Match[str]) -> str:
        number = int(match[1])
        return f'File "{_shown(folders[number] / match[2])}"' if number < len(folders) else match[0]

    return re.sub(r'File "/(\d+)/([^"]*)"', replace, text)


def _shown(path: Path) -> str:
    """Returns the path as an error shows it: relative, if the file lies below the current folder."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _is_broken(late: LateImport, missing: dict[str, str]) -> bool:
    return late.module is None or late.module in missing


def _warning(late: LateImport, missing: dict[str, str]) -> str:
    place = f"{_shown(late.file)}:{late.line}"
    if late.module is None:
        return (
            f"{place}: an import by a computed name inside a function fails, unless the module is also imported at the "
            "top of a file: a component imports no modules later"
        )
    return (
        f"{place}: the import of `{late.module}` inside a function will fail in the component: {missing[late.module]}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ordain.build", description="Builds a WebAssembly component from a handler for Ordain."
    )
    parser.add_argument("source", type=Path, help="the file with the handler, or a folder with a file __init__.py")
    parser.add_argument("-o", "--output", type=Path, help="the file to write; by default NAME.wasm in this folder")
    parser.add_argument("--function", default="handle", help="name of the handler's function (default: handle)")
    options = parser.parse_args(arguments)
    output = options.output or Path(f"{options.source.stem}.wasm")
    began = time.monotonic()
    try:
        warnings = build(options.source, output, options.function)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    seconds = time.monotonic() - began
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB, built in {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
