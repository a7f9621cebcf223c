"""What a teacher says of every token of some sources, on disk; no torch.

Of a source there are two arrays [tokens, k] beside each other: the ids that are likeliest after
each token, `<source>.ids.npy` (uint16), and their log p, `<source>.log_p.npy` (float16). Where the
teacher says nothing log p is -inf. `<source>.done` has the number of documents that are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from tools.train_default.batches import Source

Array = np.ndarray


def files(folder: Path, source: str) -> tuple[Path, Path]:
    """Of ids and of log p."""
    return folder / f"{source}.ids.npy", folder / f"{source}.log_p.npy"


def note_of(folder: Path, source: str) -> Path:
    """The file that says how many documents are written."""
    return folder / f"{source}.done"


def open_targets(folder: Path, source: str, tokens: int, k: int) -> tuple[Array, Array]:
    """Writable arrays on disk; new ones say nothing, and no document of theirs is written.

    Raises:
        ValueError: there are some of another size.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ids_file, log_p_file = files(folder, source)
    if not (ids_file.exists() and log_p_file.exists()):
        note_of(folder, source).unlink(missing_ok=True)
        open_memmap(ids_file, "w+", np.uint16, (tokens, k)).flush()
        draft = log_p_file.with_suffix(".part")
        log_p = open_memmap(draft, "w+", np.float16, (tokens, k))
        log_p[:] = -np.inf
        log_p.flush()
        draft.replace(log_p_file)
    ids, log_p = open_memmap(ids_file, "r+"), open_memmap(log_p_file, "r+")
    if ids.shape != (tokens, k) or log_p.shape != ids.shape:
        raise ValueError(f"{ids_file}: has shape {ids.shape}, not {(tokens, k)}; remove it")
    return ids, log_p


class SoftTargets:
    """Looks up what is said at places among the tokens of all sources.

    Args:
        folder: of the arrays; sources without any are silent.
        sources: that rows come from.

    Raises:
        ValueError: a source has targets for another number of tokens, or there are none.
    """

    def __init__(self, folder: Path, sources: Mapping[str, Source]) -> None:
        self.parts: list[tuple[int, Array, Array]] = []
        for name, source in sources.items():
            ids_file, log_p_file = files(folder, name)
            if not log_p_file.exists():
                continue
            ids, log_p = (np.load(path, mmap_mode="r") for path in (ids_file, log_p_file))
            if len(ids) != len(source.ids):
                raise ValueError(f"{ids_file} is of {len(ids)} tokens, not {len(source.ids)}")
            self.parts.append((source.first, ids, log_p))
        if not self.parts:
            raise ValueError(f"no targets of {', '.join(sources)} in {folder}")

    def at(self, places: Array) -> tuple[Array, Array]:
        """Ids (int32) and log p (float32) [..., k] after the tokens at places [...]; PAD: none."""
        shape = (*places.shape, self.parts[0][1].shape[1])
        out_ids, out_log_p = np.zeros(shape, np.int32), np.full(shape, -np.inf, np.float32)
        for first, ids, log_p in self.parts:
            inside = (places >= first) & (places < first + len(ids))
            out_ids[inside] = ids[places[inside] - first]
            out_log_p[inside] = log_p[places[inside] - first]
        return out_ids, out_log_p
