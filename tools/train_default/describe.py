"""Write the recipe of a finished run: settings, data, licences, course and result, as TOML.

    python -m tools.train_default.describe --text text/ --tokens tokens/ --run run/ \\
        --held-out valid.txt --hf hf/ --out recipe.toml

`--earlier` names the recipe of the finished run that this one went on from (`--start-from`);
its settings, mix, data and course are kept as tables below `[earlier]`, and so are those of the run
before that one, below `[earlier.earlier]`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import tomllib
from tokenizers import Tokenizer

from tools.train_default.evaluate import bits_per_byte, held_out_stories, int8_embedding
from tools.train_default.model import TernaryLM
from tools.train_default.recipe import Recipe
from tools.train_default.save import SAMPLING, load_hf

SOURCES = (
    (
        "TinyStories (excerpts), roneneldan/TinyStories",
        "CDLA-Sharing-1.0",
        "real, chat, fine, follow, brief, asked, wide",
    ),
    ("stories260K, karpathy/llama2.c, sampled as a teacher", "MIT", "teacher, chat"),
    ("storybooks: global-asp/asp-source, pb-source, bookdash", "CC-BY (per book)", "books"),
    ("fables: klusai/tinyfabulist", "MIT", "books"),
    (
        "this project's generator and tables",
        "the project's own",
        "chat, fine, follow, brief, asked, wide",
    ),
    (
        "nouns of storybooks, fables and fairytaleqa",
        "single words",
        "wide",
    ),
)
TEACHER = ("SmolLM2-135M-Instruct, trained on real, asked and books", "Apache-2.0", "soft targets")


def toml_table(name: str, values: Mapping[str, Any]) -> list[str]:
    """A table of plain values; JSON's notation of numbers, strings and lists is TOML's as well."""
    return [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]


def method(recipe: Recipe, earlier: Path | None) -> str:
    """What a run is, in a line."""
    taught = ", taught by a larger model" if recipe.soft_weight else " from scratch"
    return f"ternary (BitNet b1.58){taught}{', goes on from [earlier]' if earlier else ''}"


def data_sizes(text: Path, tokens: Path) -> dict[str, dict[str, int]]:
    """Documents, UTF-8 bytes and tokens of every source."""
    sizes = {}
    for path in sorted(tokens.glob("*.npz")):
        texts = [json.loads(line) for line in (text / f"{path.stem}.jsonl").open()]
        with np.load(path) as file:
            count = len(file["ids"])
        size = sum(len(document.encode()) for document in texts)
        sizes[path.stem] = {"documents": len(texts), "bytes": size, "tokens": count}
    return sizes


def runs_of(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tables of a described run and of all that it goes on from, the last one first."""
    return [fields, *runs_of(fields["earlier"])] if "earlier" in fields else [fields]


def sources(recipe: Recipe, earlier: Path | None) -> list[str]:
    """A table for each source of what the recipe's run reads, and the runs that it goes on from."""
    runs = runs_of(tomllib.loads(earlier.read_text())) if earlier else []
    texts = recipe.mix.keys() | {name for run in runs for name in run.get("mix", ())}
    is_taught = recipe.soft_weight or any(
        run.get("training", {}).get("soft_weight") for run in runs
    )
    rows = [row for row in SOURCES if texts & set(row[2].split(", "))]
    lines = []
    for source, licence, used in [*rows, *([TEACHER] if is_taught else [])]:
        row = {"name": source, "licence": licence, "used_in": used}
        lines += ["[[source]]", *toml_table("", row)[1:]]
    return lines


def model_sizes(model: TernaryLM) -> dict[str, int]:
    """Parameters, and bytes at 2 bits a ternary weight and int8 with a 16-bit scale per 32."""
    counts = {name: p.numel() for name, p in model.masters()}
    embedding = counts["embed_tokens.weight"]
    ternary = sum(n for name, n in counts.items() if "proj" in name)
    routers = sum(n for name, n in counts.items() if name.endswith(".mlp.gate.weight"))
    norms = sum(counts.values()) - embedding - ternary - routers
    weights = ternary // 4 + embedding + embedding // 32 * 2 + (norms + routers) * 4
    sizes = {"embedding": embedding, "ternary": ternary, "norms": norms, "packed_bytes": weights}
    return {**sizes, **({"routers": routers} if routers else {})}


def course(run: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "train.log").open()]
    last = rows[-1]
    return {key: last[key] for key in ("step", "tokens", "seconds")}


def quality(hf: Path, held_out: Path) -> dict[str, Any]:
    """Bits per byte of all held-out stories, with the trained and with the int8 embedding."""
    model, tokenizer = load_hf(hf), Tokenizer.from_file(str(hf / "tokenizer.json"))
    stories = held_out_stories(held_out)
    trained = bits_per_byte(model, tokenizer, stories)
    first = bits_per_byte(model, tokenizer, stories[:16])
    int8_embedding(model)
    rounded = bits_per_byte(model, tokenizer, stories)
    return {
        "held_out_stories": len(stories),
        "bits_per_byte": round(trained, 4),
        "bits_per_byte_first_16_stories": round(first, 4),
        "bits_per_byte_int8_embedding": round(rounded, 4),
    }


def earlier_runs(recipe: Path) -> list[str]:
    """The tables of a finished run, and of those before it, that say how they were made."""
    lines = []
    for depth, fields in enumerate(runs_of(tomllib.loads(recipe.read_text())), 1):
        tables = {name: fields[name] for name in ("training", "mix", "course")}
        tables |= {f"data.{name}": sizes for name, sizes in fields["data"].items()}
        for name, table in tables.items():
            lines += toml_table(f"{'earlier.' * depth}{name}", table)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("text", "tokens", "run", "held-out", "hf", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--recipe", type=Path, help="as given to train.py")
    parser.add_argument("--earlier", type=Path, help="recipe of the run that this one went on from")
    parser.add_argument(
        "--note", action="append", default=[], help="what else to know (repeatable)"
    )
    args = parser.parse_args()

    recipe = Recipe.read(args.recipe) if args.recipe else Recipe()
    settings = asdict(recipe)
    mix, model = settings.pop("mix"), settings.pop("model")
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    lines = ["# How this model was made; tools/train_default/README.md has the commands.", ""]
    lines += toml_table("training", {"method": method(recipe, args.earlier), **settings})
    lines += toml_table("mix", {"shares": "before and during the decay", **mix})
    lines += toml_table("model", {**model, **model_sizes(load_hf(args.hf))})
    for name, sizes in data_sizes(args.text, args.tokens).items():
        lines += toml_table(f"data.{name}", sizes)
    lines += sources(recipe, args.earlier)
    lines += toml_table("sampling", SAMPLING)
    lines += toml_table("course", {**course(args.run), "finished": now, "notes": args.note})
    lines += toml_table("quality", quality(args.hf, args.held_out))
    lines += earlier_runs(args.earlier) if args.earlier else []
    args.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
