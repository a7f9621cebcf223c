"""Places that are named: read, refused in one sentence, and obeyed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.backends.base import NO_VALUES, Executable, Phase, Shape, Values
from edgerun.errors import BackendError, InputError, UnsupportedError
from edgerun.model.bundle import open_bundle
from edgerun.ops.base import LOGITS
from edgerun.plan.places import Places, placed_candidates
from edgerun.plan.programs import Deferred, Programs
from edgerun.plan.prompt_rows import PromptRows, Substitutes
from edgerun.plan.requests.correction import Correction
from edgerun.plan.routes import plan_for, prompt_graph
from edgerun.state import Batch, SequenceStore
from tests.support.bundles import bundle_of
from tests.support.fakes import SPEC


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("prefill=openvino:NPU,decode=cpu", Places("openvino:NPU", "cpu")),
        (" decode = fpga:cosim ", Places("cpu", "fpga:cosim")),
        ("prefill=openvino:HETERO:NPU,CPU,decode=cpu", Places("openvino:HETERO:NPU,CPU", "cpu")),
        ('prefill="virtual:a,b=c.json",decode=cpu', Places("virtual:a,b=c.json", "cpu")),
        (
            'decode = "fpga:cosim" , prefill="virtual: a,decode=b "',
            Places("virtual: a,decode=b ", "fpga:cosim"),
        ),
        ('prefill=virtual:5" disk.json', Places('virtual:5" disk.json')),
    ],
)
def test_places_are_read(text: str, places: Places) -> None:
    assert Places.read(text) == places


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cpu",
        "prefill",
        "prefill=",
        "prefil=cpu",
        "decode=cpu,decode=cpu",
        "=cpu",
        "prefill=virtual:a,b=c.json",
        "prefill= ",
        "prefill=cpu,decode=",
        'prefill=""',
        'prefill="cpu',
        'prefill="cpu"x',
        'prefill="cpu"decode=cpu',
        'prefill="cpu", decode="cpu',
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(
        InputError,
        match=r"are not understood; expected a back-end for prefill or.*goes into double quotes",
    ):
        Places.read(text)


@pytest.mark.parametrize(
    ("place", "kind", "message"),
    [
        ("decode=onnxruntime", InputError, "runs whole files only.*--backend onnxruntime"),
        ("decode=gpu", InputError, "no back-end is called 'gpu'"),
        ("decode=cpu,", InputError, "no back-end is called 'cpu,'"),
        ("decode=cpu:0", InputError, "has no devices to choose from, so not '0'"),
        ("prefill=openvino:HETERO:NPU,CPU", InputError, "without a word.*--place prefill="),
        ("prefill=openvino", UnsupportedError, "no device was named: --device CPU, GPU"),
    ],
)
def test_places_that_are_none(place: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        placed_candidates(Places.read(place))


def test_options_contradict_each_other() -> None:
    for other in ({"backend": "cpu"}, {"device": "CPU"}):
        with pytest.raises(InputError, match="leave one out"):
            edgerun.load(place="decode=cpu", **other)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="place is 7; expected a name"):
        edgerun.load(place=7)  # type: ignore[arg-type]


def test_parts_share_what_stands_in_for_them() -> None:
    pytest.importorskip("openvino")
    candidates = placed_candidates(Places.read("prefill=openvino:CPU,decode=cpu"))
    assert [backend.name for backend in candidates.every()] == ["cpu", "openvino:CPU"]
    assert candidates.prompts is not None
    assert candidates.prompts.backends[1] is candidates.backends[0]


def test_a_prompt_leaves_keys_and_values_and_nothing_else() -> None:
    graph = open_bundle(bundle_of("llama", weights="fp32")).graph
    part = prompt_graph(graph)
    layers = sum(node.op == "attention" for node in graph.nodes)
    assert sum(node.op == "attention" for node in part.nodes) == layers
    assert part.nodes[-1].op == "attention" and part.outputs == []
    assert not {"select_rows"}.intersection(node.op for node in part.nodes)
    # The last layer's output projection and feed-forward, and the head: 1 + 3 + 1.
    linear = [sum(node.op == "linear" for node in each.nodes) for each in (graph, part)]
    assert linear[0] - linear[1] == 5


def test_a_plan_says_where_prompts_go() -> None:
    pytest.importorskip("openvino")
    graph = open_bundle(bundle_of("llama", weights="fp32")).graph
    plan = plan_for(graph, placed_candidates(Places.read("prefill=openvino:CPU")))
    rows = [(row.phase, row.backend) for row in plan.explain() if row.chosen]
    assert rows == [
        ("prompts", "openvino:CPU"),
        *((phase, "cpu") for phase in ("prefill", "few", "decode")),
    ]
    assert plan.backends() == {"cpu", "openvino:CPU"}
    (left,) = [row for row in plan.explain() if row.phase == "prompts" and not row.chosen]
    assert left.reason.startswith("another was asked for; by estimate this is faster: ")
    alone = plan_for(graph, placed_candidates(Places.read("prefill=cpu,decode=cpu")))
    assert alone.prompts is None


class Noting(Executable):
    """Notes the ids of every batch; the logit of a row is its id."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        self.calls.append(batch.ids.tolist())
        return {LOGITS: batch.ids[batch.logit_rows][:, None].astype(np.float32)}

    def close(self) -> None:
        self.calls.clear()


def split(parts: list[tuple[int, int, str]], from_rows: int = 4) -> tuple[Any, Any, list[float]]:
    """Rows that went the way of prompts, all others, and the logits, of parts of slots."""
    batches, first = [], 0
    for slot, rows, logits in parts:
        ids = list(range(first, first + rows))
        batches.append(Batch.of(ids, 0, slot, logits=logits))
        first += rows
    prompts, rest = Noting(), Noting()
    nothing = {LOGITS: np.zeros((0, 1), np.float32)}
    programs = Programs({Shape(Phase.PREFILL, 64): rest}, PromptRows(prompts, from_rows, nothing))
    output = programs.run(Batch.join(batches), SequenceStore(SPEC, 64, 4))[LOGITS]
    return prompts.calls, rest.calls, output[:, 0].tolist()


def test_rows_without_logits_go_elsewhere() -> None:
    assert split([(0, 6, "none")]) == ([[0, 1, 2, 3, 4, 5]], [], [])
    assert split([(0, 6, "last")]) == ([[0, 1, 2, 3, 4]], [[5]], [5])
    assert split([(0, 4, "last")]) == ([], [[0, 1, 2, 3]], [3])  # three rows are too few
    assert split([(0, 6, "all")]) == ([], [[0, 1, 2, 3, 4, 5]], [0, 1, 2, 3, 4, 5])
    assert split([(0, 3, "none")]) == ([], [[0, 1, 2]], [])


def test_rows_of_several_sequences_are_told_apart() -> None:
    calls = split([(0, 1, "last"), (1, 5, "none"), (2, 6, "last"), (3, 1, "last")])
    assert calls == ([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], [[0, 11, 12]], [0, 11, 12])


class Watching(Correction):
    """Notes what it is told, and says that prompts go elsewhere from 17 rows on."""

    def __init__(self) -> None:
        self.from_rows, self.seen = 17, []  # type: list[tuple[str, int]]

    def goes_there(self, rows: int) -> bool:
        return rows >= self.from_rows

    def went_there(self, rows: int, seconds: float) -> None:
        assert seconds >= 0
        self.seen.append(("there", rows))

    def stayed_here(self, rows: int, seconds: float) -> None:
        assert seconds >= 0
        self.seen.append(("here", rows))


class Replaced(Executable):
    """A device whose first calls something else computes."""

    def __init__(self, substitute: Executable, calls: int) -> None:
        self.substitute, self.left = substitute, calls

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        self.left -= 1
        return self.substitute(batch, cache, values) if self.left >= 0 else {}

    def close(self) -> None:
        self.substitute.close()


def test_what_prompts_take_is_noted_where_they_go() -> None:
    nothing = {LOGITS: np.zeros((0, 1), np.float32)}
    watching, substitutes = Watching(), Substitutes()
    device = Replaced(substitutes.add(Noting()), 2)
    prompts = PromptRows(device, 99, nothing, watching, substitutes)
    programs = Programs({Shape(Phase.PREFILL, 64): Noting()}, prompts)
    store = SequenceStore(SPEC, 64, 4)

    def run(rows: int, start: int = 0) -> None:
        programs.run(Batch.of(list(range(rows)), start, 0, logits="last"), store)

    for _ in range(2):
        run(21)
    assert (watching.seen, substitutes.calls) == ([], 2)
    run(21)
    assert watching.seen == [("there", 20)]
    run(17)
    run(16)  # too few to say anything of prompts
    assert watching.seen == [("there", 20), ("here", 17)]
    watching.from_rows = 64
    run(40)
    assert watching.seen[-1] == ("here", 40)


def test_a_program_is_compiled_when_it_is_first_taken() -> None:
    inner = Noting()
    compiled: list[int] = []

    def compile_() -> Executable:
        compiled.append(1)
        return inner

    deferred = Deferred(compile_)
    deferred.close()
    assert not compiled
    for _ in range(2):
        deferred(Batch.of([1], 0, 0), SequenceStore(SPEC, 4))
    assert (compiled, inner.calls) == ([1], [[1], [1]])
    deferred.close()
    assert not inner.calls


def test_prompts_of_which_a_part_goes_elsewhere_go_chunk_by_chunk() -> None:
    """A device takes no more rows than it was compiled for, whatever the processor takes."""
    layered, shape = Noting(), Shape(Phase.PREFILL, 4)
    layered.is_layered = True
    batch, store = Batch.of(list(range(6)), 0, 0), SequenceStore(SPEC, 64)
    assert Programs({shape: layered}).run(batch, store)[LOGITS].tolist() == [[5]]
    programs = Programs({shape: layered}, PromptRows(Noting(), 4, {}))
    assert not programs.is_layered
    with pytest.raises(BackendError, match="6 rows for programs of at most 4"):
        programs._program(batch.rows)


def test_what_is_required_must_take_part() -> None:
    folder = bundle_of("llama", weights="fp32")
    with pytest.raises(
        UnsupportedError, match="openvino:NPU is required and takes no part: .* by cpu; "
    ):
        edgerun.load(folder, require="openvino:NPU")
    for name in ("gpu", "gpu:0"):
        with pytest.raises(InputError, match=f"require is '{name}'; .* there are cpu, "):
            edgerun.load(folder, require=name)


def test_calls_that_are_too_small_for_a_place_are_refused() -> None:
    pytest.importorskip("openvino")
    folder = bundle_of("llama", weights="fp32")
    with pytest.raises(UnsupportedError, match="calls have at most 16 rows, .* from 17 rows on"):
        edgerun.load(folder, place="prefill=openvino:CPU", chunk_rows=16)


def test_rows_are_not_alike_where_prompts_were_sent_elsewhere() -> None:
    pytest.importorskip("openvino")
    folder = bundle_of("llama", weights="fp32")
    for place, are_alike in (("prefill=openvino:CPU", False), ("prefill=cpu,decode=cpu", True)):
        with edgerun.load(folder, place=place, chunk_rows=64) as llm:
            assert llm.model.programs.has_rows_alike == are_alike
