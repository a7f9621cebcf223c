"""Lets tests leave copies of the GGUF files they write.

python -m pytest -p tools.golden.llama_cpp.copies --gguf-to FOLDER tests/export -k gguf
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--gguf-to", type=Path, required=True, help="folder for the files")


def pytest_runtest_teardown(item: Any) -> None:
    """Copies what a test has written, under the test's name."""
    folder, written = item.config.getoption("--gguf-to"), item.funcargs.get("tmp_path")
    folder.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(sorted(written.rglob("*.gguf")) if written else ()):
        name = re.sub(r"[^\w.-]+", "_", f"{item.path.stem}-{item.name}")
        shutil.copy(path, folder / f"{name}-{number}.gguf")
