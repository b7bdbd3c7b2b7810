"""Reads the source of a handler without executing it: finds the files that the handler imports, and the imports inside
functions. A component cannot import a module that was not imported during the build.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_DYNAMIC_IMPORTS = ("__import__", "import_module")


@dataclass(frozen=True)
class LateImport:
    """An import that a function executes."""

    file: Path
    """The file with the import."""
    line: int
    """The line of the import in `file`."""
    module: str | None
    """The name of the module; `None` if only the running program knows the name."""


@dataclass
class Scan:
    """The files of a handler, and the imports inside their functions."""

    files: dict[str, Path] = field(default_factory=dict)
    """The handler's own files, by the name of their module."""
    late_imports: list[LateImport] = field(default_factory=list)
    """The imports inside functions."""


def scan(root: Path, module: str) -> Scan:
    """Scans `module` and all modules in the folder `root` that it imports, directly or indirectly."""
    found = Scan()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = _module_file(root, name)
        if file is None or name in found.files:
            continue
        found.files[name] = file
        try:
            tree = ast.parse(file.read_bytes(), str(file))
        except (SyntaxError, ValueError):
            # The Python of the component may be newer. It reports the error if the file is wrong.
            continue
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for line, imported, is_late in _imports(tree, package, root):
            if is_late:
                found.late_imports.append(LateImport(file, line, imported))
            if imported is not None:
                parts = imported.split(".")
                waiting.extend(".".join(parts[: end + 1]) for end in range(len(parts)))
    return found


def _module_file(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def _imports(tree: ast.AST, package: str, root: Path) -> Iterator[tuple[int, str | None, bool]]:
    """Returns the line and the module of each import, and whether a function executes the import."""
    waiting = [(tree, False)]
    while waiting:
        node, is_late = waiting.pop()
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        waiting.extend((child, is_late or is_function) for child in ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, is_late
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            yield node.lineno, base, is_late
            for alias in node.names:
                # `from package import name` imports the module `package.name`, if such a module exists.
                if _module_file(root, f"{base}.{alias.name}"):
                    yield node.lineno, f"{base}.{alias.name}", is_late
        elif is_late and isinstance(node, ast.Call) and _name(node.func) in _DYNAMIC_IMPORTS:
            yield node.lineno, None, is_late


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
