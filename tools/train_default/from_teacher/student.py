"""Weights for a student to begin with: its teacher's embedding, in as many dimensions as it has.

    python -m tools.train_default.from_teacher.student --teacher teacher/ \\
        --recipe tools/train_default/recipes/taught.toml --out initial/

The student has the teacher's vocabulary. Of the teacher's table the directions in which rows differ
most are kept, so that words that are alike for the teacher begin alike; all else begins at random.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tools.train_default.from_teacher.llama import load_llama
from tools.train_default.model import TernaryLM
from tools.train_default.recipe import Recipe
from tools.train_default.save import save_hf

DEVIATION = 0.05  # of what an embedding begins with


def narrowed(table: Tensor, size: int) -> Tensor:
    """Rows [vocab, size] whose products with each other are nearest to those of a table's rows.

    They are scaled to the deviation of new embeddings.
    """
    left, values, _ = torch.linalg.svd(table, full_matrices=False)
    rows = left[:, :size] * values[:size]
    if rows.shape[1] < size:
        raise ValueError(f"the teacher has {rows.shape[1]} dimensions, and {size} are asked for")
    return rows * (DEVIATION / rows.std())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    recipe = Recipe.read(args.recipe)
    table = load_llama(args.teacher).embed_tokens.weight.detach()
    torch.manual_seed(recipe.seed)
    model = TernaryLM(replace(recipe.model, vocab_size=len(table)))
    with torch.no_grad():
        model.embed_tokens.weight.copy_(narrowed(table, recipe.model.hidden_size))
    save_hf(model, args.teacher, args.out)


if __name__ == "__main__":
    main()
