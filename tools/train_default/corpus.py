"""Clean the sources, make the chats, and turn all into token files.

    python -m tools.train_default.corpus text --corpora shared/data/corpora \\
        [--teacher teacher.txt] --out text/
    python -m tools.train_default.corpus tokens --text text/ \\
        --tokenizer tokenizer/tokenizer.json --out tokens/

`text` writes one JSON string a line and source; `tokens` writes `<source>.npz` with all documents'
ids (uint16, every document begins with `<|endoftext|>`) and where each begins.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tools.train_default.chats.anything import chats_about_anything, nouns_of_books
from tools.train_default.chats.extract import hero, subjects
from tools.train_default.chats.generator import chats
from tools.train_default.chats.swap import vary_story
from tools.train_default.tokenizer import TEXT, render_chat

MOJIBAKE = {"â€œ": '"', "â€™": "'", "â€˜": "'", "â€“": "-", "â€”": " - ", "â€¦": "...", "â€": '"'}
QUOTES = str.maketrans({"“": '"', "”": '"', "’": "'", "‘": "'", "–": "-", "—": "-", "…": "."})


def clean(story: str) -> str:
    """ASCII quotes, one line end between paragraphs (as held-out stories have), no stray blanks."""
    for broken, right in MOJIBAKE.items():
        story = story.replace(broken, right)
    lines = (re.sub(r"\s+", " ", line).strip() for line in story.translate(QUOTES).splitlines())
    return "\n".join(line for line in lines if line)


def read_stories(path: Path) -> list[str]:
    """Stories separated by `<|endoftext|>`, cleaned, without those that are not plain ASCII."""
    stories = (clean(story) for story in path.read_text(encoding="utf-8").split(TEXT))
    return [story for story in stories if story and story.isascii()]


def read_passages(folder: Path) -> list[str]:
    """Children's books and short fables: text beyond the teacher's world, a small share."""
    texts = []
    for name in ("storybooks_ccby.jsonl", "fables_mit.jsonl"):
        texts += [
            clean(json.loads(line)["text"]) for line in (folder / name).open(encoding="utf-8")
        ]
    return [text for text in texts if 200 < len(text) < 1800 and text.isascii()]


def write_texts(path: Path, texts: Iterable[str], append: bool = False) -> None:
    with path.open("a" if append else "w") as out:
        for text in texts:
            out.write(json.dumps(text) + "\n")


def make_texts(corpora: Path, teacher: Path | None, out: Path, seed: int, rounds: int) -> None:
    """One file a source; `chat` is built on real and teacher stories, `fine` on real and own.

    `asked` has real ones only, as they are. Without text of a teacher there is no `teacher`.
    """
    out.mkdir(parents=True, exist_ok=True)
    real = read_stories(corpora / "tinystories" / "train.txt")
    sampled = read_stories(teacher) if teacher else []
    short = [story for story in real if len(story) < 1500]
    extra = [story for story in sampled if len(story) < 1000]
    write_texts(out / "real.jsonl", real)
    if sampled:
        write_texts(out / "teacher.jsonl", sampled)
    write_texts(out / "books.jsonl", read_passages(corpora / "stories"))
    half = len(short) // 2
    for n in range(rounds):
        broad = chats(short + extra[n * half : (n + 1) * half], seed + n)
        write_texts(out / "chat.jsonl", map(render_chat, broad), append=n > 0)
        fine = chats(short, seed + 100 + n, own_share=0.35)
        write_texts(out / "fine.jsonl", map(render_chat, fine), append=n > 0)
        asked = chats(short, seed + 300 + n, own_share=0.0)
        write_texts(out / "asked.jsonl", map(render_chat, asked), append=n > 0)
    write_texts(out / "follow.jsonl", map(render_chat, follow(short, seed, 2 * rounds)))
    brief = [story for story in short if len(story) < 1000]
    write_texts(out / "brief.jsonl", map(render_chat, follow(brief, seed + 100, 2 * rounds, 0.2)))
    nouns = nouns_of_books(corpora, real)
    anything = chats_about_anything(real, nouns, seed + 6, rounds=4)
    write_texts(out / "wide.jsonl", map(render_chat, anything))


def follow(
    stories: list[str], seed: int, rounds: int, own_share: float = 0.4
) -> Iterator[list[dict[str, str]]]:
    """Chats in which only the request tells what the story will be about."""
    clear = [story for story in stories if subjects(story) or hero(story)]
    for n in range(rounds):
        yield from chats(clear, seed + 200 + n, own_share=own_share, change=vary_story)


def make_tokens(text: Path, tokenizer: Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    separator = tokenizer.token_to_id(TEXT)
    for path in sorted(text.glob("*.jsonl")):
        documents = [json.loads(line) for line in path.open()]
        encoded = [
            [separator, *e.ids] for e in tokenizer.encode_batch(documents, add_special_tokens=False)
        ]
        starts = np.cumsum([0, *map(len, encoded)])
        ids = np.concatenate([np.asarray(e, np.uint16) for e in encoded])
        np.savez(out / f"{path.stem}.npz", ids=ids, starts=starts)
        size = sum(len(document.encode()) for document in documents)
        print(f"{path.stem}: {len(documents)} documents, {size} bytes, {len(ids)} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    text = commands.add_parser("text")
    text.add_argument("--corpora", type=Path, required=True)
    text.add_argument("--teacher", type=Path, help="stories that teacher.py sampled")
    text.add_argument("--out", type=Path, required=True)
    text.add_argument("--seed", type=int, default=1)
    text.add_argument("--rounds", type=int, default=3, help="chats made of every real story")
    tokens = commands.add_parser("tokens")
    tokens.add_argument("--text", type=Path, required=True)
    tokens.add_argument("--tokenizer", type=Path, required=True)
    tokens.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "text":
        make_texts(args.corpora, args.teacher, args.out, args.seed, args.rounds)
    else:
        make_tokens(args.text, Tokenizer.from_file(str(args.tokenizer)), args.out)


if __name__ == "__main__":
    main()
