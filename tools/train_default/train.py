"""Train the ternary model; resumable, and scheduled by the wall clock or by tokens.

The learning rate warms up, stays, and decays linearly to zero at `--until`, whatever the machine
does in between: progress is the elapsed share of the time from the first start to the end, so that
an interrupted or throttled run still ends annealed. A file `until` in the run's folder (a UTC time
or seconds since the epoch) changes the end of a run under way; a file `checkpoint` asks for one at
once. With `--until-tokens` progress is the share of so many tokens instead, so that a run may rest
for days; the file `until` then says another number of tokens. SIGTERM ends a run with a checkpoint,
and the exit code 143 tells that from a run that has come to its end.

    python -m tools.train_default.train --tokens tokens/ --tokenizer tokenizer/ \\
        --held-out valid.txt --run run/ --hf hf/ --until 10:05

Matrices are updated by Muon (orthogonalised momentum), all else by AdamW. Weight decay is on for
the first half and off for the second, as in the BitNet b1.58 training tips.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from tools.train_default.batches import Array, Mix, Source, check_mix, load_sources
from tools.train_default.chats.following import loops
from tools.train_default.evaluate import bits_per_byte, held_out_stories
from tools.train_default.from_teacher.llama import load_llama
from tools.train_default.from_teacher.soft import SoftTargets
from tools.train_default.from_teacher.vocabulary import check_same
from tools.train_default.model import LanguageModel, TernaryLM
from tools.train_default.muon import Muon
from tools.train_default.own.marking import nouns_of
from tools.train_default.own.replies import OwnReplies, read_rows
from tools.train_default.own.sampler import Sampler
from tools.train_default.own.voice import Voice
from tools.train_default.recipe import Recipe
from tools.train_default.save import load_hf, read_checkpoints, read_hf, save_hf
from tools.train_default.tokenizer import END
from tools.train_default.workers import Batch, Workers

ENDED = 128 + signal.SIGTERM  # exit code of a run before its end


class Clock:
    """The share of a run that is behind it; its end can be moved while it runs.

    Args:
        run: folder in which a file `until` moves the end.
        began: the time, or the number of tokens, at which the run began.
        end: the same, at its end.
        now: the same, now.
    """

    def __init__(self, run: Path, began: float, end: float, now: Callable[[], float]) -> None:
        self.moved, self.began, self.end, self.now = run / "until", began, end, now

    def progress(self) -> float:
        if self.moved.exists():
            self.end = parse_time(self.moved.read_text().strip())
        return min(1.0, (self.now() - self.began) / max(1.0, self.end - self.began))


def parse_time(text: str) -> float:
    """Seconds since the epoch of `HH:MM` (UTC, today), or the number itself."""
    if ":" not in text:
        return float(text)
    hour, minute = map(int, text.split(":"))
    return datetime.now(UTC).replace(hour=hour, minute=minute, second=0, microsecond=0).timestamp()


def is_looked_up(name: str) -> bool:
    """Whether a matrix has a row for each token or expert: its rows are trained one by one."""
    return name.startswith("embed_tokens.") or name.endswith(".mlp.gate.weight")


class Trainer:
    def __init__(self, recipe: Recipe, run: Path, tokens: Path, targets: Path | None) -> None:
        if targets and not recipe.soft_weight:
            raise ValueError("--targets are for recipes with a soft_weight")
        if recipe.soft_weight and not (targets or recipe.own_taught):
            raise ValueError("a soft_weight needs --targets, or a teacher of replies (own_taught)")
        torch.manual_seed(recipe.seed)
        self.recipe, self.run = recipe, run
        products = getattr(torch, recipe.products)
        self.model = TernaryLM(recipe.model, recipe.unlikelihood)
        self.model.products, self.model.soft_weight = products, recipe.soft_weight
        parameters = dict(self.model.masters())
        matrices = [p for name, p in parameters.items() if p.ndim == 2 and not is_looked_up(name)]
        experts = [p for p in parameters.values() if p.ndim == 3]
        others = [p for name, p in parameters.items() if p.ndim == 1 or is_looked_up(name)]
        self.muon = Muon(matrices, recipe.muon_lr, recipe.muon_momentum, products)
        rates = [(others, recipe.adam_lr), (experts, recipe.expert_lr)]
        self.rates = [rate for group, rate in rates if group]
        self.adam = torch.optim.AdamW(
            [{"params": group} for group, _ in rates if group],
            betas=recipe.adam_betas,
            eps=1e-10,
            weight_decay=0.0,
        )
        sources = load_sources(tokens)
        self.mix = Mix(sources, recipe.seed, whole=recipe.whole)
        self.soft = SoftTargets(targets, sources) if targets else None
        self.own: OwnReplies | None = None
        self.step = self.tokens = self.warm_from = 0
        self.seconds = 0.0
        self.began: float | None = None

    def clock(self, until: str | None, until_tokens: float | None) -> Clock:
        """Begins a run, or goes on with it; it ends at a time or after so many tokens in all."""
        now: Callable[[], float] = time.time if until else lambda: self.tokens
        self.began = now() if self.began is None else self.began
        end = parse_time(until) if until else until_tokens
        assert end is not None
        return Clock(self.run, self.began, end, now)

    def save(self) -> None:
        state = {
            "model": {
                k: v for k, v in self.model.state_dict().items() if not k.endswith(".effective")
            },
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "mix": self.mix.state(),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "warm_from": self.warm_from,
            "began": self.began,
            "config": asdict(self.recipe.model),
        }
        torch.save(state, self.run / "checkpoint.tmp")
        os.replace(self.run / "checkpoint.tmp", self.run / "checkpoint.pt")

    def restore(self) -> None:
        """Continue this run where its checkpoint was written."""
        state = self._load(read_checkpoints([self.run / "checkpoint.pt"]))
        self.mix.restore(state["mix"])
        self.began, self.warm_from = state["began"], state.get("warm_from", 0)

    def go_on_from(self, finished: Sequence[Path], shares: Sequence[float]) -> None:
        """Begin a new schedule (warm-up, clock, mix) with a finished run's weights and momenta.

        The counts of steps, tokens and seconds go on from the finished run's. Of several runs the
        weights are averaged by their shares; all else is the first one's.
        """
        self._load(read_checkpoints(finished, shares))
        self.warm_from = self.step

    def _load(self, state: dict[str, Any]) -> dict[str, Any]:
        self.model.load_state_dict(state["model"], strict=False)
        self.model.refresh()
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        return state

    def set_rates(self, progress: float) -> float:
        """Warm-up, plateau, linear decay; returns the factor on both learning rates."""
        recipe = self.recipe
        factor = min(1.0, (self.step - self.warm_from + 1) / recipe.warmup_steps)
        factor *= min(1.0, (1.0 - progress) / (1.0 - recipe.decay_from))
        self.muon.lr = recipe.muon_lr * factor
        self.muon.weight_decay = recipe.muon_weight_decay * (progress < recipe.weight_decay_until)
        for group, rate in zip(self.adam.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        return factor

    def microbatches(self, progress: float) -> Iterator[Batch]:
        recipe = self.recipe
        late = progress >= recipe.decay_from
        weights = {name: pair[late] for name, pair in recipe.mix.items()}
        context = recipe.context[late]
        for _ in range(recipe.batch_tokens // recipe.micro_tokens):
            rows = self.mix.placed_rows(weights, recipe.micro_tokens // context, context)
            ids, targets = (rows[:, 0, part].copy() for part in (slice(-1), slice(1, None)))
            if self.soft:
                yield ids, targets, *self.soft.at(rows[:, 1, :-1])
            elif recipe.text_taught and self.own and self.own.teacher:
                yield ids, targets, *read_rows(self.own.teacher, ids)
            else:
                yield ids, targets

    def train_step(self, workers: Workers, progress: float) -> tuple[float, float]:
        """One optimiser step.

        Returns:
            the mean loss in nats per token, and how unevenly experts were used in all layers.
        """
        total, count, uneven = workers.accumulate(self.microbatches(progress))
        if self.own is not None and self.own.rows:
            rows = self.recipe.micro_tokens // self.own.context
            own = self.own.batches(rows, self.recipe.own_rows // rows)
            workers.accumulate(own, self.recipe.own_weight)
        self.muon.step()
        self.adam.step()
        self.adam.zero_grad(set_to_none=False)
        self.model.refresh()
        self.step, self.tokens = self.step + 1, self.tokens + count
        return total / count, uneven


def fit(
    trainer: Trainer,
    workers: Workers,
    clock: Clock,
    log: Any,
    checkpoint: Any,
    every: tuple[int, float],
) -> bool:
    """Step until the clock runs out, or SIGTERM; the last thing is a checkpoint.

    Args:
        every: steps between log rows, seconds between checkpoints.

    Returns:
        whether the clock ran out.
    """
    losses: list[tuple[float, float]] = []
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ends.append(number))
    saved = last = time.time()
    while (progress := clock.progress()) < 1.0 and not ends:
        if trainer.own is not None and trainer.own.is_due(trainer.step, progress):
            log(trainer, **trainer.own.refill(trainer.step))
        factor = trainer.set_rates(progress)
        losses.append(trainer.train_step(workers, progress))
        now = time.time()
        trainer.seconds, last = trainer.seconds + now - last, now
        request = trainer.run / "checkpoint"
        if trainer.step % every[0] == 0 or trainer.step < 5:
            loss, uneven = np.mean(losses, axis=0).tolist()
            balance = {"uneven": uneven} if trainer.recipe.model.experts else {}
            rate = trainer.recipe.muon_lr * factor
            log(trainer, loss=loss, lr=rate, progress=progress, **balance)
            losses = []
        if now - saved > every[1] or request.exists():
            request.unlink(missing_ok=True)
            log(trainer, bits_per_byte=checkpoint())
            saved = time.time()
    log(trainer, bits_per_byte=checkpoint(), progress=progress)
    return progress >= 1.0


def calm_documents(source: Source, tokenizer: Tokenizer) -> Array:
    """Which documents of a source have no message that says six words in a row twice."""
    end = tokenizer.token_to_id(END)
    calm = [
        document
        for document, ids in enumerate(np.split(source.ids, source.starts[1:-1]))
        if not any(map(loops, tokenizer.decode_batch(np.split(ids, np.flatnonzero(ids == end)))))
    ]
    return np.array(calm, np.int64)


def own_replies(
    trainer: Trainer, tokenizer: Tokenizer, files: Path, teacher: Path | None
) -> OwnReplies:
    """The store of replies; requests name what stories of the source `real`, if any, speak of.

    Args:
        files: folder of the tokenizer.
        teacher: Hugging Face directory of who reads the replies.
    """
    recipe, real = trainer.recipe, trainer.mix.sources.get("real")
    texts = tokenizer.decode_batch(np.split(real.ids, real.starts[1:-1])) if real else []
    reader: LanguageModel | None = None
    sampler: Sampler | None = None
    if teacher and recipe.dry:
        reader, file = load_hf(teacher), teacher / "tokenizer.json"
        sampler = Sampler.of(file, recipe.dry, recipe.repeat, recipe.unlikelihood)
    elif teacher:
        reader = load_llama(teacher, recipe.context[1]).eval()
    voice, nouns = Voice(files, recipe.context[1]), nouns_of(texts)
    return OwnReplies(trainer.model, tokenizer, recipe, voice, nouns, reader, sampler)


def begin(recipe: Recipe, args: argparse.Namespace, tokenizer: Tokenizer) -> Trainer:
    """A trainer with the documents that are read, where its run was ended or at its beginning.

    Raises:
        ValueError: a teacher or targets that the recipe does not ask for, or none that it does; a
            teacher or tokens of another vocabulary; a source that is not there, or of which nothing
            is calm.
    """
    if recipe.own_taught != (args.teacher is not None):
        raise ValueError("--teacher is for recipes with own_taught, which need it")
    if args.teacher:
        check_same(args.teacher, tokenizer)
    trainer = Trainer(recipe, args.run, args.tokens, args.targets)
    names = [name for name, shares in recipe.mix.items() if any(shares)]
    check_mix(names, trainer.mix.sources, recipe.model.vocab_size)
    if recipe.calm:  # before restore, which takes no order of other documents than these
        for name, source in trainer.mix.sources.items():
            source.documents = calm_documents(source, tokenizer)
            if name in recipe.mix and not source.documents.size:
                raise ValueError(f"every document of {name} says something twice: none is calm")
    if (args.run / "checkpoint.pt").exists():
        trainer.restore()
    elif args.start_from:
        trainer.go_on_from(args.start_from, args.shares)
    elif args.initial:
        read_hf(trainer.model, args.initial)
    if recipe.own_rows:
        trainer.own = own_replies(trainer, tokenizer, args.tokenizer, args.teacher)
    return trainer


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tokens", type=Path, required=True, help="folder of corpus.py's token files"
    )
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True, help="stories that are only scored")
    parser.add_argument(
        "--run", type=Path, required=True, help="folder of the checkpoint and the log"
    )
    parser.add_argument(
        "--hf", type=Path, required=True, help="Hugging Face directory, renewed at every checkpoint"
    )
    end = parser.add_mutually_exclusive_group(required=True)
    end.add_argument("--until", help="when to end: HH:MM (UTC, today) or seconds since the epoch")
    end.add_argument("--until-tokens", type=float, help="after how many tokens to end")
    parser.add_argument(
        "--initial", type=Path, help="Hugging Face directory of weights to begin with"
    )
    parser.add_argument(
        "--start-from",
        type=Path,
        nargs="+",
        help="checkpoint of a finished run whose training goes on here; of several the average",
    )
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0], help="of each checkpoint")
    parser.add_argument("--recipe", type=Path, help="TOML file of what differs from the defaults")
    parser.add_argument("--targets", type=Path, help="folder of from_teacher/targets.py")
    parser.add_argument(
        "--teacher", type=Path, help="Hugging Face directory of who reads the model's own replies"
    )
    parser.add_argument("--workers", type=int, default=2, help="single-threaded training processes")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    torch.set_num_threads(args.workers)
    args.run.mkdir(parents=True, exist_ok=True)
    recipe = Recipe.read(args.recipe) if args.recipe else Recipe()
    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    trainer = begin(recipe, args, tokenizer)
    clock = trainer.clock(args.until, args.until_tokens)
    stories = held_out_stories(args.held_out)[:24]

    def log(trainer: Trainer, **values: float) -> None:
        row = {
            "step": trainer.step,
            "tokens": trainer.tokens,
            "seconds": round(trainer.seconds, 1),
            **values,
        }
        with (args.run / "train.log").open("a") as file:
            file.write(json.dumps({k: round(v, 5) for k, v in row.items()}) + "\n")

    def checkpoint() -> float:
        trainer.save()
        save_hf(trainer.model, args.tokenizer, args.hf)
        return bits_per_byte(trainer.model, tokenizer, stories)

    workers = Workers(trainer.model, args.workers, 1.0 / recipe.batch_tokens, recipe.balance)
    finished = fit(trainer, workers, clock, log, checkpoint, (20, 300.0))
    workers.stop()
    return 0 if finished else ENDED


if __name__ == "__main__":
    sys.exit(main())
