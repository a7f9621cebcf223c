"""Tries faults one after the other and prints a line of JSON for each.

    python -m tests.support.expert_faults FOLDER FIRST STEP

FOLDER is an exported model; every STEP-th fault is tried, from the FIRST on.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from pathlib import Path

from tests.support.expert_faults.catalogue import FAULTS
from tests.support.expert_faults.session import Session


def main(folder: str, first: str, step: str) -> None:
    """Tries them, whatever becomes of the others."""
    warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
    session = Session(Path(folder))
    for number in range(int(first), len(FAULTS), int(step)):
        fault, wrong = FAULTS[number], ""
        try:
            fault.attempt(session)
        except BaseException:
            wrong = traceback.format_exc()
        line = json.dumps({"number": number, "name": fault.name, "wrong": wrong})
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
