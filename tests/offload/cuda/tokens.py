"""Tokens of a model whose experts a simulated GPU computes, all, some or none of them.

Runs in a process of its own, prints a line of JSON: NUMBA_ENABLE_CUDASIM=1 python -m
tests.offload.cuda.tokens COUNT
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint

import numpy as np

import edgerun
from edgerun.backends import registry
from edgerun.offload.cuda import CudaBackend
from edgerun.offload.sharing import executable
from edgerun.offload.sharing.in_program import control
from tests.offload.cuda.placed import FORM, PROMPT, Placed, on_gpu
from tests.offload.cuda.simulator import hurry
from tests.support.bundles import bundle_of
from tests.support.sharing import logits_of


def loaded() -> list[object]:
    """Replies of the processor and of a GPU that was asked for as a user asks, and its report."""
    announced = [EntryPoint("cuda", "edgerun.offload.cuda:make", "edgerun.backends")]
    registry._added_backends = lambda: announced
    folder, replies, titles = bundle_of(FORM[0], weights=FORM[1]), [], []
    on_device = {"device": "cuda:0", "gpu_memory": "1M"}, {"device": "cuda"}
    for asked in ({}, *({**named, "share": "always"} for named in on_device)):
        with edgerun.load(folder, threads=1, **asked) as llm:  # type: ignore[arg-type]
            replies.append(llm.generate("O", max_tokens=3, seed=0).text)
            titles += [report.title for report in llm.reports()]
    return [*replies, titles]


def main(tokens: int) -> None:
    """Of so many tokens."""
    hurry()
    executable.CHECK_EVERY = control.CHECK_EVERY = 8
    told: dict[str, object] = {}
    expected = logits_of(*FORM, None, prompt=PROMPT, tokens=tokens)
    places = {
        "all": on_gpu(),
        "half": Placed(1.0, 0.9, 6),
        "cut": Placed(1.0, 1.0, 16, joins=False),
        "none": Placed(1e-6, 1.0, 16),
    }
    for name, placed in places.items():
        seen = []

        def look(backend: CudaBackend, token: int, seen: list = seen) -> None:  # type: ignore[type-arg]
            if token == tokens - 1:
                report, session = backend.report(), backend._session
                assert report is not None and session is not None
                seen += [report.title, dict(report.rows[-1]), session.failure, session.resets]

        logits = logits_of(*FORM, placed, look, prompt=PROMPT, tokens=tokens)
        same = [bool(np.array_equal(a, b)) for a, b in zip(logits, expected, strict=True)]
        told[name] = [*seen, same]
    told["loaded"] = loaded()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
