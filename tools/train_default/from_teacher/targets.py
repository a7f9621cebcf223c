"""Write down what a teacher says of every token of some sources: its likeliest next tokens.

    python -m tools.train_default.from_teacher.targets --model teacher/ --tokens tokens/ \\
        --sources real --out targets/

Every document is read by itself. A source takes 4 k bytes a token. It can be stopped at any moment;
the same command goes on, `<source>.done` having the number of documents that are written.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tools.train_default.batches import Source, load_sources
from tools.train_default.from_teacher.llama import Llama, load_llama
from tools.train_default.from_teacher.soft import note_of, open_targets
from tools.train_default.model import LanguageModel

Array = np.ndarray
BATCHES_A_NOTE = 16


def batches(source: Source, tokens: int, context: int) -> Iterator[list[slice]]:
    """Where documents of nearly equal length are, at most so many tokens at a time with padding."""
    lengths = np.minimum(np.diff(source.starts), context)
    batch: list[slice] = []
    for document in np.argsort(lengths, kind="stable"):
        size = int(lengths[document])
        if batch and (len(batch) + 1) * size > tokens:
            yield batch
            batch = []
        start = int(source.starts[document])
        batch.append(slice(start, start + size))
    yield batch


@torch.inference_mode()
def likeliest(model: LanguageModel, rows: list[Array], k: int) -> list[tuple[Array, Array]]:
    """Of each row of ids, the ids and log p [tokens, k] of what comes after each token."""
    ids = torch.full((len(rows), max(map(len, rows))), 0)
    for row, given in zip(ids, rows, strict=True):
        row[: len(given)] = torch.from_numpy(given.astype(np.int64))
    device = model.cos.device
    logs = model(ids.to(device)).log_softmax(-1).topk(k, dim=-1)
    log_p, tokens = logs.values.cpu().numpy(), logs.indices.cpu().numpy()
    return [(tokens[at, : len(row)], log_p[at, : len(row)]) for at, row in enumerate(rows)]


def write_targets(
    model: Llama, name: str, source: Source, k: int, tokens: int, out: Path
) -> Iterator[int]:
    """Goes on with a source; yields the number of tokens that a batch had."""
    ids, log_p = open_targets(out, name, len(source.ids), k)
    note, done = note_of(out, name), 0
    before = int(note.read_text()) if note.exists() else 0
    for at, batch in enumerate(batches(source, tokens, model.config.max_positions)):
        done += len(batch)
        if done <= before:
            continue
        rows = [source.ids[part] for part in batch]
        for part, said in zip(batch, likeliest(model, rows, k), strict=True):
            ids[part], log_p[part] = said
        if at % BATCHES_A_NOTE == 0 or done == len(source.starts) - 1:
            log_p.flush()
            ids.flush()
            note.with_suffix(".new").write_text(str(done))
            os.replace(note.with_suffix(".new"), note)
        yield sum(map(len, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--tokens", type=Path, required=True, help="of `corpus.py tokens`")
    parser.add_argument("--sources", nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("-k", type=int, default=24)
    parser.add_argument("--context", type=int, default=1024, help="what is beyond it is left out")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_llama(args.model, args.context).to(args.device).eval()
    sources = load_sources(args.tokens)
    for name in args.sources:
        began, total, said = time.time(), 0, 0.0
        for count in write_targets(model, name, sources[name], args.k, args.batch_tokens, args.out):
            total += count
            if time.time() - said > 30:
                said = time.time()
                speed = total / (said - began)
                print(f"{name}: {total} tokens, {speed:.0f} a second", flush=True)


if __name__ == "__main__":
    main()
