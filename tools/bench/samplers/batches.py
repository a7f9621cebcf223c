"""Replies of many chats together, tokens chosen by kernels and by NumPy in turns.

    python -m tools.bench.samplers.batches [MODEL] [--chats 1 4 16 64] [--sessions N] [--threads 1]

The table has the medians of the rounds: tokens a second by the clock, and by the time of the thread
that asks, which with one thread is all there is, on which other programs have less influence.
Stops if the two ways say different things.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import edgerun
from tools.bench.samplers.ways import WAYS, choosing_by


def main() -> None:
    """Measures what the command line names and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--chats", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--sessions", type=int, help="max_sessions; as many as chats")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    sessions = given.sessions or max(given.chats)
    with edgerun.load(given.model, threads=given.threads, max_sessions=sessions) as llm:

        def say(chats: int) -> list[list[int]]:
            """Ids of the replies."""
            texts = [f"Tell me a story about number {index}." for index in range(chats)]
            replies = llm.chat_many(
                [[{"role": "user", "content": text}] for text in texts],
                [{"seed": index} for index in range(chats)],
                temperature=0.8,
                top_p=0.95,
                dry_multiplier=0,
                max_tokens=given.tokens,
            )
            return [reply.ids for reply in replies]

        sys.stdout.write(
            "| chats | way | tokens/s | by its own time |\n| --- | --- | --- | --- |\n"
        )
        for chats in given.chats:
            expected = say(chats)  # brings all into memory
            tokens = sum(map(len, expected))
            times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for _ in range(given.rounds):
                for way in WAYS:
                    with choosing_by(way):
                        clock, own = time.perf_counter(), time.thread_time()
                        if say(chats) != expected:
                            raise SystemExit(f"{way} chose other tokens")
                        spent = time.perf_counter() - clock, time.thread_time() - own
                        times[way].append(spent)
            for way, rounds in times.items():
                clock, own = (
                    tokens / statistics.median(each) for each in zip(*rounds, strict=True)
                )
                sys.stdout.write(f"| {chats} | {way} | {clock:.0f} | {own:.0f} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
