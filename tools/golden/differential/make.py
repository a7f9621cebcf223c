"""Writes random tiny checkpoints with the logits that transformers computes.

    python -m tools.golden.differential.make OUT [--families llama qwen3 ...] [--count 20]
        [--seed 0] [--variants]

Needs torch and transformers, and nothing of edgerun. A checkpoint is a folder FAMILY-SEED as
transformers saves it, with a tokenizer and ``golden.npz``: ids of a prompt, the logits after each
of them, and those of the first few ids alone. ``--variants`` writes it with other spellings of
config.json, too, and with what transformers computes of those. ``compare`` exports them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import (  # noqa: E402
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)

from tools.golden.byte_tokenizer import BOS, write_json, write_tokenizer  # noqa: E402
from tools.golden.differential.parts import CONTEXT, Config, Draw  # noqa: E402
from tools.golden.differential.registry import FAMILIES, SAME_AS, drawn_config  # noqa: E402
from tools.golden.differential.variants import variants  # noqa: E402
from tools.golden.differential.weights import randomise  # noqa: E402

LENGTHS = (41, 66, 97)
# Attention and experts are computed in the plainest way.
PLAINLY = {"attn_implementation": "eager", "experts_implementation": "eager"}
SHORT = 16  # of ropes that are other ones for long texts, the first tokens are computed alone


def main() -> None:
    """Writes what the command line asks for; fails if transformers refuses any of it."""
    arguments = _arguments()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failures = 0
    for family in arguments.families:
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            folder = arguments.out / f"{family}-{seed}"
            try:
                write(family, seed, folder, with_variants=arguments.variants)
            except Exception as error:  # whatever it is, others can be written
                print(f"{folder.name}: {type(error).__name__}: {error}")
                shutil.rmtree(folder, ignore_errors=True)
                failures += 1
        print(family, flush=True)
    sys.exit(failures > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--families", nargs="+", choices=sorted(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--count", type=int, default=20, help="checkpoints of each family")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--variants", action="store_true")
    return parser.parse_args()


def write(family: str, seed: int, folder: Path, *, with_variants: bool) -> None:
    """Writes one checkpoint, and its variants."""
    model = make_model(family, drawn_config(family, seed))
    torch.manual_seed(seed)
    randomise(model)
    model.tie_weights()
    draw = Draw(f"{family} {seed} prompt")
    ids = torch.randint(0, 256, (1, draw.of(*LENGTHS)))
    ids[0, 0] = BOS
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    write_tokenizer(folder, CONTEXT)
    record(model, ids, folder)
    if family in SAME_AS:
        write_json(folder / "config.json", {**read_config(folder), "model_type": family})
    elif with_variants:
        write_variants(ids, folder, draw)


def model_class(config: Config) -> Any:
    """What makes and loads models with parts for pictures, or without."""
    return AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM


def make_model(family: str, config: Config) -> Any:
    """A model of transformers."""
    settings = CONFIG_MAPPING[SAME_AS.get(family, family)](**config)
    return model_class(config).from_config(settings, **PLAINLY).float().eval()


def record(model: Any, ids: torch.Tensor, folder: Path) -> None:
    """Writes ``golden.npz``.

    Raises:
        ValueError: a logit is not finite.
    """
    with torch.no_grad():
        logits, short = (
            model(part, use_cache=False).logits[0].numpy() for part in (ids, ids[:, :SHORT])
        )
    if not np.isfinite(logits).all():
        raise ValueError("logits are not finite")
    np.savez(folder / "golden.npz", ids=ids[0].numpy(), logits=logits, short=short)


def read_config(folder: Path) -> Config:
    """The keys of config.json."""
    config: Config = json.loads((folder / "config.json").read_text("utf-8"))
    return config


def write_variants(ids: torch.Tensor, folder: Path, draw: Draw) -> None:
    """Writes folders FOLDER+VARIANT, of the variants that transformers loads as a whole."""
    for name, config in variants(read_config(folder), draw):
        other = folder.with_name(f"{folder.name}+{name}")
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(folder, other)
        write_json(other / "config.json", config)
        try:
            record(load(other), ids, other)
        except Exception:  # what transformers cannot load or compute is no case
            shutil.rmtree(other)


def load(folder: Path) -> Any:
    """A model with the weights of a folder, all of them.

    Raises:
        ValueError: its tensors are others.
    """
    model, report = model_class(read_config(folder)).from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, **PLAINLY
    )
    unlike = {key: names for key, names in report.items() if names}
    if unlike:
        raise ValueError(f"tensors are others: {unlike}")
    return model.eval()


if __name__ == "__main__":
    main()
