"""llama.cpp as a peer, through the C interface that llama-cpp-python binds."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

LIBRARIES = Path(llama_cpp.__file__).parent / "lib"


def commit(folder: Path) -> str:
    """The commit of llama.cpp that a folder of libraries was built from, as ggml states it.

    ``unknown`` where the sources had no history, as in an archive; the changelog of
    llama-cpp-python names the commit of each release then.
    """
    for library in sorted(folder.glob("libggml-base.*")):
        with contextlib.suppress(OSError, AttributeError):
            stated = ctypes.CDLL(str(library)).ggml_commit
            stated.restype = ctypes.c_char_p
            return str((stated() or b"unknown").decode())
    return "unknown"


class LlamacppRunner:
    """One sequence in a context of its own."""

    version = (
        f"{llama_cpp.__version__} (llama.cpp commit {commit(LIBRARIES)}); "
        f"{llama_cpp.llama_print_system_info().decode().strip()}"
    )

    def __init__(self, model: Any, context: Any) -> None:
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def reset(self) -> None:
        llama_cpp.llama_memory_clear(self._memory, True)

    def run(self, ids: list[int]) -> int:
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        status = llama_cpp.llama_decode(
            self._context, llama_cpp.llama_batch_get_one(tokens, len(ids))
        )
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        logits = llama_cpp.llama_get_logits_ith(self._context, -1)
        floats = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(floats, (self.vocab_size,)).argmax())


def load(path: Path, threads: int, context: int) -> LlamacppRunner:
    """Loads a GGUF file."""
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path.name}; its reason is above")
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = context
    settings.n_threads = settings.n_threads_batch = threads
    state = llama_cpp.llama_init_from_model(model, settings)
    if not state:
        raise RuntimeError("llama.cpp cannot make a context; its reason is above")
    return LlamacppRunner(model, state)
