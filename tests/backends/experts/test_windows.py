"""Prompts of models whose layers see a window, longer than a call of such layers otherwise is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import edgerun
from edgerun.llm.llm import LLM
from edgerun.state.capacity import largest_call, sequence_bytes
from edgerun_export.pipeline import ExportOptions, export
from tests.backends.experts.test_layered import GREEDY, calls_of, ids, reads_by_expert
from tests.support.bundles import GOLDEN

CONTEXT = 1000
PROMPT = 700  # a call has 320 tokens where no experts are read


@pytest.fixture(scope="module", params=["gpt_oss", "lfm2_moe"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture with a window, or with convolutions, that takes longer texts than usual here."""
    root = tmp_path_factory.mktemp(request.param)
    shutil.copytree(GOLDEN / request.param, root / "checkpoint")
    path = root / "checkpoint" / "config.json"
    config = {**json.loads(path.read_text()), "max_position_embeddings": CONTEXT}
    path.write_text(json.dumps(config))
    export(root / "checkpoint", root / "bundle", ExportOptions(weights="int4"))
    return root / "bundle"


def load(folder: Path, **options: Any) -> LLM:
    return edgerun.load(folder, backend="cpu", context=CONTEXT, kv_cache="fp32", **options)


@pytest.mark.parametrize("rows", [96, 1024])
def test_a_prompt_longer_than_a_window_reads_each_expert_once(folder: Path, rows: int) -> None:
    prompt = ids(PROMPT)
    with load(folder) as llm:
        assert llm.model.chunk_rows < PROMPT
        expected = llm.generate(prompt, max_tokens=12, **GREEDY).ids
        scores = [block.copy() for block in llm.logits(prompt[-200:])]
        short = sequence_bytes(llm.model.states, CONTEXT)
    with load(folder, expert_memory="70%", chunk_rows=rows) as llm:
        assert largest_call(llm.model.states) == CONTEXT
        assert sequence_bytes(llm.model.states, CONTEXT) > short, "pages until a call has ended"
        counts, calls = reads_by_expert(llm), calls_of(llm)
        assert llm.generate(prompt, max_tokens=1, **GREEDY).ids == expected[:1]
        assert calls == [PROMPT]
        assert counts
        assert max(counts.values()) == 1
        assert llm.generate(prompt, max_tokens=12, **GREEDY).ids == expected
        again = [block.copy() for block in llm.logits(prompt[-200:])]
    assert [row.tobytes() for block in again for row in block] == [
        row.tobytes() for block in scores for row in block
    ]
