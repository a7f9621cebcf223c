"""What known architectures have that no bundle has a form for, so that a refusal can say it."""

from __future__ import annotations

from collections.abc import Mapping

_RECURRENT = "linear recurrences"
# By the names of Hugging Face and, where those differ, of GGUF.
MISSING: Mapping[str, str] = {
    "falcon_mamba": _RECURRENT,
    "mamba": _RECURRENT,
    "mamba2": _RECURRENT,
}


def reason(name: object) -> str:
    """How a refusal of an architecture goes on after its name."""
    missing = MISSING.get(name) if isinstance(name, str) else None
    return f": a bundle has no form for {missing}" if missing else ""
