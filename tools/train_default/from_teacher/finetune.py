"""Train all weights of a Llama on stories and chats; resumable, scheduled by tokens.

    python -m tools.train_default.from_teacher.finetune --tokens tokens/ --model cut/ \\
        --held-out valid.txt --run run/ --hf teacher/ --until-tokens 1.2e6

The rate warms up, stays, and falls to zero over the last part of the tokens; a number in the file
`until` of the run's folder moves the end, and with it the fall. SIGTERM ends a run with a
checkpoint after the step under way, and exit code 143; the same command goes on. Products are in
bfloat16, which a processor with AVX-512 BF16 multiplies four times as fast as float32; weights,
their gradients and AdamW's moments are float32. At every checkpoint the first held-out stories are
scored, and the Hugging Face directory is renewed. `--device cuda` trains in this process on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from tools.train_default.batches import PAD, Mix, check_mix, load_sources
from tools.train_default.evaluate import bits_per_byte, held_out_stories
from tools.train_default.from_teacher.llama import Llama, load_llama, save_llama
from tools.train_default.train import ENDED, Clock
from tools.train_default.workers import Batch, Workers

WATCHED = 48  # held-out stories
PRODUCTS = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Settings:
    """What shapes a run; rates are of AdamW."""

    rate: float
    batch_tokens: int
    micro_tokens: int
    mix: dict[str, float]
    context: int = 512
    warmup_steps: int = 20
    decay_from: float = 0.5
    clip: float = 1.0
    seed: int = 1


class InProcess:
    """As ``Workers``, in this process, on the model's device."""

    def __init__(self, model: Llama, scale: float) -> None:
        self.model, self.scale = model, scale
        model.compile()

    def accumulate(self, batches: Iterable[Batch]) -> tuple[float, int, float]:
        total, count, device = 0.0, 0, self.model.embed_tokens.weight.device
        for batch in batches:
            ids, targets = (torch.from_numpy(each).to(device) for each in batch)
            loss, _ = self.model.loss(ids.clamp(min=0), targets)
            (loss * self.scale).backward()
            total, count = total + loss.item(), count + int((targets != PAD).sum())
        return total, count, 0.0

    def stop(self) -> None:
        pass


class Finetuning:
    """A run's state.

    Attributes:
        step, tokens, seconds: so far.
    """

    def __init__(self, model: Llama, settings: Settings, run: Path, tokens: Path) -> None:
        self.model, self.settings, self.run = model, settings, run
        parameters = list(model.parameters())
        self.adam = torch.optim.AdamW(
            parameters, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        sources = load_sources(tokens)
        check_mix(settings.mix, sources, model.config.vocab_size)
        self.mix = Mix(sources, settings.seed)
        self.step = self.tokens = 0
        self.seconds = 0.0

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "adam": self.adam.state_dict(),
            "mix": self.mix.state(),
            "counts": (self.step, self.tokens, self.seconds),
        }
        torch.save(state, self.run / "checkpoint.tmp")
        os.replace(self.run / "checkpoint.tmp", self.run / "checkpoint.pt")

    def restore(self) -> None:
        state = torch.load(self.run / "checkpoint.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        self.mix.restore(state["mix"])
        self.step, self.tokens, self.seconds = state["counts"]

    def rate(self, progress: float) -> float:
        """Warm-up, plateau, linear decay."""
        settings = self.settings
        warm = min(1.0, (self.step + 1) / settings.warmup_steps)
        return settings.rate * warm * min(1.0, (1 - progress) / (1 - settings.decay_from))

    def microbatches(self) -> Iterator[Batch]:
        settings = self.settings
        for _ in range(settings.batch_tokens // settings.micro_tokens):
            rows = self.mix.rows(
                settings.mix, settings.micro_tokens // settings.context, settings.context
            )
            yield np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])

    def train_step(self, workers: Workers | InProcess, progress: float) -> float:
        """One step of the optimiser; the mean loss in nats a token."""
        for group in self.adam.param_groups:
            group["lr"] = self.rate(progress)
        total, count, _ = workers.accumulate(self.microbatches())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.adam.step()
        self.adam.zero_grad(set_to_none=False)
        self.step, self.tokens = self.step + 1, self.tokens + count
        return total / count


def fit(
    tuning: Finetuning, workers: Workers | InProcess, clock: Clock, checkpoint: Any, minutes: float
) -> bool:
    """Steps until the tokens are read, or SIGTERM; `checkpoint` scores and saves.

    Returns:
        whether the tokens are read.
    """
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ends.append(number))

    def log(**values: float) -> None:
        row = {"step": tuning.step, "tokens": tuning.tokens, "seconds": tuning.seconds, **values}
        with (tuning.run / "train.log").open("a") as file:
            file.write(json.dumps({name: round(each, 6) for name, each in row.items()}) + "\n")

    saved = last = time.time()
    while (progress := clock.progress()) < 1.0 and not ends:
        loss = tuning.train_step(workers, progress)
        now = time.time()
        tuning.seconds, last = tuning.seconds + now - last, now
        log(loss=loss, rate=tuning.rate(progress), progress=progress)
        if now - saved > 60 * minutes:
            tuning.save()
            log(bits_per_byte=checkpoint())
            saved = last = time.time()
    tuning.save()
    log(bits_per_byte=checkpoint())
    return progress >= 1.0


def parse_mix(text: str) -> dict[str, float]:
    """`real=0.6,asked=0.4`: shares of tokens."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name: float(share) for name, _, share in pairs}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=Path, required=True, help="of `corpus.py tokens`")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--held-out", type=Path, required=True, help="stories only scored")
    parser.add_argument("--run", type=Path, required=True, help="folder of checkpoint and log")
    parser.add_argument("--hf", type=Path, required=True, help="renewed at every checkpoint")
    parser.add_argument("--until-tokens", type=float, required=True)
    parser.add_argument("--mix", type=parse_mix, default="real=0.55,asked=0.41,books=0.04")
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--micro-tokens", type=int, default=1024)
    parser.add_argument("--minutes", type=float, default=15.0, help="between checkpoints")
    parser.add_argument("--workers", type=int, default=2, help="single-threaded processes")
    parser.add_argument("--products", choices=PRODUCTS, default="bfloat16")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.batch_tokens % args.micro_tokens:
        parser.error("--batch-tokens must be a multiple of --micro-tokens")
    return args


def main() -> int:
    args = arguments()
    args.run.mkdir(parents=True, exist_ok=True)
    settings = Settings(args.rate, args.batch_tokens, args.micro_tokens, args.mix)
    model = load_llama(args.model, settings.context, PRODUCTS[args.products]).to(args.device)
    tuning = Finetuning(model, settings, args.run, args.tokens)
    if (args.run / "checkpoint.pt").exists():
        tuning.restore()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    stories = held_out_stories(args.held_out)[:WATCHED]

    def checkpoint() -> float:
        save_llama(model, args.model, args.hf)
        return bits_per_byte(model, tokenizer, stories)

    scale = 1.0 / settings.batch_tokens
    workers: Workers | InProcess
    if args.device == "cpu":
        torch.set_num_threads(args.workers)
        workers = Workers(model, args.workers, scale, 0.0)
    else:
        workers = InProcess(model, scale)
    clock = Clock(args.run, 0.0, args.until_tokens, lambda: float(tuning.tokens))
    finished = fit(tuning, workers, clock, checkpoint, args.minutes)
    workers.stop()
    return 0 if finished else ENDED


if __name__ == "__main__":
    sys.exit(main())
