"""The measuring tool in the simulator, at toy sizes; prints its text as a line of JSON.

NUMBA_ENABLE_CUDASIM=1 python -m tests.offload.cuda.bench
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from importlib.metadata import EntryPoint
from pathlib import Path

from edgerun.backends import registry
from tests.offload.cuda.placed import FORM
from tests.offload.cuda.simulator import hurry
from tests.support.bundles import bundle_of
from tools.bench.cuda.__main__ import main
from tools.bench.offload.profile import Profile

SIZES = "--experts 4 --top-k 2 --hidden 32 --width 32 --rows 1 2 --calls 2 --repeats 1"


def told() -> dict[str, object]:
    registry._added_backends = lambda: [
        EntryPoint("cuda", "edgerun.offload.cuda:make", "edgerun.backends")
    ]
    model = bundle_of(FORM[0], weights=FORM[1])
    output = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(output):
        file = Path(folder) / "profile.json"
        asked = (
            f"{SIZES} --copy-bytes 9000 --share 0.5 --tokens 2 --profile {file} --models {model}"
        )
        code = main(asked.split())
        profile = Profile.read(file)
    bases = {figure.basis for figure in profile.figures().values()}
    lines = output.getvalue().splitlines()
    return {"code": code, "lines": lines, "title": profile.title, "bases": sorted(bases)}


if __name__ == "__main__":
    hurry()
    sys.stdout.write(json.dumps(told()) + "\n")
