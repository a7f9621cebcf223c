"""llama.cpp on the same GPU with as many experts there, by its own ``llama-bench``."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BINARY = "llama-bench"
TIMEOUT_S = 3600.0
ON_GPU = 999  # layers: all of them


def compared(
    files: Sequence[Path], shares: Sequence[float], tokens: int, device: int, binary: str = BINARY
) -> Iterator[str]:
    """Tokens a second, or a sentence that says why there are none.

    ``-ncmoe N`` leaves the experts of the first N layers to the processor; everything else is the
    GPU's, attention and its keys and values included, which edgerun leaves to the processor.

    Args:
        files: GGUF each.
        shares: of the experts, by bytes, that the GPU may hold; rounded down to whole layers.
        tokens: of a reply.
        device: number of the GPU.
        binary: name or path of ``llama-bench``.
    """
    path = shutil.which(binary)
    if files and path is None:
        yield f"llama.cpp was not measured: there is no {binary} here; build it with -DGGML_CUDA=ON"
        return
    for file in files:
        layers = layer_count(file)
        if layers is None:
            yield f"{file} was not measured: it is no GGUF file that says how many layers it has"
            continue
        for share in shares:
            here = layers - int(share * layers)
            command = [str(path), "-m", str(file), "-ngl", str(ON_GPU), "-ncmoe", str(here)]
            command += ["-mg", str(device), "-p", "0", "-n", str(tokens), "-o", "json"]
            told = _told(command)
            if isinstance(told, str):
                yield f"llama.cpp was not measured: {told}"
                return
            held = (layers - here) / layers
            yield f"{file.name} in llama.cpp, {held:.0%} of experts: {told['avg_ts']:.2f} tokens/s"


def layer_count(file: Path) -> int | None:
    """Layers of a GGUF file; None if it is none, or does not say."""
    from gguf import GGUFReader

    try:
        fields = GGUFReader(file).fields
        architecture = fields["general.architecture"].contents()
        return int(fields[f"{architecture}.block_count"].contents())
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _told(command: list[str]) -> dict[str, Any] | str:
    """What it says of a run; or why it says nothing."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["without a word"]
        return f"{command[0]} ended with code {done.returncode}: {last[0]}"
    (run,) = json.loads(done.stdout)
    if "CUDA" not in run["backends"]:
        return f"{command[0]} was built without CUDA ({run['backends']}); add -DGGML_CUDA=ON"
    measured: dict[str, Any] = run
    return measured
