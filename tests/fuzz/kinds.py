"""The kinds of hostile input: what each begins with, how it is changed, and where it must end.

To add a kind, add a line to ``KINDS``. A case is a kind and a seed, nothing else: the same two
give the same bytes on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz import ends, sources
from tests.fuzz.files import MANIFEST, Files, Mutate, Special, on_file, seal
from tests.fuzz.mutate.gguf_file import mutate_gguf
from tests.fuzz.mutate.headers import (
    mutate_llama2c,
    mutate_llama2c_tokenizer,
    mutate_safetensors,
)
from tests.fuzz.mutate.json_tree import mutate_json
from tests.fuzz.mutate.onnx_graph import DATA, MODEL, mutate_onnx, mutate_sizes
from tests.fuzz.mutate.texts import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    mutate_template,
    mutate_tokenizer,
)
from tests.fuzz.mutate.values import damage
from tests.fuzz.mutate.weights import mutate_weights

GENAI_CONFIG = "genai_config.json"
SMALL_FILES = ("generation_config.json", "config.json", TOKENIZER_CONFIG, "special_tokens_map.json")
SEALED = 0.95  # so many cases have a manifest that agrees with the files


@dataclass(frozen=True)
class Kind:
    """One kind of hostile input.

    Attributes:
        source: a valid input by number.
        mutate: makes it hostile.
        end: uses it as far as it goes; raises an ``EdgerunError`` if it is refused.
        share: cases of the default run.
        sealed: whether its manifest is made to agree.
    """

    source: Callable[[int], Files]
    mutate: Mutate
    end: ends.End
    share: int
    sealed: bool = False

    def make(self, seed: int) -> Files:
        """The files of a case."""
        draw = random.Random(seed)
        files = self.mutate(dict(self.source(draw.randrange(len(sources.BUNDLES)))), draw)
        return seal(files) if self.sealed and draw.random() < SEALED else files


def _small_file(files: Files, draw: random.Random) -> Files:
    return on_file(draw.choice(SMALL_FILES), mutate_json)(files, draw)


def _manifest(files: Files, draw: random.Random) -> Files:
    root = ("model",) if draw.random() < 0.6 else ()
    return on_file(MANIFEST, lambda data, draw: mutate_json(data, draw, root))(files, draw)


def _session(files: Files, draw: random.Random) -> Files:
    def change(data: bytes, draw: random.Random) -> bytes:
        if draw.random() < 0.2:
            return damage(data, draw)
        return sources.session_bytes(mutate_json(data.partition(b"\n")[2], draw))

    return on_file(sources.SESSION, change)(files, draw)


def _graph_or_weights(files: Files, draw: random.Random) -> Files:
    name, change = draw.choice(
        ((MODEL, mutate_onnx), (MODEL, mutate_sizes), (DATA, mutate_weights))
    )
    return on_file(name, change)(files, draw)


def _odd_file(files: Files, draw: random.Random) -> Files:
    """One file replaced by a link, a pipe or a folder; for links, one file more as target."""
    name = draw.choice(sorted(files))
    targets = ("/dev/zero", "/etc/passwd", "../secret", "/proc/self/mem", "other", "nowhere", name)
    kind = draw.choice(("symlink", "symlink", "symlink", "hardlink", "fifo", "folder"))
    other = {"other": files[name]}
    target = "other" if kind == "hardlink" else draw.choice(targets)
    return {**files, **other, name: Special(kind, target)}


KINDS: dict[str, Kind] = {
    "onnx": Kind(sources.bundle, on_file(MODEL, mutate_onnx), ends.generate, 280, True),
    "sizes": Kind(sources.bundle, on_file(MODEL, mutate_sizes), ends.generate, 200, True),
    "onnx-bytes": Kind(sources.bundle, on_file(MODEL, damage), ends.generate, 120, True),
    "weights": Kind(sources.bundle, on_file(DATA, mutate_weights), ends.generate, 100, True),
    "read experts": Kind(
        sources.mixture, _graph_or_weights, ends.generate_with_few_experts, 60, True
    ),
    "manifest": Kind(sources.bundle, _manifest, ends.generate, 200),
    "configs": Kind(sources.bundle, _small_file, ends.generate, 100, True),
    "tokenizer": Kind(
        sources.bundle, on_file(TOKENIZER, mutate_tokenizer), ends.generate_text, 180, True
    ),
    "structure": Kind(
        sources.bundle, on_file(TOKENIZER, mutate_tokenizer), ends.structured, 40, True
    ),
    "template": Kind(
        sources.bundle, on_file(TOKENIZER_CONFIG, mutate_template), ends.chat, 100, True
    ),
    "session": Kind(sources.session, _session, ends.restore, 100),
    "foreign": Kind(sources.foreign, on_file(GENAI_CONFIG, mutate_json), ends.generate, 80),
    "links": Kind(sources.bundle, _odd_file, ends.generate, 80, True),
    "gguf": Kind(sources.gguf, on_file("model.gguf", mutate_gguf), ends.export_file, 120),
    "llama2c": Kind(sources.llama2c, on_file("model.bin", mutate_llama2c), ends.export_file, 80),
    "llama2c-tokenizer": Kind(
        sources.llama2c,
        on_file("tokenizer.bin", mutate_llama2c_tokenizer),
        ends.export_file,
        40,
    ),
    "safetensors": Kind(
        sources.checkpoint,
        on_file("model.safetensors", mutate_safetensors),
        ends.export_folder,
        100,
    ),
    "hf-config": Kind(
        sources.checkpoint, on_file("config.json", mutate_json), ends.export_folder, 100
    ),
    "hf-tokenizer": Kind(
        sources.checkpoint, on_file(TOKENIZER, mutate_tokenizer), ends.export_folder, 60
    ),
    "sentencepiece": Kind(
        sources.sentencepiece, on_file("tokenizer.model", damage), ends.export_folder, 60
    ),
    "hf-links": Kind(sources.checkpoint, _odd_file, ends.export_folder, 40),
}
