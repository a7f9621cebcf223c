"""A real model through the whole program: file to bundle to text, on our own kernels."""

import json

import pytest

from edgerun import load
from edgerun.llm.llm import LLM
from edgerun.llm.scoring import score_texts
from edgerun_export.pipeline import ExportOptions, export

STORIES = 12


@pytest.fixture(scope="module")
def bundles(shared_data, tmp_path_factory):
    folders = {}

    def bundle(weights):
        if weights not in folders:
            folders[weights] = tmp_path_factory.mktemp("stories") / weights
            source = shared_data / "models" / "stories260K" / "stories260K.bin"
            group = {} if weights == "fp32" else {"group_size": 32}
            export(source, folders[weights], ExportOptions(weights=weights, **group))
        return folders[weights]

    return bundle


@pytest.mark.parametrize("backend", ["cpu", "reference", "onnxruntime"])
@pytest.mark.parametrize("golden_file", ["golden_bos.json", "golden_once.json"])
def test_greedy_text_is_the_golden_text(golden_file, backend, bundles, shared_data):
    golden = json.loads((shared_data / "models" / "stories260K" / golden_file).read_text())
    prompt = golden["prompt_ids"]
    generated = golden["greedy_ids"]
    if generated[: len(prompt)] == prompt:
        generated = generated[len(prompt) :]
    with load(bundles("fp32"), backend=backend, threads=1, kv_cache="fp32") as llm:
        completion = llm.generate(prompt, temperature=0, max_tokens=len(generated), ignore_eos=True)
        assert completion.ids == generated
        assert llm.tokenizer.decode([*prompt, *completion.ids]).strip() == golden["text"].strip()
        assert len(golden["text"]) >= 464


def perplexity(llm: LLM, texts: list[str]) -> float:
    *_, total = score_texts(llm, texts)
    return total.perplexity


@pytest.mark.parametrize(("weights", "allowed"), [("int8", 1.005), ("int4", 1.10)])
def test_perplexity_stays_close_to_fp32(weights, allowed, bundles, shared_data):
    text = (shared_data / "corpora" / "tinystories" / "valid.txt").read_text()
    stories = [part.strip() for part in text.split("<|endoftext|>") if part.strip()][:STORIES]
    with load(bundles("fp32"), threads=1) as exact, load(bundles(weights), threads=1) as small:
        assert perplexity(small, stories) <= allowed * perplexity(exact, stories)
