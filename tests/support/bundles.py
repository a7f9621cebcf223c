"""The golden checkpoints' configurations, and bundles made from them."""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, make_backend
from edgerun.backends.base import buckets
from edgerun.model.bundle import Bundle, open_bundle
from edgerun.plan.planner import make_plan
from edgerun.plan.programs import Programs, compile_plan
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore
from edgerun_export.architectures import DecoderSpec, describe
from edgerun_export.pipeline import ExportOptions, export
from tools.bench import random_model

GOLDEN = Path(__file__).parents[1] / "golden"
# A ternary model that is small enough to be run on simulated hardware.
SMALL_MODEL = Path(__file__).parents[2] / "models" / "small" / "bundle"
TINY_EXPERTS = {
    **random_model.PRESETS["qwen3-30b-a3b"],
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 264,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """The configuration of a golden checkpoint, changed."""
    return {**json.loads((GOLDEN / name / "config.json").read_text()), **changes}


def spec_without(name: str, *keys: str, **changes: Any) -> DecoderSpec:
    """What a golden checkpoint's configuration means that leaves keys out."""
    return describe({k: v for k, v in config_of(name, **changes).items() if k not in keys})


@cache
def _folder() -> Path:
    """A folder for all bundles of this process, which goes when the process ends."""
    folder = Path(mkdtemp(prefix="edgerun-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def bundle_of(name: str, **options: str) -> Path:
    """Exports a golden checkpoint once per process."""
    folder = Path(mkdtemp(prefix=f"{name}-", dir=_folder())) / "bundle"
    export(GOLDEN / name, folder, ExportOptions(**options))
    return folder


@dataclass
class Runner:
    """A model on one back-end, with one sequence."""

    bundle: Bundle
    programs: Programs
    cache: SequenceStore
    sequence: int
    length: int = field(default=0)

    def run(self, ids: Sequence[int] | NDArray[np.int32]) -> NDArray[np.float32]:
        """Appends ids and returns the logits of all of them, as many a call as programs take."""
        most = self.programs.max_rows
        if len(ids) > most:
            return np.concatenate([self.run(ids[:most]), self.run(ids[most:])])
        batch = Batch.of(np.asarray(ids, np.int32), self.length, self.sequence, logits="all")
        self.length += len(ids)
        self.cache.reserve(self.sequence, self.length)
        logits = self.programs.run(batch, self.cache)["logits"].copy()
        self.cache.commit(self.sequence, self.length)
        return logits

    def restart(self) -> None:
        """Begins another sequence in the place of this one."""
        self.cache.close(self.sequence)
        self.sequence, self.length = self.cache.open(), 0


@contextmanager
def runner(
    folder: Path,
    backend: str,
    *,
    threads: int = 1,
    kv_cache: str = "fp32",
    max_rows: int = 64,
    context: int = 256,
    sequences: int = 1,
    trits: bool = False,
) -> Iterator[Runner]:
    """Compiles a bundle for one back-end."""
    bundle = open_bundle(folder)
    given = {"threads": threads, "pack": "trits" if trits else "two_bits"}
    backends = [make_backend(backend, given=given)]
    spec = states_of(bundle.graph, bundle.config, kv_cache)
    plan = make_plan(bundle.graph, backends)
    programs = compile_plan(plan, backends, buckets(max_rows), CompileOptions(spec))
    cache = SequenceStore(spec, context, sequences)
    try:
        yield Runner(bundle, programs, cache, cache.open())
    finally:
        programs.close()
        for each in backends:
            each.close()


def error_of(computed: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Largest difference relative to the range of the expected values."""
    spread = float(expected.max() - expected.min())
    return float(np.abs(computed - expected).max()) / spread


def tiny_experts(folder: Path, weights: str, **sizes: int) -> Path:
    """The bundle of a random mixture of experts, with the layers and experts of ``sizes``."""
    random_model.write({**TINY_EXPERTS, **sizes}, folder / "checkpoint")
    export(folder / "checkpoint", folder / "bundle", ExportOptions(weights=weights))
    return folder / "bundle"
