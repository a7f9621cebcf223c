"""Rows of several sequences in one call compute what each sequence computes alone."""

import numpy as np
import pytest

from edgerun.state import Batch
from tests.support.bundles import bundle_of, runner

PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], list(range(10, 90)), [5, 3]]
NEXT = [8, 9, 7, 9]


def alone(folder, backend, prompt, token):
    with runner(folder, backend, max_rows=128) as model:
        return model.run(prompt), model.run([token])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backend", ["cpu", "reference", "onnxruntime"])
def test_a_joined_batch_equals_separate_ones(backend, threads):
    # NumPy sums in an order that depends on the rows, so that a value between two integers may be
    # rounded to either: with weights that need no rounded inputs it has nothing to round.
    folder = bundle_of("mistral", weights="fp32" if backend == "reference" else "int4")
    with runner(folder, backend, threads=threads, max_rows=128, sequences=4) as model:
        others = [model.cache.open() for _ in PROMPTS[1:]]
        sequences = [model.sequence, *others]
        for sequence, prompt in zip(sequences, PROMPTS, strict=True):
            model.cache.reserve(sequence, len(prompt) + 1)
        pairs = list(zip(PROMPTS, sequences, strict=True))
        first = Batch.join([Batch.of(ids, 0, slot, logits="all") for ids, slot in pairs])
        prefill = model.programs.run(first, model.cache)["logits"].copy()
        steps = zip(NEXT, pairs, strict=True)
        second = Batch.join([Batch.of([token], len(ids), slot) for token, (ids, slot) in steps])
        decode = model.programs.run(second, model.cache)["logits"].copy()
    start = 0
    for index, (prompt, token) in enumerate(zip(PROMPTS, NEXT, strict=True)):
        expected, following = alone(folder, backend, prompt, token)
        np.testing.assert_allclose(prefill[start : start + len(prompt)], expected, atol=2e-4)
        np.testing.assert_allclose(decode[index : index + 1], following, atol=2e-4)
        start += len(prompt)


@pytest.mark.parametrize("kv_cache", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize(("name", "weights"), [("mistral", "int4"), ("bitnet-packed", "ternary")])
def test_logits_have_the_same_bits_token_by_token_and_together(name, weights, kv_cache):
    folder, ids = bundle_of(name, weights=weights), [7 * index % 90 for index in range(70)]
    with runner(folder, "cpu", kv_cache=kv_cache, max_rows=128) as model:
        together = model.run(ids)
    with runner(folder, "cpu", kv_cache=kv_cache) as model:
        alone = np.concatenate([model.run([id_]) for id_ in ids])
    np.testing.assert_array_equal(together, alone)
