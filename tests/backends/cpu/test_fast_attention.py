"""Attention of prompts in bfloat16, by modelled tiles and by pairs: its error, uses, refusals."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import edgerun
from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.backends.cpu import page_tiles
from edgerun.backends.cpu.emit import attention as emitter
from edgerun.cli.main import main
from edgerun.errors import InputError
from edgerun.graph.ir import Graph, Node
from edgerun.kernels import isa as isa_module
from edgerun.kernels.attention.planner import AttentionUnits
from edgerun.kernels.attention.units import TURNED
from edgerun.kernels.isa import bfloat16_multiplier, obstacle
from edgerun.kernels.lang.isa import AVX512VNNI, ISAS, MODELS
from edgerun.kernels.run.instructions import Instruction, fences
from edgerun.kernels.run.program import Program
from edgerun.ops.registry import OPS
from edgerun.state import Batch, SequenceStore, same_attention
from edgerun.values import Notice
from tests.backends.test_attention import attention, batch_of, projections
from tests.support.bundles import bundle_of

F32 = NDArray[np.float32]
HEADS, GROUP, HEAD_DIM = 2, 4, 32
RMS = 0.008  # of the root mean square of outputs


@pytest.fixture
def modelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa_module, "selected_isa", lambda: MODELS["amx_model"])


@pytest.fixture(params=["tiles", "pairs"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles, modelled, or pairs: modelled too where this machine has none."""
    pairs = ISAS["avx512vnni"]
    if obstacle(pairs.name) or not bfloat16_multiplier(pairs):
        pairs = MODELS["vnni_model"]
    isa = MODELS["amx_model"] if request.param == "tiles" else pairs
    monkeypatch.setattr(isa_module, "selected_isa", lambda: isa)


def run(
    parts: list[tuple[int, int]],
    form: str = "fast",
    dtype: Any = "fp16",
    window: int = 0,
    scale: float = 1.0,
    head_dim: int = HEAD_DIM,
    forked: int = 0,
    threads: int = 2,
    softcap: float = 0.0,
) -> tuple[F32, F32, F32]:
    """What the CPU back-end computes, what the definition says, and how far it may be from that."""
    spec = same_attention(1, HEADS, head_dim, dtype, window)
    node, rows = attention(spec, GROUP, softcap), sum(tokens for _, tokens in parts)
    node.attrs["scale"] *= scale
    cache = SequenceStore(spec, max(sum(part) for part in parts), len(parts))
    batch, values = batch_of(cache, parts, forked), projections(spec, GROUP, rows)
    backend = make_backend("cpu", given={"threads": threads, "attention": form})
    graph = Graph([node], ["q", "k", "v"], ["out"], {})
    executable = backend.compile(graph, Shape.of(rows), CompileOptions(spec))
    output = executable(batch, cache, values)["out"].copy()
    executable.close()
    backend.close()
    inputs = [values[name] for name in "qkv"]
    expected = OPS["attention"].evaluate(inputs, node.attrs, batch, cache)[0]
    return output, expected, bound(batch, cache, values["q"], node)


def bound(batch: Batch, cache: SequenceStore, q: F32, node: Node) -> F32:
    """What ``kernels/attention/tiles.py`` promises, for each row and query head."""
    head_dim, name = node.attrs["head_dim"], cache.states[0].name
    limits = np.zeros((batch.rows, HEADS, GROUP))
    for row in range(batch.rows):
        position = int(batch.positions[row])
        keys, values = cache.read_block(name, int(batch.sequences[row]), 0, position + 1)
        queries = np.abs(q[row].reshape(HEADS, GROUP, head_dim)).astype(np.float64)
        off = 2**-8 * node.attrs["scale"] * np.einsum("hgd,thd->hgt", queries, np.abs(keys))
        largest = np.abs(values).max(axis=(0, 2))[:, None]
        limits[row] = (np.exp(2 * off.max(axis=2)) - 1 + 2**-7) * largest
    return np.repeat(limits.reshape(batch.rows, -1), head_dim, axis=1).astype(np.float32)


def assert_within(output: F32, expected: F32, limits: F32, rms: float = RMS) -> None:
    assert (np.abs(output - expected) <= limits).all()
    error = np.sqrt(np.mean((output - expected) ** 2) / np.mean(expected**2))
    assert 0 < error <= rms, f"root mean square {error:.2%}"


# Prompts, drafts and single tokens, alone and with others; contexts of several blocks of pages.
PARTS = [(999, 1), (64, 1), (1000, 4), (300, 70), (0, 9), (63, 33), (0, 130)]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
def test_errors_stay_within_the_bound(dtype: str, either: None) -> None:
    assert_within(*run(PARTS, dtype=dtype))
    assert_within(*run([(0, 70), (200, 20)], dtype=dtype, window=50))
    # Bounded scores are wrong by no more, but for a hyperbolic tangent to 4e-5.
    assert_within(*run([(0, 70), (200, 40)], dtype=dtype, window=50, softcap=5.0))


def test_high_scores_far_into_a_context(either: None) -> None:
    """They raise what the sums so far are relative to, again and again."""
    output, expected, limits = run([(600, 40)], scale=6.0)
    assert_within(output, expected, limits, rms=0.04)


def test_shared_pages_and_threads(modelled: None) -> None:
    parts = [(700, 1), (700, 1), (640, 20), (690, 3)]
    alone = run(parts, threads=1, forked=600)
    assert_within(*alone)
    np.testing.assert_array_equal(alone[0], run(parts, threads=3, forked=600)[0])


def test_few_rows_have_the_bits_of_exact_attention(modelled: None) -> None:
    for parts in ([(700, 1)], [(100, 16)], [(3, 4), (90, 9)]):
        np.testing.assert_array_equal(run(parts)[0], run(parts, "exact")[0])
    assert (run([(100, 17)])[0] != run([(100, 17)], "exact")[0]).any()


SHARING = [(300, 70), (5, 40), (0, 130)]  # units of up to 32 rows that share pages


def turned_pages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pages each run of a program that is made from now on turns for several units."""
    counts: list[int] = []
    plan = AttentionUnits.plan

    def counted(units: AttentionUnits) -> None:
        plan(units)
        word = units.fields["counts"] + 8 * TURNED
        counts.append(ctypes.c_int64.from_address(word).value)

    monkeypatch.setattr(AttentionUnits, "plan", counted)
    return counts


@pytest.mark.parametrize("dtype", ["fp16", "int8"])
def test_pages_are_turned_once_for_units_that_share_them(
    dtype: str, modelled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for some of them, or for none, changes no bit."""
    counts = turned_pages(monkeypatch)
    outputs = []
    for room in (page_tiles.MOST_PAGES, 4, 1):
        monkeypatch.setattr(page_tiles, "MOST_PAGES", room)
        outputs.append(run(SHARING, dtype=dtype)[0])
    assert counts == [6 + 1 + 3, 4, 1]
    for output in outputs[1:]:
        np.testing.assert_array_equal(output, outputs[0])


def test_without_memory_for_them_every_unit_turns_its_own_and_it_is_said_once(
    modelled: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = run(SHARING)[0]
    counts = turned_pages(monkeypatch)

    def refuse(size: int) -> None:
        raise MemoryError

    monkeypatch.setattr(page_tiles, "zeroed_memory", refuse)
    np.testing.assert_array_equal(run(SHARING)[0], expected)
    assert counts == [0]
    memory = page_tiles.PageTiles()
    assert memory.for_heads(2, 32) is None
    monkeypatch.undo()
    assert memory.for_heads(2, 32) is None, "what was refused is not asked for again"
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, "one a team"
    assert all("order of tiles" in text for text in said)


def test_pages_are_read_when_all_are_turned(
    modelled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[list[Instruction]] = []
    begin = Program.__init__

    def listed(program: Program, steps: list[Instruction], *rest: Any) -> None:
        programs.append(steps)
        begin(program, steps, *rest)

    monkeypatch.setattr(Program, "__init__", listed)
    run(SHARING)
    (steps,) = programs
    labels = [step.label.rpartition("/")[2] for step in steps]
    turned, read = labels.index("turning"), labels.index("many")
    assert turned < read and any(fences(steps)[turned:read])


def test_widths_that_fill_no_tile_stay_exact(modelled: None) -> None:
    parts = [(70, 40)]
    fast, exact = (run(parts, form, head_dim=40)[0] for form in ("fast", "exact"))
    np.testing.assert_array_equal(fast, exact)


@pytest.mark.parametrize(
    ("name", "dtype", "window", "softcap", "end"),
    [
        ("q", "fp16", 0, 0.0, 31),
        ("k", "fp16", 0, 0.0, 130),
        ("k", "fp16", 0, 5.0, 130),
        ("v", "fp16", 0, 0.0, 130),
        ("v", "int8", 0, 0.0, 130),
        ("v", "fp16", 50, 0.0, 80),
        ("v", "int8", 50, 0.0, 80),
    ],
)
@pytest.mark.parametrize("form", ["exact", "fast"])
def test_what_is_no_number_shows(
    form: str,
    name: str,
    dtype: str,
    window: int,
    softcap: float,
    end: int,
    either: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A query spoils its own row, a key or a value the rows that see it, none of them another.

    Position 70: of a unit that begins at 40 some queries see its page and some do not. Rows behind
    a window do, but not the value.
    """
    whole = projections

    def spoiled(spec: Any, group: int, count: int) -> dict[str, F32]:
        values: dict[str, F32] = whole(spec, group, count)
        values[name][30] = np.nan
        return values

    monkeypatch.setattr(__name__ + ".projections", spoiled)
    with np.errstate(invalid="ignore"):  # of the definition
        output = run([(40, 130), (5, 40)], form, dtype, window, softcap=softcap)[0]
    is_number = np.isfinite(output).all(axis=1)
    assert np.flatnonzero(~is_number).tolist() == [*range(30, end)], "none of the other sequence"


def logits(name: str, ids: list[int], form: str) -> F32:
    options: dict[str, Any] = {"backend": "cpu", "threads": 1, "attention": form}
    with edgerun.load(bundle_of(name), **options) as llm:
        return np.concatenate([block.copy() for block in llm.logits(ids)])


LONG, SHORT = [3 + index * 7 % 50 for index in range(60)], [1, 5, 9, 2]


@pytest.mark.parametrize("name", ["qwen3", "ministral3"])
def test_golden_models_choose_the_same_but_where_two_are_equally_likely(
    name: str, either: None
) -> None:
    """Their weights are random, so what is little in attention is ten times as much in logits."""
    exact, fast = logits(name, LONG, "exact"), logits(name, LONG, "fast")
    assert 0 < np.sqrt(np.mean((fast - exact) ** 2)) / exact.std() < 0.03
    is_other = fast.argmax(axis=1) != exact.argmax(axis=1)
    second, first = np.sort(exact, axis=1)[:, -2:].T
    assert (first - second)[is_other].max(initial=0) < 0.04 * exact.std()
    np.testing.assert_array_equal(logits(name, SHORT, "fast"), logits(name, SHORT, "exact"))


def test_it_is_said_what_is_not_faster(modelled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    why_exact = emitter.why_exact

    def first_not(node: Node, isa: Any) -> str:
        return "it is the first" if node.attrs["layer"] == 0 else why_exact(node, isa)

    monkeypatch.setattr(emitter, "why_exact", first_not)
    edgerun.load(bundle_of("qwen3"), backend="cpu", attention="fast", progress=said.append).close()
    assert [text for text in said if isinstance(text, Notice)] == [
        "prompts attend in bfloat16, and have not quite the results of replies",
        "1 of 2 layers attend exactly all the same: it is the first",
    ]


@pytest.mark.parametrize(
    ("name", "isa", "backend", "why"),
    [
        (
            "qwen3",
            "portable",
            "cpu",
            "no products of bfloat16 among the instructions in use, portable",
        ),
        (
            "qwen3",
            "avx512vnni",
            "cpu",
            "no products of bfloat16 among the instructions in use, avx512vnni",
        ),
        ("llama", "amx_model", "cpu", "head_dim 16 is no multiple of 32"),
        ("qwen3", "amx_model", "reference", "the processor computes no attention of prompts"),
    ],
)
def test_it_is_refused_where_nothing_would_be_faster(
    name: str, isa: str, backend: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on AVX-512 without the instructions for bfloat16, too."""
    chosen = {**ISAS, **MODELS}[isa]
    monkeypatch.setattr(isa_module, "host_features", lambda: frozenset(AVX512VNNI))
    monkeypatch.setattr(isa_module, "selected_isa", lambda: chosen)
    with pytest.raises(InputError, match=f"makes nothing of this model faster: .*{why}"):
        edgerun.load(bundle_of(name), backend=backend, attention="fast")


def test_another_word_is_refused() -> None:
    with pytest.raises(InputError, match=r"attention is 'faster'; expected one of exact, fast"):
        edgerun.load(bundle_of("llama"), attention="faster")


def test_the_plan_says_which_layers(modelled: None, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["plan", "--explain", "--backend", "cpu"]
    assert main([*plan, str(bundle_of("qwen3")), "--attention", "fast"]) == 0
    assert "in bfloat16" in capsys.readouterr().out
    assert main([*plan, str(bundle_of("llama")), "--attention", "fast"]) == 0
    assert "head_dim 16 is no multiple of 32" in capsys.readouterr().out
    assert main([*plan, str(bundle_of("qwen3"))]) == 0
    assert "bfloat16" not in capsys.readouterr().out
