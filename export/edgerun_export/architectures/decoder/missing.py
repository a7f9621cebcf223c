"""What known architectures have that no bundle has a form for, so that a refusal can say it."""

from __future__ import annotations

from collections.abc import Mapping

_GEMMA_3N = (
    "four residual streams (AltUp), low-rank layers beside attention (LAuReL), and activations cut "
    "off by their spread"
)
_RECURRENT = "linear recurrences"
# By the names of Hugging Face and, where those differ, of GGUF.
MISSING: Mapping[str, str] = {
    "falcon_mamba": _RECURRENT,
    "gemma2": "a bound on the scores of attention (softcapping)",
    "gemma3": "pictures; its text model alone is in GGUF files, and in checkpoints of gemma3_text",
    "gemma3n": _GEMMA_3N,
    "gemma3n_text": _GEMMA_3N,
    "lfm2_vl": "pictures",
    "mamba": _RECURRENT,
    "mamba2": _RECURRENT,
}


def reason(name: object) -> str:
    """How a refusal of an architecture goes on after its name."""
    missing = MISSING.get(name) if isinstance(name, str) else None
    return f": a bundle has no form for {missing}" if missing else ""
