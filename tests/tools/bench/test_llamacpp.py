"""llama.cpp beside our GPU: as many experts there, and a sentence where it cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf import GGUFWriter

from tools.bench.cuda.llamacpp import compared, layer_count

SCRIPT = """#!/bin/sh
echo "$@" >> {log}
echo 'model is loaded' >&2
echo '{answer}'
exit {code}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    writer = GGUFWriter(tmp_path / "olmoe.gguf", "olmoe")
    writer.add_block_count(16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tmp_path / "olmoe.gguf"


def bench(folder: Path, backends: str = "CUDA", code: int = 0) -> str:
    path = folder / "llama-bench"
    answer = json.dumps([{"backends": backends, "avg_ts": 12.345}])
    path.write_text(SCRIPT.format(log=folder / "log", answer=answer, code=code))
    path.chmod(0o755)
    return str(path)


def test_experts_of_whole_layers_are_left_to_the_processor(model: Path) -> None:
    assert layer_count(model) == 16
    lines = list(compared([model], [0.1, 0.25, 1.0], 64, 1, bench(model.parent)))
    assert lines == [
        f"olmoe.gguf in llama.cpp, {share} of experts: 12.35 tokens/s"
        for share in ("6%", "25%", "100%")
    ]
    asked = [line.split() for line in (model.parent / "log").read_text().splitlines()]
    assert [line[line.index("-ncmoe") + 1] for line in asked] == ["15", "12", "0"]
    for line in asked:
        pairs = dict(zip(line[::2], line[1::2], strict=True))
        assert (pairs["-m"], pairs["-mg"], pairs["-n"]) == (str(model), "1", "64")


def test_what_cannot_be_asked_is_said_once(model: Path) -> None:
    absent = list(compared([model], [0.5], 8, 0, "no-such-bench"))
    assert absent == [
        "llama.cpp was not measured: there is no no-such-bench here; build it with -DGGML_CUDA=ON"
    ]
    (line,) = compared([model], [0.5, 1.0], 8, 0, bench(model.parent, backends="CPU"))
    assert line.endswith("llama-bench was built without CUDA (CPU); add -DGGML_CUDA=ON")
    (line,) = compared([model], [0.5, 1.0], 8, 0, bench(model.parent, code=3))
    assert line.endswith("ended with code 3: model is loaded")
    assert list(compared([], [0.5], 8, 0, "no-such-bench")) == []


@pytest.mark.parametrize(
    "content", [None, b"", b"no model at all", b"GGUF\x03\0\0\0" + b"\xff" * 40]
)
def test_what_is_no_gguf_is_said_and_the_next_one_measured(
    model: Path, content: bytes | None
) -> None:
    other = model.parent / "other.gguf"
    if content is not None:
        other.write_bytes(content)
    said, measured = compared([other, model], [1.0], 8, 0, bench(model.parent))
    assert "other.gguf was not measured: it is no GGUF file" in said
    assert "tokens/s" in measured
