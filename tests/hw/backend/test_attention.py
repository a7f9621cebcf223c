"""Attention on the fabric: the definition's results, the CPU's tokens, and who takes over when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from edgerun.backends.base import CompileOptions, Phase, Shape
from edgerun.graph.ir import Graph, Node
from edgerun.llm.llm import load
from edgerun.state import Batch, SequenceStore, same_attention
from edgerun_hw.backend import attention as fabric
from edgerun_hw.backend import make
from edgerun_hw.backend.attention import obstacle
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.attention_layout import PORTS, KvLayout
from edgerun_hw.overlay.command import Command
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.port import Buffer, Ticket
from edgerun_hw.simulate.fake import FakeDevice, Faults
from tests.hw.support.overlays import normal, replace_fake
from tests.support.bundles import SMALL_MODEL

PROMPT = "Once upon a time there was a little dog who"
TOKENS = 8
FAKE = "fake:attention-300"


def generate(
    prompt: str = PROMPT, tokens: int = TOKENS, **options: object
) -> tuple[list[int], list[str]]:
    """Greedy ids, and the notes of the device's report."""
    with load(SMALL_MODEL, **options) as llm:  # type: ignore[arg-type]
        ids = llm.generate(prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True).ids
        notes = [note for report in llm.reports() for note in report.notes]
    return ids, notes


@cache
def by_cpu(prompt: str = PROMPT, tokens: int = TOKENS) -> list[int]:
    return generate(prompt, tokens, backend="cpu", kv_cache="int8")[0]


def commands_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of queries of the attention commands that are run from now on."""
    counts: list[int] = []
    run_jobs = fabric.run_jobs

    def counting(session, jobs, scale):
        out = run_jobs(session, jobs, scale)
        counts.extend(len(job.queries) for job in jobs)
        return out

    monkeypatch.setattr(fabric, "run_jobs", counting)
    return counts


def test_the_software_device_attends_and_gives_the_cpus_tokens(monkeypatch):
    counts = commands_of(monkeypatch)
    ids, notes = generate(backend="fpga", device=FAKE, kv_cache="int8")
    assert ids == by_cpu()
    assert max(counts) == 2
    assert not any("not used any more" in note for note in notes)


@pytest.mark.fpga
@pytest.mark.timeout(900)
def test_the_simulated_overlay_attends_and_gives_the_same_tokens(monkeypatch):
    counts = commands_of(monkeypatch)
    with load(SMALL_MODEL, backend="fpga", device="cosim:layer-300,ddr", kv_cache="int8") as llm:
        ids = llm.generate(PROMPT, max_tokens=TOKENS, temperature=0.0, ignore_eos=True).ids
        (report,) = llm.reports()
    assert ids == by_cpu()
    assert counts
    assert not any("not used any more" in note for note in report.notes)


def test_other_storage_stays_with_the_cpu(monkeypatch):
    counts = commands_of(monkeypatch)
    expected, _ = generate(tokens=4, backend="cpu")
    ids, _ = generate(tokens=4, backend="fpga", device=FAKE)
    assert ids == expected
    assert not counts


@pytest.mark.fpga
def test_an_overlay_without_the_unit_leaves_attention_to_the_cpu(monkeypatch):
    counts = commands_of(monkeypatch)
    ids, _ = generate(backend="fpga", device="fake:decode-300", kv_cache="int8")
    assert ids == by_cpu()
    assert not counts


@pytest.mark.fpga
def test_an_overlay_of_an_older_register_map_leaves_attention_to_the_cpu(monkeypatch):
    """Version 1.0 has zeros where the number of queries is now."""
    counts = commands_of(monkeypatch)
    faults = Faults(version=0x00010000)
    device = lambda: Tlmm(FakeDevice(PRESETS["decode-300"], faults=faults))  # noqa: E731
    replace_fake(monkeypatch, device)
    ids, notes = generate(backend="fpga", device="fake", kv_cache="int8")
    assert ids == by_cpu()
    assert not counts
    assert not any("not used any more" in note for note in notes)


def node(**changes: object) -> Node:
    attrs = {"num_kv_heads": 2, "head_dim": 64, "num_heads": 4, "layer": 0, "window": 0}
    attrs |= {"softcap": 0.0}
    inputs = ("q", "k", "v", *changes.pop("more", ()))
    return Node("attention", "attention", inputs, ("out",), {**attrs, **changes})


@pytest.mark.parametrize(
    ("changes", "storage", "queries", "words"),
    [
        ({}, "int8", 2, ""),
        ({}, "int8", 0, "no attention unit"),
        ({}, "fp16", 2, "stored as fp16; the fabric reads --kv-cache int8"),
        ({}, "int4", 2, "stored as int4"),
        ({"head_dim": 40}, "int8", 2, "multiples of 16"),
        ({"head_dim": 512}, "int8", 2, "256 at most"),
        ({"num_kv_heads": 64}, "int8", 2, "64 heads"),
        ({"more": ("sinks",)}, "int8", 2, "sinks"),
        ({"softcap": 50.0}, "int8", 2, "bounds no scores"),
    ],
)
def test_layers_that_the_fabric_cannot_run_are_said_to_be(changes, storage, queries, words):
    reason = obstacle(node(**changes), storage, queries)
    assert (words in reason) if words else not reason


@pytest.mark.fpga
@pytest.mark.parametrize("first", [40, 47, 60])
def test_a_device_lost_between_attention_and_projection_changes_no_token(monkeypatch, first):
    """From some command on all fail: the CPU goes on with what the cache holds."""
    faults = Faults(errors={n: regs.ERROR_READ_RESPONSE for n in range(first, first + 100_000)})
    device = lambda: Tlmm(FakeDevice(PRESETS["attention-300"], faults=faults))  # noqa: E731
    replace_fake(monkeypatch, device)
    ids, notes = generate(backend="fpga", device="fake", kv_cache="int8")
    assert ids == by_cpu()
    assert any("not used any more" in note for note in notes)


@pytest.mark.fpga
def test_a_flipped_result_is_noticed(monkeypatch):
    """Attention cannot give more than the largest value: the command is run again."""
    run_jobs = fabric.run_jobs
    calls: list[int] = []

    def flipping(session, jobs, scale):
        out = run_jobs(session, jobs, scale)
        calls.append(1)
        if len(calls) == 7:
            out[-1] *= 1e6  # the last query, which is not computed again
        return out

    monkeypatch.setattr(fabric, "run_jobs", flipping)
    ids, notes = generate(backend="fpga", device=FAKE, kv_cache="int8")
    assert ids == by_cpu()
    assert any("1 resets" in note for note in notes)


def test_small_errors_are_noticed_too(monkeypatch):
    """Of each layer the first command is computed again, and then one in sixteen."""
    run_jobs, calls = fabric.run_jobs, []

    def wrong(session, jobs, scale):
        out = run_jobs(session, jobs, scale)
        calls.append(1)
        return np.nextafter(out, np.float32(0)) if len(calls) == 1 else out

    monkeypatch.setattr(fabric, "run_jobs", wrong)
    ids, notes = generate(tokens=2, backend="fpga", device=FAKE, kv_cache="int8")
    assert ids == by_cpu(tokens=2)
    assert any("1 resets" in note for note in notes)


@pytest.mark.fpga
def test_a_context_beyond_the_units_table_is_the_cpus(monkeypatch):
    monkeypatch.setattr(fabric, "MAX_TOKENS", 1)
    counts = commands_of(monkeypatch)
    ids, _ = generate(backend="fpga", device=FAKE, kv_cache="int8")
    assert ids == by_cpu()
    assert not counts


@pytest.mark.fpga
def test_a_second_prompt_and_a_prefix_share_are_read_anew():
    other = "Once upon a time there was a little cat"
    with load(SMALL_MODEL, backend="fpga", device=FAKE, kv_cache="int8") as llm:
        ids = [
            llm.generate(prompt, max_tokens=4, temperature=0.0, ignore_eos=True).ids
            for prompt in (PROMPT, other, PROMPT)
        ]
    assert ids[0] == ids[2] == by_cpu()[:4]
    assert ids[1] == by_cpu(other, 4)


def test_queries_of_wanted_logits_alone_see_what_they_see_among_all_rows():
    """Of the last layer of a prompt; a chunk in which no logits are asked has no queries."""
    attrs = {"scale": np.float32(0.3), "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
    graph = Graph([node(**attrs)], ["q", "k", "v"], ["out"], {})
    state = same_attention(1, 2, 16, "int8")
    backend = make()
    backend.use_device(FAKE)
    backend.configure({"kv_cache": "int8"})
    executable = backend.compile(graph, Shape.of(96), CompileOptions(state))
    cache = SequenceStore(state, 96, slots=3)
    parts = [("last", 70), ("none", 3), ("all", 2)]
    for _, rows in parts:
        cache.reserve(cache.open(), rows)
    batch = Batch.join(
        [Batch.of([0] * rows, 0, slot, logits=asked) for slot, (asked, rows) in enumerate(parts)]
    )
    rng = np.random.default_rng(4)
    values = {name: normal(rng, 75, width) for name, width in (("q", 64), ("k", 32), ("v", 32))}
    asked = batch.logit_rows
    expected = executable(batch, cache, values)["out"][asked]
    for rows in (asked, asked[:0]):
        some = replace(batch, logit_rows=rows)
        out = executable(some, cache, {**values, "q": values["q"][rows]})["out"]
        np.testing.assert_array_equal(out, expected[: len(rows)])
    executable.close()
    backend.close()


def test_its_cost_is_that_of_the_tokens_that_rows_see():
    backend = make()
    backend.use_device(FAKE)
    backend.configure({"kv_cache": "int8"})

    def seconds(rows: int, cached: int, window: int = 0) -> float:
        layer = node(window=window)
        assert not backend._cannot_attend(layer)
        return backend.cost(None, layer, Shape(Phase.FEW, rows, cached))  # type: ignore[arg-type]

    # A command takes one row, so that a prompt costs what its tokens cost one by one.
    assert seconds(256, 64) == pytest.approx(sum(seconds(1, 64 + n) for n in range(256)))
    assert seconds(1, 4000) > seconds(1, 100)
    assert seconds(1, 4031, 64) == seconds(1, 63)
    assert seconds(1, 4032, 64) == seconds(1, 64)  # of two blocks
    backend.close()


def test_memory_is_asked_for_once_and_not_in_every_layer_of_every_token(monkeypatch):
    asked: list[int] = []
    allocate = Tlmm.allocate

    def counting(self: Tlmm, nbytes: int) -> Buffer:
        asked.append(nbytes)
        return allocate(self, nbytes)

    monkeypatch.setattr(Tlmm, "allocate", counting)
    counts = []
    for tokens in (2, TOKENS):
        generate(tokens=tokens, backend="fpga", device=FAKE, kv_cache="int8")
        counts.append(len(asked))
        asked.clear()
    assert counts[0] == counts[1] > 0


def test_memory_that_commands_write_to_is_kept_when_they_are_cut_off(monkeypatch):
    device = FakeDevice(PRESETS["attention-300"], memory_bytes=64 << 20)
    replace_fake(monkeypatch, lambda: Tlmm(device))
    submit_all = Tlmm.submit_all

    def cutting_off(self: Tlmm, commands: Sequence[Command]) -> Ticket:
        submit_all(self, commands)
        raise KeyboardInterrupt

    with load(SMALL_MODEL, backend="fpga", device="fake", kv_cache="int8") as llm:
        llm.generate(PROMPT, max_tokens=2, temperature=0.0)
        released: list[slice] = []
        with monkeypatch.context() as patch:
            patch.setattr(Tlmm, "submit_all", cutting_off)
            patch.setattr(device, "release", released.append)
            with pytest.raises(KeyboardInterrupt):
                llm.generate(PROMPT, max_tokens=2, temperature=0.0)
        assert device._queue and not released
    assert device.allocated_bytes == 0


def test_keys_of_other_sequences_make_room_and_none_is_taken_beyond_the_context(monkeypatch):
    """There is room for one sequence of 300 tokens, as `doctor` says, and not for two."""
    layout, state = KvLayout(8, 64), same_attention(1, 8, 64, "int8")
    needed = PORTS * layout.port_bytes(300)
    device = FakeDevice(PRESETS["attention-300"], memory_bytes=needed + (160 << 10))
    replace_fake(monkeypatch, lambda: Tlmm(device))
    layer = node(scale=np.float32(0.3), num_kv_heads=8, head_dim=64, num_heads=8)
    backend = make()
    backend.use_device("fake")
    backend.configure({"kv_cache": "int8"})
    graph = Graph([layer], ["q", "k", "v"], ["out"], {})
    executable = backend.compile(graph, Shape.of(280), CompileOptions(state, required=True))
    cache, rng = SequenceStore(state, 300, slots=2), np.random.default_rng(4)
    values = {name: normal(rng, rows, 512) for name, rows in (("q", 1), ("k", 280), ("v", 280))}
    for _ in range(2):
        cache.reserve(cache.open(), 280)
    outs = [executable(Batch.of([0] * 280, 0, slot), cache, values)["out"] for slot in (0, 1, 0)]
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[0], outs[2])
    executable.close()
    backend.close()
