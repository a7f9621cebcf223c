"""Fails when a file, a function or a folder has grown too large: time to split it.

python -m tools.ci.check_sizes
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("edgerun", "export", "hw", "tests", "tools")
SOURCES = {".py", ".sv", ".svh", ".v", ".cpp", ".h"}
FILE_LINES, FUNCTION_LINES, FOLDER_FILES = 400, 60, 16


def too_large(root: Path) -> Iterator[str]:
    """A sentence for everything below a folder that is too large."""
    folders: Counter[Path] = Counter()
    files = (file for top in ROOTS for file in sorted((root / top).rglob("*")))
    for file in files:
        if file.suffix in SOURCES:
            path = file.relative_to(root)
            folders[path.parent] += 1
            yield from _in_file(path, file.read_text("utf-8"))
    for folder, count in folders.items():
        if count > FOLDER_FILES:
            yield f"{folder}: {count} files, limit {FOLDER_FILES}"


def _in_file(path: Path, source: str) -> Iterator[str]:
    lines = len(source.splitlines())
    if lines > FILE_LINES:
        yield f"{path}: {lines} lines, limit {FILE_LINES}"
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield f"{path}: {node.name} has {lines} lines, limit {FUNCTION_LINES}"


if __name__ == "__main__":
    sys.exit("\n".join(too_large(Path())) or None)
