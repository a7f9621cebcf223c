"""Models whose experts do not all fit into memory: the same tokens, and what can go wrong."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.backends.cpu.experts import outlook, prefetch, source, stream
from edgerun.backends.cpu.experts.protocol import Post
from edgerun.backends.cpu.experts.stream import ExpertStream
from edgerun.errors import BackendError, InputError
from edgerun.files.direct import DirectFile
from edgerun.kernels.host.huge_pages import ReadBuffer
from edgerun.kernels.run.residency import LOCK, PATIENCE
from edgerun.llm.llm import LLM
from tests.support.bundles import bundle_of
from tests.support.expert_faults.process import in_child
from tests.support.expert_faults.session import check_slots
from tests.support.interrupts import repeat_until_interrupted

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
MODELS = [
    ("olmoe", {"weights": "int4", "scales": "fp16"}),  # scales of half the size, if not read as is
    *(("mixtral", {"weights": weights}) for weights in ("int8", "int4_asym")),
    ("qwen3_moe", {"weights": "ternary"}),
    ("qwen3_moe", {"weights": "fp32"}),
    ("mixtral", {"weights": "int4", "activations": "fp32"}),
    ("gpt_oss", {"weights": "int4_asym"}),  # with biases: slots are filled step by step
    ("qwen2_moe", {"weights": "int4"}),
    ("lfm2_moe", {"weights": "int4"}),
    ("deepseek_v3-groups", {"weights": "int4"}),
]


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(1, 250, length).tolist() for length in (1, 5, 40)]


def stream_of(llm: LLM) -> ExpertStream:
    """What reads a model's experts."""
    (backend,) = llm.model.backends
    expert_stream = backend._shared.experts.stream  # type: ignore[attr-defined]
    assert isinstance(expert_stream, ExpertStream)
    return expert_stream


def smallest(folder: Path) -> int:
    """The least memory that will do, as the refusal says."""
    with pytest.raises(InputError, match="bytes are too few for experts: a token needs") as refusal:
        edgerun.load(folder, backend="cpu", expert_memory=1)
    return int(str(refusal.value).split("allow ")[1].split()[0])


def generated(llm: LLM) -> list[list[int]]:
    """Ids of some prompts, alone and together."""
    alone = [llm.generate(prompt, max_tokens=32, **GREEDY).ids for prompt in prompts()]
    together = llm.generate_many(prompts(), max_tokens=20, **GREEDY)
    assert [done.ids for done in together] == [ids[:20] for ids in alone]
    return alone


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_every_budget_gives_the_same_tokens(name: str, options: dict[str, str]) -> None:
    folder = bundle_of(name, **options)
    least = smallest(folder)
    with pytest.raises(InputError, match="too few"):
        edgerun.load(folder, backend="cpu", expert_memory=least - 1)
    with edgerun.load(folder, backend="cpu") as llm:
        expected = generated(llm)
        logits = [block.copy() for block in llm.logits(prompts()[2])]
    for budget in (least, least * 4 // 3, least * 2):
        with edgerun.load(folder, backend="cpu", expert_memory=budget, threads=2) as llm:
            assert generated(llm) == expected
            experts = stream_of(llm)
            assert experts.slots.nbytes <= budget
            assert len(experts._pool.resident) <= len(experts.slots)
            for computed, block in zip(llm.logits(prompts()[2]), logits, strict=True):
                np.testing.assert_array_equal(computed, block)


def test_memory_for_all_experts_is_as_good_as_no_limit() -> None:
    folder = bundle_of("olmoe", weights="int4")
    with edgerun.load(folder, backend="cpu", expert_memory=1 << 30) as llm:
        (backend,) = llm.model.backends
        assert backend._shared.experts.stream is None  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def folder() -> Path:
    return bundle_of("olmoe", weights="int4")


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[int]:
    with edgerun.load(folder, backend="cpu") as llm:
        return ids_of(llm)


def ids_of(llm: LLM) -> list[int]:
    return llm.generate(prompts()[1], max_tokens=30, **GREEDY).ids


def loaded(folder: Path, factor: int = 1) -> LLM:
    return edgerun.load(folder, backend="cpu", expert_memory=smallest(folder) * factor)


@pytest.mark.parametrize("guess", ["right", "wrong", "none"])
def test_reading_ahead_changes_no_token(
    folder: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch, guess: str
) -> None:
    """However good guesses are, and however many of them are read."""
    monkeypatch.setattr(prefetch.Prefetch, "pays", lambda self, ahead: True)
    monkeypatch.setattr(prefetch.Prefetch, "begin_run", lambda self: guess != "none")
    monkeypatch.setattr(prefetch.Prefetch, "looks", lambda self, ahead: guess != "none")
    if guess == "wrong":
        choose = outlook.Outlook.guess

        def wrong(self: outlook.Outlook, post: Post, layer: int) -> list[int]:
            right = choose(self, post, layer)
            experts = len(self._words.layers[layer].table)
            return sorted({*range(experts)} - {*right})[: len(right)]

        monkeypatch.setattr(outlook.Outlook, "guess", wrong)
    with loaded(folder, 2) as llm:
        assert ids_of(llm) == expected
        reads, slots = llm.expert_reads(), len(stream_of(llm).slots)
        assert reads is not None
        (report,) = llm.reports()
    assert bool(reads.guessed) == bool(reads.early) == (guess != "none")
    assert reads.wasted <= reads.early <= reads.read_bytes
    if guess == "none":
        assert reads.recall is None and not report.rows[0]["foreseen"]
    else:
        assert reads.recall is not None and slots
        assert (reads.recall > 0.5) == (guess == "right")  # 0.60 to 0.65, and 0.33 to 0.38


def data_file(folder: Path) -> Path:
    """The file of weights."""
    (file,) = (path for path in folder.iterdir() if path.suffix == ".data")
    return file


class Faulty(DirectFile):
    """A file whose reads do what a test says, from some read on, and are left to nobody else."""

    reads = 0
    from_read = 0
    act: Callable[[], None] = staticmethod(lambda: None)

    def read_into(self, offset: int, length: int, buffer: memoryview) -> memoryview:
        Faulty.reads += 1
        if Faulty.reads >= Faulty.from_read:
            Faulty.act()
        return super().read_into(offset, length, buffer)

    def direct_read(self, offset: int, length: int) -> None:
        return None


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Faulty]]:
    monkeypatch.setattr(source, "DirectFile", Faulty)
    Faulty.reads, Faulty.from_read, Faulty.act = 0, 1 << 30, staticmethod(lambda: None)
    yield Faulty


def fails_and_recovers(
    llm: LLM, faults: type[Faulty], act: Callable[[], None], message: str, expected: list[int]
) -> None:
    """A fault in the middle of a reply ends it; once it is over, all is as before."""
    faults.act, faults.from_read = staticmethod(act), faults.reads + 25
    with pytest.raises(BackendError, match=message):
        ids_of(llm)
    faults.from_read = 1 << 30
    assert ids_of(llm) == expected
    check_slots(stream_of(llm))


def test_a_read_that_fails_ends_the_reply_and_nothing_else(
    folder: Path, expected: list[int], faults: type[Faulty]
) -> None:
    def fail() -> None:
        raise BackendError("the file of weights cannot be read any more, at byte 7: gone")

    with loaded(folder) as llm:
        fails_and_recovers(llm, faults, fail, "^the file of weights cannot be read", expected)


def test_a_defect_in_a_reader_is_an_error_of_the_reply(
    folder: Path, expected: list[int], faults: type[Faulty]
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("of all things")

    with loaded(folder) as llm:
        fails_and_recovers(llm, faults, fail, "of all things", expected)


def wait_for_reads(llm: LLM, seconds: float) -> None:
    """Says how long a call waits for a read."""
    stream_of(llm)._words.control[PATIENCE] = int(seconds * 1e9)


def test_a_read_that_hangs_is_not_waited_for_for_ever(
    folder: Path, expected: list[int], faults: type[Faulty]
) -> None:
    goes_on = threading.Event()
    with loaded(folder) as llm:
        faults.act, faults.from_read = staticmethod(lambda: goes_on.wait(60)), 25
        wait_for_reads(llm, 0.3)
        for _ in range(2):
            with pytest.raises(BackendError, match="experts .* did not come within 10 s: the disk"):
                ids_of(llm)
        faults.from_read = 1 << 30
        goes_on.set()
        wait_for_reads(llm, 60)
        assert ids_of(llm) == expected


def test_a_file_that_is_cut_off_while_it_is_used_is_an_error(
    folder: Path, tmp_path: Path, faults: type[Faulty]
) -> None:
    own = tmp_path / "bundle"
    shutil.copytree(folder, own)
    file = data_file(own)
    with loaded(own) as llm:
        faults.act, faults.from_read = staticmethod(lambda: os.truncate(file, 4096)), 25
        for _ in range(2):
            with pytest.raises(BackendError, match="was changed or cut off since it was opened"):
                ids_of(llm)


def test_a_file_that_is_replaced_while_it_is_used_does_not_matter(
    folder: Path, expected: list[int], tmp_path: Path, faults: type[Faulty]
) -> None:
    """Another file under the name is another file; written over, it is an error."""
    own = tmp_path / "bundle"
    shutil.copytree(folder, own)
    file = data_file(own)

    a_time = threading.Lock()

    def exchange() -> None:
        with a_time:
            if not (tmp_path / "old").exists():
                file.rename(tmp_path / "old")
                file.write_bytes(b"something else")

    with loaded(own) as llm:
        faults.act, faults.from_read = staticmethod(exchange), 25
        assert ids_of(llm) == expected
        with (tmp_path / "old").open("r+b") as opened:
            opened.write(b"altered")
        with pytest.raises(BackendError, match="was changed or cut off"):
            ids_of(llm)


def test_scales_that_are_no_numbers_are_an_error(
    folder: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch, faults: type[Faulty]
) -> None:
    with loaded(folder) as llm:
        read, broken = source.ExpertSource.read, [False]

        def nan(self: Any, expert: int, buffer: ReadBuffer) -> source.Content:
            content = read(self, expert, buffer)
            if broken[0] and content.memory is not None:
                start = content.stored.places[1]  # of the first matrix's scales
                content.memory[start : start + 4].view(np.float32)[0] = np.nan
            return content

        monkeypatch.setattr(source.ExpertSource, "read", nan)
        break_ = lambda: broken.__setitem__(0, True)  # noqa: E731
        faults.act, faults.from_read = staticmethod(break_), 25
        with pytest.raises(BackendError, match="has scales that are infinite or no numbers"):
            ids_of(llm)
        faults.from_read, broken[0] = 1 << 30, False
        assert ids_of(llm) == expected


def test_of_prompts_together_each_has_its_own_error(folder: Path, faults: type[Faulty]) -> None:
    def fail() -> None:
        raise BackendError("no such sector")

    with loaded(folder) as llm:
        faults.act, faults.from_read = staticmethod(fail), 40
        done = llm.generate_many(prompts(), max_tokens=10, **GREEDY)
        assert [each.finish_reason for each in done] == ["error"] * 3
        faults.from_read = 1 << 30
        done = llm.generate_many(prompts(), max_tokens=10, **GREEDY)
        assert [each.finish_reason for each in done] == ["length"] * 3


def test_two_models_have_pools_of_their_own(folder: Path, expected: list[int]) -> None:
    with loaded(folder) as first, loaded(folder, 2) as other:
        replies: dict[int, list[int]] = {}
        threads = [
            threading.Thread(target=lambda at=at, llm=llm: replies.__setitem__(at, ids_of(llm)))  # type: ignore[misc]
            for at, llm in enumerate((first, other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert replies == {0: expected, 1: expected}
        assert stream_of(first).slots.shape[0] * 2 == stream_of(other).slots.shape[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_for_itself(
    folder: Path, expected: list[int], faults: type[Faulty]
) -> None:
    """Also where reads are in flight that the child will never see the end of."""
    goes_on = threading.Event()
    with loaded(folder) as llm:
        assert ids_of(llm) == expected
        faults.act, faults.from_read = staticmethod(lambda: goes_on.wait(60)), faults.reads + 5
        wait_for_reads(llm, 0.3)
        with pytest.raises(BackendError, match="did not come"):
            ids_of(llm)
        faults.from_read = 1 << 30
        wait_for_reads(llm, 60)
        control = stream_of(llm)._words.control
        control[LOCK] = 1  # somebody holds it who will not be in the child
        status = in_child(lambda: [ids_of(llm) for _ in range(2)] == [expected] * 2)
        control[LOCK] = 0
        goes_on.set()
        assert status == 0
        assert ids_of(llm) == expected


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="threads get no signals")
def test_ctrl_c_at_any_time_leaves_a_model_that_works(folder: Path, expected: list[int]) -> None:
    rng = random.Random(5)
    with loaded(folder) as llm:
        for _ in range(12):
            repeat_until_interrupted(lambda: ids_of(llm), rng, 0.15)
            assert ids_of(llm) == expected
        check_slots(stream_of(llm))


def test_closing_does_not_wait_for_a_read_that_hangs(
    folder: Path, faults: type[Faulty], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CLOSING_S", 0.1)
    goes_on = threading.Event()
    faults.act, faults.from_read = staticmethod(lambda: goes_on.wait(60)), 25
    llm = loaded(folder)
    wait_for_reads(llm, 0.3)
    with pytest.raises(BackendError, match="did not come"):
        ids_of(llm)
    readers = stream_of(llm)._threads
    llm.close()
    goes_on.set()
    for reader in readers:
        reader.join(30)
        assert not reader.is_alive()


def test_values_are_validated_as_ever(
    folder: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgerun import env

    monkeypatch.setenv("EDGERUN_VALIDATE", "1")
    env.settings.cache_clear()
    try:
        with loaded(folder) as llm:
            assert ids_of(llm)[:4] == expected[:4]
    finally:
        monkeypatch.undo()
        env.settings.cache_clear()
