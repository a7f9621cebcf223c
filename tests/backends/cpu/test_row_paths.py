"""Which kernels multiply how many rows: what is chosen, and that no bit depends on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.backends import cpu as cpu_module
from edgerun.backends.cpu import row_paths
from edgerun.backends.cpu.families import AMX, LOOKUP, WEIGHT_BITS, paths_taken
from edgerun.backends.cpu.row_paths import (
    GEMM,
    MANY_ROWS,
    block_tokens,
    measured_paths,
    path_in,
    possible_paths,
    usual_path,
)
from edgerun.graph.ir import Graph, Node
from edgerun.kernels import isa as isa_module
from edgerun.kernels.host.processor import INTEL
from edgerun.kernels.isa import available_isas, selected_isa
from edgerun.kernels.lang.isa import ISAS, MODELS, Isa
from edgerun.machine.profile import MachineProfile, family
from edgerun.machine.row_times import ALL_IN_TURNS, VERSION, BlockPath, Layers, RowTimes, stored
from edgerun.plan.calibration.kernels import FAMILIES
from edgerun.plan.calibration.loads import random_weight
from edgerun.state import Batch, SequenceStore, same_attention

F32 = NDArray[np.float32]
SPEC = same_attention(1, 1, 16, "fp32")
K, N = 352, 71
HEIGHTS = (*range(1, 18), 33)
LEAST = (2, 9, 16, 17)  # from how many rows on blocks are to be taken
FORMS = [("int8_block", "int4"), ("int8_row", "ternary"), ("int8_row", "trits")]
OTHERS = [("int8_row", "int4"), ("int8_row", "int8"), ("int8_block", "int2")]
OTHERS += [("int8_block", "int8"), ("int8_row", "int2")]
NAMES = [family(*each) for each in FAMILIES]
BEST = selected_isa()
# Where nothing is looked up at best, portable code looks up. Compiling takes the time.
SETS = [
    *((isa, form) for isa in (BEST, MODELS["amx_model"]) for form in FORMS),
    (ISAS["portable"], FORMS[2]),
    *(
        pytest.param(ISAS[name], form, marks=pytest.mark.slow)
        for name in available_isas()
        for form in [*FORMS, *OTHERS]
        if ISAS[name] is not BEST or form in OTHERS
    ),
]


@pytest.fixture
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Isa:
    chosen: Isa = request.param
    monkeypatch.setattr(isa_module, "selected_isa", lambda: chosen)
    return chosen


def layers(form: tuple[str, str]) -> Graph:
    """A layer, and a gate of two others."""
    activations, weights = form
    attributes = {"activations": activations}
    nodes = [Node("linear", name, ("x", f"w{name}"), (f"y{name}",), attributes) for name in "abc"]
    nodes.append(Node("gate", "gate", ("ya", "yb"), ("y",), {"activation": "silu"}))
    weights_of = {f"w{name}": random_weight(weights, (K, N), ord(name)) for name in "abc"}
    return Graph(nodes, ["x"], ["y", "yc"], dict(weights_of))


def outputs(
    form: tuple[str, str], path: BlockPath, x: F32, heights: tuple[int, ...]
) -> tuple[list[F32], set[str]]:
    """What one program, for as many rows as the highest batch, makes of the first rows of ``x``.

    And the names of the paths that it has.
    """
    given = {"threads": 1, "pack": "trits" if form[1] == "trits" else "two_bits"}
    backend = make_backend("cpu", given={**given, "row_paths": {family(*form): path}})
    program = backend.compile(layers(form), Shape.of(max(heights)), CompileOptions(SPEC))
    cache, results = SequenceStore(SPEC, max(heights)), []
    for rows in heights:
        values = program(Batch.of([0] * rows, 0, 0, logits="none"), cache, {"x": x[:rows]})
        results.append(np.hstack([values["y"], values["yc"]]))
    paths = set(program.launches.paths)
    program.close()
    backend.close()
    return results, paths


@pytest.mark.parametrize(("instruction_set", "form"), SETS, indirect=["instruction_set"])
def test_all_paths_from_any_number_of_rows_on_have_the_same_bits(
    form: tuple[str, str], instruction_set: Isa
) -> None:
    x = np.random.default_rng(2).standard_normal((max(HEIGHTS), K)).astype(np.float32)
    expected = np.concatenate(
        [outputs(form, ALL_IN_TURNS, x[row : row + 1], (1,))[0][0] for row in range(len(x))]
    )
    choices = [ALL_IN_TURNS]
    for name in possible_paths(instruction_set, family(*form)):
        choices += [BlockPath(name, least) for least in LEAST]
    for path in choices:
        results, paths = outputs(form, path, x, HEIGHTS)
        assert paths >= {path.name} & {AMX, LOOKUP}
        for rows, output in zip(HEIGHTS, results, strict=True):
            np.testing.assert_array_equal(output, expected[:rows], err_msg=f"{path}, {rows} rows")


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("name", [GEMM, AMX])
def test_few_rows_may_be_done_in_blocks_too(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = BEST if name == GEMM and BEST.prompts == GEMM else MODELS["amx_model"]
    monkeypatch.setattr(isa_module, "selected_isa", lambda: chosen)
    form, x = FORMS[1], np.ones((rows, K), np.float32)
    in_turns, _ = outputs(form, ALL_IN_TURNS, x, (rows,))
    in_blocks, paths = outputs(form, BlockPath(chosen.prompts, rows), x, (rows,))
    np.testing.assert_array_equal(in_blocks[0], in_turns[0])
    assert (AMX in paths) == (chosen.prompts == AMX)


@pytest.mark.parametrize("order", [("ternary", "int2"), ("int2", "ternary")])
def test_what_one_layer_leaves_in_rows_another_may_need_in_tiles(
    order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers that read one value, of families whose blocks begin at different numbers of rows."""
    monkeypatch.setattr(isa_module, "selected_isa", lambda: MODELS["amx_model"])
    attributes = {"activations": "int8_row"}
    nodes = [Node("linear", name, ("x", name), (f"y{name}",), attributes) for name in order]
    weights = {name: random_weight(name, (K, N), 1) for name in order}
    graph = Graph(nodes, ["x"], [f"y{name}" for name in order], dict(weights))
    x = np.random.default_rng(3).standard_normal((8, K)).astype(np.float32)
    results = []
    for least in (99, 2):
        paths = {family("int8_row", order[0]): BlockPath(AMX, 16)}
        paths |= {family("int8_row", order[1]): BlockPath(AMX, least)}
        backend = make_backend("cpu", given={"threads": 1, "row_paths": paths})
        program = backend.compile(graph, Shape.of(16), CompileOptions(SPEC))
        values = program(Batch.of([0] * 8, 0, 0, logits="none"), SequenceStore(SPEC, 8), {"x": x})
        results.append({name: value.copy() for name, value in values.items()})
        program.close()
        backend.close()
    for name in results[0]:
        np.testing.assert_array_equal(results[1][name], results[0][name])


def times(turns: float, **blocks: float) -> Layers:
    """Of four rows, and of blocks of 16; none do better together."""
    by_path = {path: {16: each, 128: 8 * each} for path, each in blocks.items()}
    return (RowTimes({1: turns / 4, 4: turns, 16: 4 * turns}, by_path, threads=1),)


def profile_of(**by_isa: Mapping[str, Layers]) -> MachineProfile:
    return MachineProfile(row_times={isa: stored(layers) for isa, layers in by_isa.items()})


def test_the_measured_times_of_the_instruction_set_say_what_is_taken() -> None:
    profile = profile_of(
        avx2={"int8_row/int4": times(1.0, gemm=3.0), "int8_row/int8": times(1.0, gemm=5.0)},
        amx={"int8_row/int4": times(1.0, amx=2.0)},
    )
    measured = measured_paths(ISAS["avx2"], profile, 1)
    assert measured["int8_row/int4"].name == GEMM
    assert measured["int8_row/int8"] == ALL_IN_TURNS
    assert measured_paths(ISAS["amx"], profile, 1)["int8_row/int4"] == BlockPath(AMX, 9)
    assert measured_paths(ISAS["avxvnni"], profile, 1) == {}
    many = Shape.of(256)
    for kernels, path in measured.items():
        assert path_in(many, ISAS["avx2"], measured, kernels, has_areas=False) == path
    usual = path_in(many, ISAS["avx2"], measured, "int8_block/int4", has_areas=False)
    assert usual == BlockPath(GEMM, ISAS["avx2"].unpacks)  # of which nothing is known


def test_times_of_another_version_or_without_a_path_that_there_is_are_not_used() -> None:
    (layer,) = timings = times(1.0, gemm=3.0)
    assert measured_paths(ISAS["avx2"], profile_of(avx2={"int8_row/int4": timings}), 1)
    later: list[dict[str, object]] = stored({"": timings})[""]
    later[0]["version"] = VERSION + 1
    for unusable in (later, stored({"": (layer, replace(layer, blocks={}))})[""]):
        profile = MachineProfile(row_times={"avx2": {"int8_row/int4": unusable}})
        assert measured_paths(ISAS["avx2"], profile, 1) == {}
    ternary = profile_of(avx2={"int8_row/ternary": timings})
    assert measured_paths(ISAS["avx2"], ternary, 1) == {}  # how long looking up takes is not known
    unknown = profile_of(avx2={"float/int4": timings, "int8_row/int3": timings})
    assert "float/int4" not in measured_paths(ISAS["avx2"], unknown, 1)


def test_the_times_with_as_many_threads_as_work_say_what_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here two threads share the last cache, so that what reads weights more often loses."""
    (alone,), (together,) = times(1.0, gemm=5.0), times(1.0, gemm=3.0)
    by_family = {"int8_row/int4": (alone, replace(together, threads=2))}
    profile = profile_of(avx2=by_family)
    paths = [measured_paths(ISAS["avx2"], profile, threads) for threads in (1, 2, 4)]
    assert [path["int8_row/int4"].name for path in paths] == ["", GEMM, GEMM]
    monkeypatch.setattr(isa_module, "selected_isa", lambda: ISAS["avx2"])
    monkeypatch.setattr(cpu_module, "machine_profile", lambda: profile)
    for threads, taken in ((1, ""), (2, GEMM)):
        shared = cpu_module._Shared(cpu_module.CpuOptions(threads))
        assert shared.row_paths(Shape.of(16))["int8_row/int4"].name == taken
        shared.team.close()


@pytest.mark.parametrize("isa", ["neon", "portable"])
def test_few_rows_of_trits_are_looked_up_where_they_are_without_times(isa: str) -> None:
    quick = profile_of(**{isa: {"int8_row/trits": times(1.0, gemm=3.9, lookup=1.5)}})
    measured = measured_paths(ISAS[isa], quick, 1)
    assert measured["int8_row/trits"] == usual_path(ISAS[isa], "int8_row/trits")
    slow = profile_of(**{isa: {"int8_row/trits": times(1.0, gemm=1.5, lookup=3.9)}})
    assert measured_paths(ISAS[isa], slow, 1)["int8_row/trits"] == BlockPath(GEMM, MANY_ROWS)


def test_a_start_works_out_the_families_of_its_model_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Layers] = []

    def counted(layers: Layers, tokens: Mapping[str, int]) -> BlockPath:
        calls.append(layers)
        return BlockPath(GEMM, 9)

    monkeypatch.setattr(row_paths, "quickest_path", counted)
    by_family = {name: times(float(number), gemm=3.0) for number, name in enumerate(NAMES, 1)}
    measured = measured_paths(ISAS["avxvnni"], profile_of(avxvnni=by_family), 1)
    for _ in range(2):
        assert measured["int8_row/int4"] == BlockPath(GEMM, 9)
    assert calls == [by_family["int8_row/int4"]]


def test_few_rows_of_trits_are_not_expanded_for() -> None:
    timings = times(1.0, gemm=2.0, lookup=1.5)
    profile = profile_of(avx2={"int8_row/ternary": timings, "int8_row/trits": timings})
    measured = measured_paths(ISAS["avx2"], profile, 1)
    assert measured["int8_row/ternary"].least < measured["int8_row/trits"].least == MANY_ROWS
    assert {path.name for path in measured.values()} == {LOOKUP}


@pytest.mark.parametrize("vendor", [INTEL, "AuthenticAMD"])
@pytest.mark.parametrize("isa", ISAS.values(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("kernels", NAMES)
def test_where_nothing_was_measured_a_set_of_instructions_says(
    isa: Isa, kernels: str, vendor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_paths, "vendor", lambda: vendor)
    path, rounding = usual_path(isa, kernels), kernels.split("/")[0]
    is_ternary = kernels in ("int8_row/ternary", "int8_row/trits")
    multiplies = (isa.name, vendor) == ("avxvnni", INTEL)
    if rounding == "float":
        assert path == ALL_IN_TURNS
    elif is_ternary and isa.looks_up and not multiplies:
        assert path == BlockPath(LOOKUP, isa.looks_up)
    elif kernels == "int8_row/trits":
        assert path == BlockPath(isa.prompts, MANY_ROWS)
    elif isa.unpacks:
        assert path == BlockPath(isa.prompts, isa.unpacks)
    elif isa.vector_bytes == 64 and vendor == INTEL:
        assert path == BlockPath(isa.prompts, 24)
    else:
        assert path == ALL_IN_TURNS
    assert path.name in ("", *possible_paths(isa, kernels))
    assert (block_tokens(isa, path.name) == 0) == (path == ALL_IN_TURNS)


@pytest.mark.parametrize(
    ("rows", "path", "has_areas", "taken"),
    [
        (1, BlockPath(GEMM, 2), False, False),
        (16, BlockPath(GEMM, 16), False, True),
        (16, BlockPath(GEMM, 17), False, False),
        (256, BlockPath(GEMM, 256), False, True),
        (256, BlockPath(GEMM, 257), False, False),
        (16, BlockPath(LOOKUP, 12), False, True),
        (16, BlockPath(LOOKUP, 13), False, False),  # gate and up together are worth more
        (17, BlockPath(LOOKUP, 17), False, True),
        (256, BlockPath(AMX, 9), False, False),  # without memory
        (256, BlockPath(AMX, 9), True, True),
        (256, ALL_IN_TURNS, True, False),
    ],
)
def test_a_program_has_blocks_for_the_batches_it_is_made_for(
    rows: int, path: BlockPath, has_areas: bool, taken: bool
) -> None:
    measured = {"int8_row/ternary": path}
    kernels = "int8_row/ternary"
    here = path_in(Shape.of(rows), ISAS["avx2"], measured, kernels, has_areas=has_areas)
    assert here == (path if taken else ALL_IN_TURNS)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[None]]:
    """Counts how often the machine's profile is asked for."""
    calls: list[None] = []
    timings = times(1.0, **dict.fromkeys(possible_paths(BEST, "int8_row/ternary"), 1.0))
    profile = profile_of(**{BEST.name: {"int8_row/ternary": timings}})

    def read() -> MachineProfile:
        calls.append(None)
        return profile

    monkeypatch.setattr(cpu_module, "machine_profile", read)
    yield calls


def test_the_profile_is_read_for_programs_of_several_rows_only(reads: list[None]) -> None:
    backend = make_backend("cpu", given={"threads": 1})
    kernels: list[set[str]] = []
    for rows in (1, 16, 256):
        program = backend.compile(layers(FORMS[1]), Shape.of(rows), CompileOptions(SPEC))
        kernels.append(program._binder.kernels)  # type: ignore[attr-defined]
        assert len(reads) == min(rows - 1, 1)
        program.close()
    backend.close()
    # Blocks are eight times as fast as turns there, so that a few rows are done in blocks.
    names = tuple(f"{path}_" for path in possible_paths(BEST, "int8_row/ternary"))
    assert [any(name.startswith(names) for name in each) for each in kernels] == [False, True, True]
    assert paths_taken(kernels[0]) == ("multiply",)


def test_all_families_have_names_that_calibration_has() -> None:
    assert {name.split("/")[1] for name in NAMES} <= set(WEIGHT_BITS)
