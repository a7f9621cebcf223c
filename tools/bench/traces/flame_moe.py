"""Turns routing traces of FLAME-MoE into ours, for whoever has them.

    python -m tools.bench.traces.flame_moe FOLDER/actives/iter_5473 -o FILE.trace [--tokens 8192]

Kang, Yu and Xiong 2025 (arXiv 2505.20225) recorded where tokens went at several points of training;
under Apache-2.0 this is the data set CMU-FLAME/FLAME-MoE-Traces. Its
description says what is read here: a folder for each point, in it a Parquet file for each layer of
experts, ``layer_02.parquet`` and so on, in it a row for each token with two columns, ``scores``
(six float16, the router's probabilities, falling) and ``indices`` (six int16, the experts from 0
to 63). Shared experts, which every token goes to, are not in it; rows of the layers belong
together. Layers keep the numbers of their files.

To read Parquet takes ``pyarrow``, which edgerun needs for nothing else.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import EdgerunError, InputError
from edgerun.files.output import check_output
from edgerun.offload.trace_file import CHOICE, Trace, write_trace

EXPERTS, TOP_K = 64, 6
TOKENS = 8192  # of 52,428,800, which would be 10 GB of ours
COLUMNS = {"scores": "floating", "indices": "integer"}  # and what they are lists of
LAYER_FILE = re.compile(r"layer_(\d{2,3})\.parquet")
ROUNDING = 2**-11  # of a float16, relative: as much may a score exceed the one before

# Both [tokens, TOP_K]: whatever floating and whole numbers a file has.
Rows: TypeAlias = tuple[NDArray[np.floating[Any]], NDArray[np.integer[Any]]]


def main() -> int:
    """Converts what the command line names."""
    options = parser().parse_args()
    try:
        check_output(options.output, replace=options.force)
        trace = convert(options.folder, options.skip, options.tokens)
        size = write_trace(options.output, trace)
    except EdgerunError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(
        f"{options.output}: {trace.tokens} tokens, {len(trace.layers)} layers, {size} bytes\n"
    )
    return 0


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    command_line = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command_line.add_argument("folder", type=Path, help="of a point of training: iter_NNNN")
    command_line.add_argument("-o", "--output", type=Path, required=True)
    command_line.add_argument("--tokens", type=int, default=TOKENS, help="at most")
    command_line.add_argument("--skip", type=int, default=0, help="tokens before them")
    command_line.add_argument("--force", action="store_true", help="replace the output")
    return command_line


def convert(
    folder: Path, skip: int, tokens: int, read: Callable[[Path, int, int], Rows] | None = None
) -> Trace:
    """Reads the choices of all layers of a folder.

    Args:
        folder: with a file for each layer.
        skip: tokens to leave out at the beginning.
        tokens: to read, at most.
        read: returns some rows of a file; ``read_parquet`` unless given.

    Returns:
        the trace; all of its tokens count as the prompt's.

    Raises:
        InputError: there are no such files, they do not belong together, or hold something else.
    """
    if skip < 0 or tokens < 1:
        raise InputError(f"{tokens} tokens after {skip} cannot be read: name 1 or more, after 0")
    files = layer_files(folder)
    choices = []
    for path in files.values():
        scores, experts = (read or read_parquet)(path, skip, tokens)
        check_rows(path, scores, experts)
        if choices and len(choices[0]) != len(scores):
            raise InputError(
                f"{path} has {len(scores)} of the tokens and layers before it {len(choices[0])}: "
                "these files are not of one recording, or one was cut off"
            )
        choices.append(np.zeros(scores.shape, CHOICE))
        choices[-1]["expert"], choices[-1]["weight"] = experts, scores
    name = "/".join(folder.absolute().parts[-3:])
    stacked = np.stack(choices, axis=1)
    return Trace(f"FLAME-MoE {name}", tuple(files), EXPERTS, len(stacked), stacked)


def layer_files(folder: Path) -> dict[int, Path]:
    """The files of layers by their numbers, ascending.

    Raises:
        InputError: there are none.
    """
    try:
        matches = {path: LAYER_FILE.fullmatch(path.name) for path in folder.iterdir()}
    except OSError as error:
        raise InputError(f"cannot look into {folder}: {error.strerror}") from error
    files = {int(match[1]): path for path, match in matches.items() if match}
    if not files:
        raise InputError(
            f"{folder} has no layer_NN.parquet: name a folder of one point of training, such as "
            "flame-moe-290m/actives/iter_5473"
        )
    return dict(sorted(files.items()))


def read_parquet(path: Path, skip: int, tokens: int) -> Rows:
    """Scores and experts of some tokens of a layer, ``[tokens, TOP_K]``.

    Raises:
        InputError: it is no such file, or ends before these tokens.
    """
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError as error:
        raise InputError("to read Parquet takes pyarrow: `pip install pyarrow`") from error
    batches: list[Any] = []
    try:
        with parquet.ParquetFile(path) as file:
            for name, numbers in COLUMNS.items():
                if name not in file.schema_arrow.names:
                    raise InputError(f"{path} has no column {name!r}: it is no file of a layer")
                kind = file.schema_arrow.field(name).type
                is_list = types.is_list(kind) or types.is_fixed_size_list(kind)
                if not is_list or not getattr(types, f"is_{numbers}")(kind.value_type):
                    raise InputError(
                        f"{path} has {kind} in the column {name!r}, where lists of {TOP_K} "
                        f"{numbers} numbers were expected"
                    )
            count = 0
            for batch in file.iter_batches(columns=list(COLUMNS)):
                batches.append(batch)
                count += len(batch)
                if count >= skip + tokens:
                    break
    except (ArrowException, OSError) as error:
        raise InputError(f"cannot read {path} as Parquet: {str(error).splitlines()[0]}") from error
    columns = [_column(path, [each.column(name) for each in batches]) for name in COLUMNS]
    scores, experts = (column[skip : skip + tokens] for column in columns)
    if not len(scores):
        raise InputError(f"{path} ends before token {skip}")
    return scores, experts


def _column(path: Path, chunks: list[Any]) -> NDArray[Any]:
    """Lists of ``TOP_K`` numbers as a matrix."""
    from pyarrow.compute import list_value_length

    flat = [chunk.flatten() for chunk in chunks]
    rows = sum(map(len, chunks))
    lengths = {each for chunk in chunks for each in list_value_length(chunk).unique().to_pylist()}
    if not rows or lengths != {TOP_K}:
        raise InputError(f"{path} has tokens that go to other than {TOP_K} experts, or has none")
    if any(each.null_count for each in flat):
        raise InputError(f"{path} lacks some of its numbers: it is no trace of FLAME-MoE")
    numbers = [each.to_numpy(zero_copy_only=False) for each in flat]
    return np.concatenate(numbers).reshape(rows, TOP_K)


def check_rows(
    path: Path, scores: NDArray[np.floating[Any]], experts: NDArray[np.integer[Any]]
) -> None:
    """Compares what was read with what is documented of it.

    Raises:
        InputError: it is something else.
    """
    problem = ""
    sums = scores.astype(np.float64)
    if not np.isfinite(sums).all() or (sums < 0).any() or (sums.sum(axis=1) > 1.01).any():
        problem = "scores that are no probabilities"
    elif (sums[:, 1:] > sums[:, :-1] * (1 + ROUNDING)).any():
        problem = "scores that do not fall"
    elif ((experts < 0) | (experts >= EXPERTS)).any():
        problem = f"experts beyond 0 to {EXPERTS - 1}"
    elif (np.diff(np.sort(experts, axis=1), axis=1) == 0).any():
        problem = "tokens that go to an expert twice"
    if problem:
        raise InputError(f"{path} has {problem}: it is no trace of FLAME-MoE, or was altered")


if __name__ == "__main__":
    sys.exit(main())
