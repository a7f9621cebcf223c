"""Compares logits of GGUF files: llama.cpp's, and those of edgerun's exporter in NumPy.

    pip install llama-cpp-python
    python -m tools.golden.llama_cpp.compare FOLDER   # of what ``copies.py`` left there

Each line is a file and how far the two are apart, in units of the logits' range: 1e-6 where both
read it alike, some percent where weights are rounded and activations are, too. Files of tests lack
keys that edgerun does not read, or have sizes and layers that llama.cpp takes for granted, and then
llama.cpp says why it does not load them. It pads contexts to 256 tokens, so that it takes the long
factors of the tiny Phi-3 and MiniCPM; of EXAONE 4 it knows windows in models of 64 layers alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import EdgerunError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from edgerun_export.verify.numpy_model import forward
from tests.support.gguf_model import IDS

ALIKE = 2e-2
F32 = NDArray[np.float32]
# In a process of its own: an assertion of ggml ends it. Keys and values are float32.
CHILD = """
import sys, numpy, llama_cpp
ids = [int(word) for word in sys.argv[3].split()]
model = llama_cpp.Llama(sys.argv[1], n_ctx=32, n_batch=32, n_threads=1, logits_all=True,
                        type_k=0, type_v=0, use_mmap=False, verbose=True)
model.eval(ids)
numpy.save(sys.argv[2], numpy.array(model.scores[: len(ids)], numpy.float32))
"""
TELLING = ("error loading model", "GGML_ASSERT", "unknown model")


def main() -> None:
    """Compares the files of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    for path in sorted(parser.parse_args().folder.glob("*.gguf")):
        print(f"{_verdict(path)}  {path.stem}", flush=True)


def _verdict(path: Path) -> str:
    try:
        ours = logits_of(path)
    except EdgerunError as error:
        return f"refused here ({str(error)[:60]})"
    theirs = llama_cpp_logits(path)
    if isinstance(theirs, str):
        return f"llama.cpp: {theirs}"
    theirs = theirs[:, : ours.shape[1]]
    difference = float(np.abs(ours - theirs).max() / np.ptp(ours))
    return f"{'alike' if difference < ALIKE else 'DIFFERS'} {difference:.1e}"


def logits_of(path: Path) -> F32:
    """What edgerun's exporter reads in a file: logits ``[tokens, vocabulary]``.

    Raises:
        EdgerunError: it does not read it.
    """
    with open_checkpoint(str(path)) as checkpoint:
        source, _ = interpret(checkpoint)
        return np.asarray(forward(source.spec, source, IDS), np.float32)


def llama_cpp_logits(path: Path) -> F32 | str:
    """The same of llama.cpp, or why there are none."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        words = [sys.executable, "-c", CHILD, str(path), str(out), " ".join(map(str, IDS))]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        if out.exists():
            return np.asarray(np.load(out), np.float32)
    lines = [line for line in ended.stderr.splitlines() if any(word in line for word in TELLING)]
    return lines[0][-110:] if lines else f"exit code {ended.returncode}"


if __name__ == "__main__":
    main()
