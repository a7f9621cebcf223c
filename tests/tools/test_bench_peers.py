"""The comparison with other runtimes, without any of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
STEADY = {"tokens_per_s": 20.0, "own_cores": 2.0, "other_cores": 0.0}
# Stands for `python -m peers.worker` in a process test: says it is ready and obeys.
OBEDIENT = "import sys; print('{}', flush=True); [print(line, flush=True) for line in sys.stdin]"
DYING = "import sys; print('{}', flush=True); sys.exit('no such model')"


@pytest.fixture(autouse=True)
def tools_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))


def state(rss: int = 1100) -> dict[str, Any]:
    return {"rss_bytes": rss, "anon_bytes": 1000, "file_bytes": 100, "idle_cores": 0.0}


def make_result() -> dict[str, Any]:
    from peers import figures

    samples = {
        "edgerun:int8": {"decode": [26.0, 30.0, 28.0], "prefill": [60.0, 60.0, 60.0]},
        "llamacpp:tq2_0": {"decode": [20.0, 20.0, 28.0], "prefill": [40.0, 50.0, 60.0]},
    }
    peers: dict[str, Any] = {
        name: figures.peer_figures(speeds, 10**9, 1000, 40e9, state())
        for name, speeds in samples.items()
    }
    peers["onnxruntime:int8"] = {"error": "not installed"}
    ratios = figures.all_ratios(samples)
    return {"peers": peers, "ratios": ratios, "goals": figures.goals(peers, ratios)}


def test_ratios_are_taken_round_by_round() -> None:
    from peers import figures

    # The medians' ratio would be 3.
    assert figures.pair_ratios([1.0, 3.0, 8.0], [1.0, 1.0, 2.0])["median"] == 3.0
    assert figures.pair_ratios([1.0, 3.0, 9.0], [1.0, 2.0, 1.0]) == {
        "median": 1.5,
        "min": 1.0,
        "max": 9.0,
    }


def test_figures_say_bandwidth_and_memory() -> None:
    figures = make_result()["peers"]["edgerun:int8"]
    assert figures["weight_gb_per_s"] == 28.0
    assert figures["bandwidth_share"] == 0.7
    assert figures["memory_over_weights"] == 1.1


def test_goals_compare_named_rivals_only() -> None:
    goals = {row["name"]: row for row in make_result()["goals"]}
    assert goals["decode edgerun:int8 / llamacpp:tq2_0"]["met"]
    assert goals["bandwidth share edgerun:int8"]["met"]
    assert goals["memory / weights edgerun:int8"]["met"]
    assert not any("q4_0" in name for name in goals)


def test_onnxruntime_is_held_against_the_same_bundle() -> None:
    from peers import figures

    assert figures._counts("edgerun:int4", "onnxruntime:int4")
    assert not figures._counts("edgerun:int4", "onnxruntime:int8")


def test_table_shows_failures() -> None:
    from peers import figures

    assert "| onnxruntime:int8 | failed: not installed |" in figures.table(make_result())


def test_memory_is_read_from_status() -> None:
    from peers.usage import parse_status

    text = "Name:\tx\nVmRSS:\t  12 kB\nRssAnon:\t 8 kB\nRssFile:\t 4 kB\n"
    assert parse_status(text) == {"rss_bytes": 12288, "anon_bytes": 8192, "file_bytes": 4096}


def test_end_of_a_process_is_described() -> None:
    from peers.process import describe_end

    assert describe_end(-11, "") == "killed by signal 11"
    assert describe_end(1, "a\nb\n\nc\nd\n") == "ended with status 1: b; c; d"


class FakeRunner:
    version, vocab_size = "0", 50

    def __init__(self) -> None:
        self.calls: list[int] = []

    def reset(self) -> None:
        self.calls.append(0)

    def run(self, ids: list[int]) -> int:
        assert all(0 <= id_ < self.vocab_size for id_ in ids)
        self.calls.append(len(ids))
        return 0


def test_worker_decodes_token_by_token_and_prefills_at_once() -> None:
    from peers.worker import Worker

    runner = FakeRunner()
    worker = Worker(runner)
    reply = worker.answer({"do": "decode", "prompt": 5, "tokens": 3})
    assert runner.calls == [0, 5, 1, 1, 1]
    assert reply["tokens_per_s"] > 0
    worker.answer({"do": "prefill", "tokens": 7})
    assert runner.calls[-2:] == [0, 7]


@pytest.fixture
def make_peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    from peers import process

    started: list[Any] = []
    start = process.subprocess.Popen

    def make(script: str) -> Any:
        def popen(command: list[str], **options: Any) -> Any:
            return start([sys.executable, "-c", script], **options)

        monkeypatch.setattr(process.subprocess, "Popen", popen)
        spec = process.PeerSpec("llamacpp", "tq2_0", tmp_path, sys.executable)
        started.append(process.Peer(spec, 1, 8))
        return started[-1]

    yield make
    for peer in started:
        peer.close()


def test_peer_answers_commands(make_peer: Any) -> None:
    peer = make_peer(OBEDIENT)
    assert peer.ready(30) == {}
    assert peer.ask(30, do="prefill", tokens=3) == {"do": "prefill", "tokens": 3}


def test_peer_that_dies_is_an_error_with_its_last_words(make_peer: Any) -> None:
    from peers.process import PeerError

    peer = make_peer(DYING)
    peer.ready(30)
    with pytest.raises(PeerError, match="status 1: no such model"):
        peer.ask(30, do="state")


def test_missing_interpreter_is_an_error(tmp_path: Path) -> None:
    from peers.process import Peer, PeerError, PeerSpec

    spec = PeerSpec("llamacpp", "tq2_0", tmp_path, str(tmp_path / "python"))
    with pytest.raises(PeerError, match="cannot start"):
        Peer(spec, 1, 8)


def test_disturbed_samples_are_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import bench_peers
    from peers.process import PeerSpec

    monkeypatch.setattr(sys, "argv", ["bench_peers.py", "tiny", "--work", str(tmp_path)])
    entry = bench_peers.Entry(PeerSpec("edgerun", "int8", tmp_path, "python"))
    replies = iter([STEADY | {"other_cores": 1.0}, STEADY, STEADY])
    monkeypatch.setattr(bench_peers.Entry, "ask", lambda self, **command: next(replies))
    bench_peers.measure(entry, bench_peers.parse_arguments())
    assert entry.samples == {"decode": [STEADY], "prefill": [STEADY]}


def test_bandwidth_is_measured_over_a_whole_buffer() -> None:
    from peers.bandwidth import CHUNK_WORDS, BandwidthMeter

    meter = BandwidthMeter(2, buffer_bytes=3 * 8 * CHUNK_WORDS)
    assert meter.measure(passes=1) > 1e8
    meter.close()


def test_gguf_is_what_the_exporter_reads_as_ternary(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    import gguf
    from peers import gguf_file, models

    path = tmp_path / "model.gguf"
    gguf_file.write(models.config("tiny"), path, "tq2_0")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    head = tensors["token_embd.weight"]
    assert head.tensor_type == gguf.GGMLQuantizationType.Q6_K
    assert list(head.shape) == [256, 1024]
    down = tensors["blk.1.ffn_down.weight"]
    values = gguf.dequantize(down.data, down.tensor_type)
    assert values.shape == (256, 512)
    scale = np.abs(values).max()
    assert set(np.unique(values / scale)) == {-1.0, 0.0, 1.0}


def test_unknown_peer_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import bench_peers

    argv = ["bench_peers.py", "tiny", "--work", str(tmp_path), "--peers", "abacus:1"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit, match="no peer 'abacus:1'"):
        bench_peers.main()
