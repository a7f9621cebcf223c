"""Cut a Llama to the vocabulary of some text: a Hugging Face directory to train.

    python -m tools.train_default.from_teacher.cut --model SmolLM2-135M-Instruct.Q4_1.gguf \\
        --text text/real.jsonl text/brief.jsonl text/books.jsonl --vocab-size 6144 --out cut/

Its tokenizer is a part of the model's own (`vocabulary.py`) with the special tokens of the default
model's chats, so that texts, chats and tokens are made as for the default model. All layers stay;
of the embedding, which is the head, the rows that are named. No torch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.base import Checkpoint
from edgerun_export.source.model import interpret
from tools.train_default.from_teacher.vocabulary import cut
from tools.train_default.tokenizer import END, SPECIAL, TEXT, write_files

MARKERS = re.compile("|".join(re.escape(token) for token in SPECIAL))


def read_texts(paths: Sequence[Path], count: int) -> Iterator[str]:
    """The first documents of each file, a JSON string a line, without the markers of chats."""
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for line in itertools.islice(file, count):
                yield MARKERS.sub("\n", json.loads(line))


def write_cut(checkpoint: Checkpoint, texts: Iterator[str], size: int, out: Path) -> None:
    """Writes config, weights (float32) and tokenizer.

    Raises:
        ValueError: the model's head is not its embedding.
    """
    source, _ = interpret(checkpoint)
    spec = source.spec
    if not spec.tied:
        raise ValueError("only models whose head is their embedding are cut")
    content, rows = cut(checkpoint.tokenizer_files()["tokenizer.json"].decode(), texts, size)
    write_files(Tokenizer.from_str(content), out, 512)
    tensors = {
        name: source.vector(name) if len(shape) == 1 else source.matrix(name)
        for name, shape in spec.tensors().items()
    }
    table = tensors[spec.embedding_weight]
    tensors[spec.embedding_weight] = np.stack([table[ids].mean(axis=0) for ids in rows])
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    text, end = SPECIAL.index(TEXT), SPECIAL.index(END)
    ids = {"bos_token_id": text, "eos_token_id": [end, text], "pad_token_id": text}
    config = {**checkpoint.config, **ids, "eos_token_id": end, "vocab_size": size}
    for name, fields in (("config", config), ("generation_config", ids)):
        (out / f"{name}.json").write_text(json.dumps(fields, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="whatever edgerun export takes")
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--documents", type=int, default=30_000, help="read at most, of each text")
    parser.add_argument("--vocab-size", type=int, default=6144)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_checkpoint(args.model) as checkpoint:
        write_cut(checkpoint, read_texts(args.text, args.documents), args.vocab_size, args.out)


if __name__ == "__main__":
    main()
