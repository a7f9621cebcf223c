"""What kind of stand-in a user asks for: ``memory=64M,link=2G,latency=20us``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from edgerun.errors import InputError
from edgerun.values import shown

SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
UNITS: Mapping[str, Mapping[str, float]] = {"memory": SIZES, "link": SIZES, "latency": TIMES}
EXAMPLE = "memory=256M,link=2G,latency=20us"


@dataclass(frozen=True, slots=True)
class StandinSpec:
    """A stand-in.

    Attributes:
        memory_bytes: that it has for experts.
        link_bytes_s: that reach it.
        latency_s: of an upload.
    """

    memory_bytes: int = 256 << 20
    link_bytes_s: float = 2 * (1 << 30)
    latency_s: float = 20e-6

    @classmethod
    def read(cls, text: str) -> StandinSpec:
        """Reads what a user wrote; what is left out is as in ``EXAMPLE``.

        Raises:
            InputError: it is not written like that.
        """
        fields: dict[str, float] = {}
        for entry in filter(None, text.split(",")):
            name, sign, value = entry.partition("=")
            name, units = name.strip(), UNITS.get(name.strip(), {})
            match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-zA-Z]*)", value.strip())
            if not sign or not match or match[2] not in units or name in fields:
                raise InputError(
                    f"the stand-in {shown(text)} is not understood; expected memory, link and "
                    f"latency, or some of them, as in {EXAMPLE}"
                )
            fields[name] = float(match[1]) * units[match[2]]
        memory, link = fields.pop("memory", None), fields.pop("link", None)
        usual = cls()
        device = cls(
            usual.memory_bytes if memory is None else int(memory),
            usual.link_bytes_s if link is None else link,
            fields.get("latency", usual.latency_s),
        )
        if min(device.memory_bytes, device.link_bytes_s) < 1:
            raise InputError(f"a stand-in without memory or link: {shown(text)}; try {EXAMPLE}")
        return device
