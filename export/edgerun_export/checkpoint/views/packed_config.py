"""What a checkpoint's configuration says of layers that GPTQ or AWQ has packed.

- ``gptq`` (GPTQModel, ``quantization/config.py``; transformers, ``GPTQConfig``): ``bits``,
  ``group_size`` (-1: a scale of each output), ``sym``, ``checkpoint_format`` or ``format``,
  ``pack_dtype``, and ``dynamic``, which gives some layers other settings, by their names.
- ``awq`` (AutoAWQ, ``models/_config.py``; transformers, ``AwqConfig``): ``bits``, ``group_size``,
  ``zero_point``, ``version`` or ``format``, ``backend``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgerun.errors import UnsupportedError
from edgerun.values import shown
from edgerun_export.checkpoint.views.integer_types import AWQ, GPTQ, READABLE

_METHODS = {"gptq": GPTQ, "awq": AWQ}
_VERSION_KEYS = {"gptq": ("checkpoint_format", "format"), "awq": ("version", "format")}
# By the versions that are read: what stored zero points are less than those meant.
_VERSIONS = {"gptq": {"gptq": 1, "gptq_v2": 0}, "awq": {"awq": 0, "gemm": 0}}
_INSTEAD = "take such a checkpoint, or export the model's unquantised one"


@dataclass(frozen=True, slots=True)
class Packing:
    """How a checkpoint packs its layers.

    Attributes:
        method: ``AWQ`` or ``GPTQ``.
        bits: of a code.
        less: what stored zero points are less than those meant.
        group_size: inputs that share a scale; -1 for all, None where the configuration is silent.
        symmetric: whether all zero points are said to be the middle of the codes.
        is_mixed: whether some layers are said to have other bits or groups.
    """

    method: str
    bits: int
    less: int
    group_size: int | None = None
    symmetric: bool = False
    is_mixed: bool = False

    @property
    def is_awq(self) -> bool:
        """Whether codes are packed along the outputs."""
        return self.method == AWQ


def packing_of(config: Mapping[str, Any]) -> Packing | None:
    """What ``config.json`` says of packed layers; None if there are none.

    Raises:
        UnsupportedError: they are packed in a way that is not known.
    """
    settings = config.get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    if not isinstance(settings, Mapping) or not isinstance(method, str) or method not in _METHODS:
        return None
    bits, version = settings.get("bits", 4), _version(settings, method)
    name = f"{_METHODS[method]}{bits}"
    if type(bits) is not int or name not in READABLE[_METHODS[method]]:
        raise UnsupportedError(
            f"config.json has {method} weights of {shown(bits)} bits; supported are "
            f"{', '.join(READABLE[_METHODS[method]])}, so {_INSTEAD}"
        )
    if version not in _VERSIONS[method]:
        raise UnsupportedError(
            f"config.json has {method} weights in the form {shown(version)}; supported are "
            f"{', '.join(_VERSIONS[method])}, so {_INSTEAD}"
        )
    if settings.get("pack_dtype", "int32") not in (None, "int32"):
        raise UnsupportedError(
            f"config.json has {method} weights packed in {shown(settings['pack_dtype'])}; "
            f"supported is int32, so {_INSTEAD}"
        )
    return Packing(
        _METHODS[method],
        bits,
        _VERSIONS[method][version],
        _group_size(settings),
        settings.get("sym") is True or settings.get("zero_point") is False,
        bool(settings.get("dynamic")),
    )


def _version(settings: Mapping[str, Any], method: str) -> str:
    """The form in which layers are packed, in lower case."""
    if settings.get("is_marlin_format"):
        return "marlin"
    if str(settings.get("backend")).lower() == "llm-awq":
        return "llm-awq"
    stated = next((settings[key] for key in _VERSION_KEYS[method] if settings.get(key)), method)
    return str(stated).lower()


def _group_size(settings: Mapping[str, Any]) -> int | None:
    size = settings.get("group_size")
    if size is None or (type(size) is int and (size == -1 or size > 0)):
        return size
    raise UnsupportedError(
        f"config.json: group_size is {shown(size)}; expected the inputs that share a scale, a "
        f"whole number above 0 or -1 for all of them, so correct it or {_INSTEAD}"
    )
