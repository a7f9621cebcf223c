"""Where a case must end: in generated tokens, as a user would get them, or in a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import edgerun
from edgerun.llm.llm import LLM
from edgerun_export.pipeline import ExportOptions, export
from tests.fuzz import watch
from tests.fuzz.sources import SESSION

End: TypeAlias = Callable[[Path, int], None]
PROMPT = [5, 6, 7, 8, 9]
TEXT = "a story of one day, and a bit more"
TOKENS = 3
STORAGE = ("fp16", "int8")
EXPERT_SHARES = ("60%", "90%")  # of their memory
WEIGHTS = ("int8", "fp32")
# A few rows a call: what one row writes too much then lies behind the end of its buffer.
FEW_ROWS = 4
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b", 1]}}, "required": ["a"]}
PLAIN_SHARE = 4  # one case in so many runs without guard pages and with the default's rows


def is_guarded(seed: int) -> bool:
    """Whether a case runs with guard pages around its buffers."""
    return seed % PLAIN_SHARE != 0


@contextmanager
def _loaded(folder: Path, seed: int, **options: Any) -> Iterator[LLM]:
    rows = {"chunk_rows": FEW_ROWS} if is_guarded(seed) else {}
    cache = STORAGE[seed % len(STORAGE)]
    with edgerun.load(folder, threads=1, max_sessions=2, kv_cache=cache, **rows, **options) as llm:
        yield llm
        watch.check_mappings()


def generate(folder: Path, seed: int) -> None:
    """Loads a bundle and continues some ids, the last ones of the vocabulary among them."""
    _generate(folder, seed)


def generate_with_few_experts(folder: Path, seed: int) -> None:
    """The same; experts are read while the model runs."""
    _generate(folder, seed, expert_memory=EXPERT_SHARES[seed % len(EXPERT_SHARES)])


def _generate(folder: Path, seed: int, **options: Any) -> None:
    with _loaded(folder, seed, **options) as llm:
        last = llm.model.vocab_size - 1
        ids = [min(id_, last) for id_ in PROMPT]
        llm.generate([*ids, last], max_tokens=TOKENS)


def generate_text(folder: Path, seed: int) -> None:
    """Loads a bundle and continues a text."""
    with _loaded(folder, seed) as llm:
        llm.generate(TEXT, max_tokens=TOKENS)


def structured(folder: Path, seed: int) -> None:
    """Loads a bundle and continues a text in JSON."""
    with _loaded(folder, seed) as llm:
        llm.generate(TEXT, max_tokens=2 * TOKENS, json_schema=SCHEMA)


def chat(folder: Path, seed: int) -> None:
    """Loads a bundle and answers a message."""
    with _loaded(folder, seed) as llm:
        llm.chat([{"role": "user", "content": TEXT}], max_tokens=TOKENS)


def restore(folder: Path, seed: int) -> None:
    """Loads a bundle, goes on with a saved chat and saves it again."""
    with _loaded(folder, seed) as llm:
        session = llm.session()
        session.load(folder / SESSION)
        session.send("and then", max_tokens=TOKENS).result()
        session.save(folder / "again")


def export_folder(folder: Path, seed: int) -> None:
    """Exports a folder and runs what came out."""
    _export_and_run(folder, folder, seed)


def export_file(folder: Path, seed: int) -> None:
    """Exports the model file of a folder and runs what came out."""
    _export_and_run(next(folder.glob("model.*")), folder, seed)


def _export_and_run(source: Path, folder: Path, seed: int) -> None:
    out = folder / "bundle"
    export(source, out, ExportOptions(weights=WEIGHTS[seed % len(WEIGHTS)]))
    generate(out, seed)
