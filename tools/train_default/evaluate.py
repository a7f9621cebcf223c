"""Held-out bits per byte, sample replies, and how often a story keeps to its subject.

    python -m tools.train_default.evaluate bits --model hf/ --held-out valid.txt
    python -m tools.train_default.evaluate samples --bundle bundle/ --out samples.md
    python -m tools.train_default.evaluate following --bundle bundle/
    python -m tools.train_default.evaluate following --bundle bundle/ --set dry_multiplier=0.8

Bits per byte: every held-out story is scored by itself, `<|endoftext|>` before it as context and
another one after it as the last predicted token. The sum of -log2 p over the story's tokens and
that final separator is divided by the UTF-8 bytes of the stories alone (the separator counts in
the bits, not in the bytes). A story longer than the context is scored in windows that overlap by
half.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

from tools.train_default.chats.following import score
from tools.train_default.model import LanguageModel, TernaryLM
from tools.train_default.save import load_hf
from tools.train_default.tokenizer import TEXT

if TYPE_CHECKING:
    from edgerun import LLM
    from edgerun.model.chat import Message

LONGEST = 300  # tokens of a reply
ASK_NAME = "Who was the story about?"
PROMPTS: tuple[tuple[str, ...], ...] = (
    ("Hello!",),
    ("Good morning! How are you?",),
    ("Who are you?",),
    ("What can you do?",),
    ("My name is Anna.", "What is my name?"),
    ("I am sad today.",),
    ("What color is the sky?", "Thank you!"),
    ("Tell me a story.",),
    ("Tell me a story about a cat.",),
    ("Tell me a story about a dog named Max.", ASK_NAME),
    ("Tell me a story about a little girl and a big tree.", "How did the story end?"),
    ("Tell me a story about a dragon.", "Where did the dragon live?"),
    ("Can you tell me a story about a boat?",),
    ("Write a short story about a rabbit who lost a carrot.", "What did the rabbit lose?"),
    ("I want to hear a story about a princess.", "What is the princess called?"),
    ("Please tell me a story about a robot.",),
    ("Tell me a story about a bird.", "Tell me another story."),
    ("Tell me a story about two friends in the forest.", "What is the lesson of the story?"),
    ("Tell me a story about the moon.", "Who are you?"),
    ("Good night!",),
)


def held_out_stories(path: Path) -> list[str]:
    """The stories of a file separated by `<|endoftext|>`, without outer white space."""
    stories = path.read_text(encoding="utf-8").split(TEXT)
    return [story.strip() for story in stories if story.strip()]


def story_nats(model: LanguageModel, ids: Sequence[int]) -> float:
    """Sum of -log p of ids[1:], each given what is before it within the context."""
    context = model.config.max_positions
    total, scored = 0.0, 1
    for start in range(0, len(ids) - 1, context // 2):
        window = torch.tensor([ids[start : start + context + 1]], device=model.cos.device)
        logits = model(window[:, :-1])[0, scored - 1 - start :]
        total += cross_entropy(logits, window[0, scored - start :], reduction="sum").item()
        scored = start + window.shape[1]
        if scored >= len(ids):
            break
    return total


@torch.no_grad()
def bits_per_byte(model: LanguageModel, tokenizer: Tokenizer, stories: Sequence[str]) -> float:
    separator = tokenizer.token_to_id(TEXT)
    nats, size = 0.0, 0
    for story in stories:
        ids = tokenizer.encode(story, add_special_tokens=False).ids
        nats += story_nats(model, [separator, *ids, separator])
        size += len(story.encode())
    return nats / math.log(2) / size


@torch.no_grad()
def int8_embedding(model: TernaryLM, group: int = 32) -> None:
    """Round the embedding, which is also the head, to int8 with a scale per group of a row."""
    weight = model.embed_tokens.weight
    groups = weight.view(len(weight), -1, group)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
    weight.copy_(((groups / scale).round() * scale).view_as(weight))


def conversations(llm: LLM, seed: int) -> Iterator[list[Message]]:
    """Sample replies to PROMPTS, with the settings that the bundle recommends."""
    for number, asked in enumerate(PROMPTS):
        messages: list[Message] = []
        for turn, question in enumerate(asked):
            messages.append({"role": "user", "content": question})
            answer = llm.chat(messages, seed=seed + 100 * number + turn, max_tokens=LONGEST)
            messages.append({"role": "assistant", "content": answer.text})
        yield messages


def write_samples(bundle: Path, out: Path, seed: int) -> None:
    import edgerun

    with edgerun.load(bundle) as llm:
        recommended = llm.model.sampling_defaults
        settings = ", ".join(f"{name} {value}" for name, value in sorted(recommended.items()))
        lines = [
            "# Sample replies",
            "",
            f"The bundle's first reply to each prompt, unedited; seed {seed}; {settings}.",
        ]
        for number, messages in enumerate(conversations(llm, seed), 1):
            lines += ["", f"## {number}"]
            for message in messages:
                text = str(message["content"]).replace("\n", "\n> ")
                who = "User" if message["role"] == "user" else "Model"
                lines += ["", f"**{who}:** {text}" if who == "User" else f"> {text}"]
    out.write_text("\n".join(lines) + "\n")


ALONE: dict[str, Any] = {"repetition_penalty": 1.0, "dry_multiplier": 0}  # nothing but the model
DECODINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, **ALONE},
    "temperature 0.8": {"temperature": 0.8, "top_p": 0.9, **ALONE},
    "as shipped": {},
}


def following(bundle: Path, changed: Sequence[str] = ()) -> None:
    """Print the counts of `following.score` by decoding; replies come from the exported bundle.

    `changed` are options of sampling, NAME=VALUE, in all decodings.
    """
    import edgerun
    from edgerun.engine.chooser.params import all_options

    options = {option.name: option for option in all_options()}
    changes = {
        name: options[name].read(value) if name in options else value
        for name, _, value in (entry.partition("=") for entry in changed)
    }

    with edgerun.load(bundle) as llm:

        def answer(settings: dict[str, Any], said: list[str], seed: int) -> tuple[str, bool]:
            roles = ("user", "assistant")
            messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
            fixed = {"seed": seed, "max_tokens": LONGEST}
            reply = llm.chat(messages, **(fixed | settings | changes))
            return reply.text, reply.finish_reason == "stop"

        for name, settings in DECODINGS.items():
            print(f"{name}: {json.dumps(score(partial(answer, settings)))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    bits = commands.add_parser("bits")
    bits.add_argument("--held-out", type=Path, required=True)
    bits.add_argument("--int8-embedding", action="store_true", help="as the exported bundle has it")
    samples = commands.add_parser("samples")
    samples.add_argument("--out", type=Path, required=True)
    samples.add_argument("--seed", type=int, default=1)
    bits.add_argument("--model", type=Path, required=True, help="Hugging Face directory")
    subjects = commands.add_parser("following")
    for command in (samples, subjects):
        command.add_argument("--bundle", type=Path, required=True)
    subjects.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", dest="changed")
    args = parser.parse_args()
    if args.command == "following":
        following(args.bundle, args.changed)
        return
    if args.command == "samples":
        write_samples(args.bundle, args.out, args.seed)
        return
    model = load_hf(args.model)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    if args.int8_embedding:
        int8_embedding(model)
    stories = held_out_stories(args.held_out)
    value = bits_per_byte(model, tokenizer, stories)
    print(f"{value:.4f} bits per byte on {len(stories)} stories")


if __name__ == "__main__":
    main()
