"""Decides how ternary weights lie in memory: codes of two bits, or trits of 1.6 bits.

Trits are fewer bytes and more instructions, so they decode faster only where memory limits more
than the cores do. Results are the same bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgerun.backends.cpu.families import WEIGHT_BITS
from edgerun.env import settings
from edgerun.machine.profile import MachineProfile, family

GAIN = 1.05  # estimated speed from which trits are chosen: estimates err by some percent
CALIBRATE = "`edgerun doctor --calibrate` measures it"


@dataclass(frozen=True, slots=True)
class Packing:
    """How to pack ternary weights that have a scale a row.

    Attributes:
        trits: 1.6 bits rather than two.
        reason: for people, in a line.
    """

    trits: bool
    reason: str

    @property
    def name(self) -> str:
        """``"trits"`` or ``"two_bits"``."""
        return "trits" if self.trits else "two_bits"


def choose_packing(hint: str, asked: str | None, profile: MachineProfile, threads: int) -> Packing:
    """Decides for this machine.

    Args:
        hint: of the bundle's manifest; one of ``env.PACKS``.
        asked: option of the caller, which wins over ``EDGERUN_PACK``, which wins over the hint.
        profile: measured speeds.
        threads: that will decode.
    """
    choices = (
        (asked, "the pack option"),
        (settings().pack, "EDGERUN_PACK"),
        (hint, "the bundle's manifest"),
    )
    pack, source = next((pack, source) for pack, source in choices if pack is not None)
    if pack != "auto":
        return Packing(pack == "trits", f"{source} asks for it")
    return _faster(profile, threads)


def _faster(profile: MachineProfile, threads: int) -> Packing:
    speeds = [_speed(name, profile, threads) for name in ("ternary", "trits")]
    codes, trits = speeds
    if codes is None or trits is None:
        missing = "memory" if not profile.bandwidth else "unpacking of trits"
        return Packing(False, f"auto, but the speed of {missing} is not known: {CALIBRATE}")
    found = f"auto: decoding with trits is estimated at {trits / codes:.2f} of the speed with codes"
    return Packing(trits >= GAIN * codes, f"{found}, by the machine profile")


def _speed(weights: str, profile: MachineProfile, threads: int) -> float | None:
    """Weights a second that memory and the cores let through in decoding; None if not measured."""
    rates = profile.rates.get(family("int8_row", weights))
    if not rates or not profile.bandwidth:
        return None
    multiplied = rates[min(rates)] * threads / profile.threads
    return min(profile.read_speed(threads) * 8 / WEIGHT_BITS[weights], multiplied)
