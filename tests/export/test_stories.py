"""A real model: stories260K, from llama2.c's file to text."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

from edgerun_export.bundle_files import MODEL_FILE

STORIES = 40


@pytest.fixture(scope="module")
def folder(shared_data):
    return shared_data / "models" / "stories260K"


def forward(bundle: Path, ids: list[int]):
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(bundle / MODEL_FILE), settings)
    names = [value.name for value in session.get_inputs()][3:]
    empty = np.zeros((1, 4, 0, 8), np.float32)

    def run(ids):
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids))[None],
        }
        return session.run(["logits"], feeds | dict.fromkeys(names, empty))[0][0]

    return run(ids) if ids else run


def perplexity(bundle: Path, shared_data: Path) -> float:
    text = (shared_data / "corpora" / "tinystories" / "valid.txt").read_text()
    stories = [part.strip() for part in text.split("<|endoftext|>") if part.strip()]
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    run = forward(bundle, [])
    loss, count = 0.0, 0
    for story in stories[:STORIES]:
        ids = tokenizer.encode(story).ids[:512]
        logits = run(ids).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        chosen = logits[np.arange(len(ids) - 1), ids[1:]]
        loss += float((np.log(np.exp(logits[:-1]).sum(axis=-1)) - chosen).sum())
        count += len(ids) - 1
    return float(np.exp(loss / count))


@pytest.mark.parametrize("name", ["stories260K.bin", "stories260K_v1.bin"])
@pytest.mark.parametrize("golden_file", ["golden_bos.json", "golden_once.json"])
def test_greedy_ids_are_the_golden_ones(golden_file, name, folder, exported):
    golden = json.loads((folder / golden_file).read_text())
    expected = golden["greedy_ids"]
    bundle = exported(folder / name, weights="fp32").folder
    # One pass over the whole text: each position must prefer the token that follows.
    prompt = len(golden["prompt_ids"])
    ids = expected if expected[:prompt] == golden["prompt_ids"] else golden["prompt_ids"] + expected
    preferred = forward(bundle, ids).argmax(axis=-1)
    assert preferred[prompt - 1 : -1].tolist() == ids[prompt:]


def test_tokenizer_decodes_the_golden_text(folder, exported):
    golden = json.loads((folder / "golden_bos.json").read_text())
    bundle = exported(folder / "stories260K.bin", weights="fp32").folder
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    assert tokenizer.decode(golden["greedy_ids"]).strip() == golden["text"].strip()


def test_gguf_file_becomes_a_bundle_that_verifies(shared_data, exported):
    source = shared_data / "models" / "gguf-tiny-random-llama" / "llama-2-tiny-random.gguf"
    result = exported(source, verify=True)
    assert result.manifest["model"]["vocab_size"] == 32000
    assert result.manifest["source"]["kind"] == "gguf"
    assert result.recipe.head_weights == "fp32"  # rows of 8 weights


@pytest.mark.parametrize(("weights", "allowed"), [("int8", 1.005), ("int4", 1.16)])
def test_perplexity_stays_close_to_fp32(weights, allowed, folder, shared_data, exported):
    source = folder / "stories260K.bin"
    exact = perplexity(exported(source, weights="fp32").folder, shared_data)
    bundle = exported(source, weights=weights, group_size=32).folder
    assert perplexity(bundle, shared_data) <= allowed * exact
