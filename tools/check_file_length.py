"""Fails when a source file has more than 400 lines: time to split it."""

import sys
from pathlib import Path

LIMIT, SUFFIXES = 400, {".py", ".sv", ".svh", ".v", ".cpp", ".h"}
folders = [Path(folder) for folder in ("edgerun", "export", "hw", "tests", "tools")]
files = (file for folder in folders for file in folder.rglob("*") if file.suffix in SUFFIXES)
lengths = {file: len(file.read_text("utf-8").splitlines()) for file in sorted(files)}
long = [f"{file}: {count} lines, limit {LIMIT}" for file, count in lengths.items() if count > LIMIT]
sys.exit("\n".join(long) or None)
