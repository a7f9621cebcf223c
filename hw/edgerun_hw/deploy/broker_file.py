"""Packs the helper, with the table of boards, into one file to install on a board."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

from edgerun.files.plain import read_plain
from edgerun_hw.build.boards import board_records
from edgerun_hw.deploy.broker.board.boards import TABLE

FOLDER = Path(__file__).with_name("broker")
PACKAGE = "edgerun_fpga_broker"
INSTALLED = "/usr/local/sbin/edgerun-fpga-broker"
START = f"import sys\nfrom {PACKAGE}.main import main\nsys.exit(main(sys.argv[1:]))\n"
# -I: neither the caller's environment nor the current folder can add modules.
FIRST_LINE = b"#!/usr/bin/python3 -I\n"
EPOCH = (1980, 1, 1, 0, 0, 0)
_MAX_BYTES = 1 << 22


def broker_file() -> bytes:
    """An executable Python archive; the same sources give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", EPOCH), START)
        for source in sorted(FOLDER.rglob("*.py")):
            name = zipfile.ZipInfo(f"{PACKAGE}/{source.relative_to(FOLDER).as_posix()}", EPOCH)
            archive.writestr(name, source.read_bytes(), zipfile.ZIP_DEFLATED)
        table = zipfile.ZipInfo(f"{PACKAGE}/board/{TABLE}", EPOCH)
        archive.writestr(table, json.dumps(board_records()).encode(), zipfile.ZIP_DEFLATED)
    return FIRST_LINE + buffer.getvalue()


def is_broker_file(path: Path) -> bool:
    """Whether a file is such an archive, of whichever edition."""
    if not path.is_file():  # a device may do something when it is opened
        return False
    try:
        content = read_plain(path, _MAX_BYTES)
    except OSError:
        return False
    return content.startswith(FIRST_LINE) and f"{PACKAGE}/main.py".encode() in content


def digest(content: bytes) -> str:
    """For people to compare."""
    return hashlib.sha256(content).hexdigest()
