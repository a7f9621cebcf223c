"""Files that change while a model runs, models that are spoiled, memory that will not do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import edgerun
from edgerun.llm.experts import PromptCalls, forecast_for
from edgerun.llm.tracing import load_traced
from edgerun.offload.trace_file import write_trace
from tests.support.altered import AlteredBundle
from tests.support.expert_faults import disk
from tests.support.expert_faults.fault import Fault
from tests.support.expert_faults.session import (
    PROMPT,
    Session,
    check_message,
    fails,
    refused,
    reply,
)

PLACES = (1, 17, 60)
CHANGED = "was changed or cut off since it was opened"
Change = Callable[[Path], object]


def _written(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"altered")


def _appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _replaced(path: Path) -> None:
    path.rename(path.with_name("old"))
    path.write_bytes(b"something else")


CHANGES: dict[str, Change] = {
    "cut to nothing": lambda path: os.truncate(path, 0),
    "cut to a page": lambda path: os.truncate(path, 4096),
    "cut by half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut by a byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "appended to": _appended,
    "written into": _written,
    "touched": lambda path: os.utime(path, ns=(1, 1)),
}
SURVIVED: dict[str, Change] = {
    "replaced": _replaced,
    "removed": Path.unlink,
    "closed to everybody": lambda path: path.chmod(0),
}


def faults() -> Iterator[Fault]:
    """All of this file."""
    for place in PLACES:
        for name, change in CHANGES.items():
            yield Fault(f"file {name}, read {place}", partial(_changed, change, place))
        for name, change in SURVIVED.items():
            yield Fault(f"file {name}, read {place}", partial(_survived, change, place))
    for name, amount, message in _amounts():
        yield Fault(f"memory for experts: {name}", partial(_refused_amount, amount, message))
    for name, act in ROUTERS.items():
        yield Fault(f"router: {name}", partial(_router, act))
    for name, spoil in TRACES.items():
        yield Fault(f"trace: {name}", partial(_trace, spoil))


def _data(folder: Path) -> Path:
    (file,) = folder.glob("*.data")
    return file


def _changed(change: Change, place: int, session: Session) -> None:
    """The reply ends with an error, as do later ones; the model as it was is loaded again."""
    with session.copied() as folder, session.loaded(folder) as llm:
        path = _data(folder)
        with session.disk.faulty(disk.once(lambda: change(path)), place):
            fails(llm, f"{CHANGED}|the file of weights ends at byte")
        fails(llm, CHANGED)
        session.check_slots(llm)
    with session.loaded() as llm:
        session.check_whole(llm)


def _survived(change: Change, place: int, session: Session) -> None:
    """What was opened stays what it was."""
    with session.copied() as folder, session.loaded(folder) as llm:
        path = _data(folder)
        with session.disk.faulty(disk.once(lambda: change(path)), place):
            assert reply(llm) == session.expected
        session.check_whole(llm)


def _amounts() -> Iterator[tuple[str, Any, str]]:
    few = "bytes are too few for experts: a token needs"
    yield "a byte less than a token's", lambda session: session.least - 1, few
    yield "an expert less than a token's", lambda session: session.least * 2 // 3, few
    yield "a byte", lambda session: 1, few
    yield "1K", lambda session: "1K", few
    yield "a thousandth", lambda session: "0.1%", few
    for text in ("nothing", 0, -5, "0%", "101%", "4X", "", "NaN", "1e9G", 2.5, True, [1]):
        amount = "expert_memory is .*; expected an amount"
        yield repr(text), (lambda session, text=text: text), amount
    yield "more than there is", lambda session: 1 << 60, "."


def _refused_amount(amount: Callable[[Session], Any], message: str, session: Session) -> None:
    """It is refused in a sentence, and one that will do is taken then."""
    value = amount(session)
    if value == 1 << 60:  # all experts have room
        edgerun.load(session.folder, backend="cpu", expert_memory=value).close()
    else:
        refused(session.folder, message, expert_memory=value)
    with session.loaded() as llm:
        session.check_whole(llm)


def _all(value: float) -> Callable[[Any], Any]:
    return lambda weights: np.full_like(weights, value)


def _some(value: float) -> Callable[[Any], Any]:
    def change(weights: Any) -> Any:
        weights = weights.copy()
        weights[0, -1] = value
        return weights

    return change


# What becomes of a router's weights; finite ones make logits that are none.
ROUTERS: dict[str, Callable[[Any], Any]] = {
    "all weights NaN": _all(np.nan),
    "a weight NaN": _some(np.nan),
    "a weight inf": _some(np.inf),
    "a weight -inf": _some(-np.inf),
    "equal scores": _all(0.0),
    "logits overflow": _all(3e38),
    "logits overflow downwards": _all(-3e38),
    "logits of some are no numbers": lambda weights: np.where(weights > 0, 3e38, -3e38).astype(
        np.float32
    ),
    "one expert gets all": lambda weights: weights * np.eye(*weights.shape, dtype=np.float32) * 1e6,
    "denormal scores": lambda weights: weights * np.float32(1e-42),
}


def _router(act: Callable[[Any], Any], session: Session) -> None:
    """It is refused, or says the same whatever is in memory; and it never hangs."""
    with TemporaryDirectory() as folder:
        bundle = AlteredBundle(session.folder, Path(folder) / "bundle")
        for tensor in list(bundle.model.graph.initializer):
            if tensor.name.endswith(("gate.weight.transposed", "router.weight.transposed")):
                bundle.put(tensor.name, act(bundle.array(tensor.name)))
        bundle.save()
        if not all(np.isfinite(act(np.ones((4, 4), np.float32))).ravel()):
            refused(bundle.folder, "infinite or no numbers", expert_memory=session.least)
            return
        with edgerun.load(bundle.folder, backend="cpu") as llm:
            expected = outcome(llm)
        with session.loaded(bundle.folder) as llm:
            assert outcome(llm) == expected
            session.check_slots(llm)
    with session.loaded() as llm:
        session.check_whole(llm)


def outcome(llm: edgerun.LLM) -> list[int] | str:
    """A reply, or why there is none."""
    try:
        return reply(llm)
    except edgerun.EdgerunError as error:
        check_message(str(error), ".")
        return str(error)


def _altered(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


TRACES: dict[str, Change] = {
    "another model's": lambda path: None,
    "cut off": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "altered": _altered,
    "none": Path.unlink,
}


def _trace(spoil: Change, session: Session) -> None:
    """A trace that is not this model's is refused in a sentence by whoever forecasts by it."""
    with TemporaryDirectory() as folder, session.loaded() as llm:
        path = Path(folder) / "a.trace"
        with load_traced(session.folder) as traced:
            traced.generate(PROMPT, max_tokens=4, temperature=0)
            trace = traced.trace(len(PROMPT))
        write_trace(path, replace(trace, model="0" * 64))
        spoil(path)
        model = llm.model
        try:
            calls = PromptCalls(model.context, model.chunk_rows, model.chunk_rows)
            forecast_for(model.bundle, model.experts, model.everyone, calls, path)
        except edgerun.EdgerunError as error:
            check_message(str(error), "trace")
        else:
            raise AssertionError("read")
        session.check_whole(llm)
