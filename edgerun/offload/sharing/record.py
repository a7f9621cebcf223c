"""What sharing layers cost when they were last shared, kept so that plans need not assume it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from edgerun.env import settings
from edgerun.files.private import private_folder, read_private, write_atomically
from edgerun.machine.profile import machine_key
from edgerun.offload.estimates import Estimate, Estimates

logger = logging.getLogger(__name__)

FOLDER = "sharing"
ENOUGH_LAYERS = 500  # that were shared; of fewer nothing is kept
MAX_FILE_BYTES = 1 << 16
MOST = 1e3  # seconds, and by how much more they were: nanoseconds of all stay below a word
LEARNED = ("cpu", "device", "upload", "start", "command", "arrival", "around")


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An ``Estimate`` as it is kept."""

    fixed_s: float
    row_s: float
    factors: dict[int, float]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was learned of a device and layers of a kind.

    Attributes:
        date: when.
        layers: that were shared until then.
        exchange_s: see ``Estimates``.
        prices: by the names of the estimates.
    """

    date: str
    layers: int
    exchange_s: float
    prices: dict[str, Price]

    @classmethod
    def of(cls, estimates: Estimates, layers: int) -> Record:
        """What is known now."""
        prices = {name: _price(getattr(estimates, name)) for name in LEARNED}
        date = datetime.now(timezone.utc).date().isoformat()
        return cls(date, layers, estimates.exchange_s, prices)

    def estimates(self) -> Estimates:
        """The same, which goes on learning; the least that things took is not kept."""
        each = {
            name: Estimate(price.fixed_s, price.row_s, dict(price.factors))
            for name, price in self.prices.items()
        }
        return Estimates(**each, exchange_s=self.exchange_s)

    @property
    def basis(self) -> str:
        """What it stands on, in a line."""
        return f"costs measured {self.date}, over {self.layers} layers that were shared"

    @property
    def is_sound(self) -> bool:
        """Whether all prices are there, and are times."""
        numbers = [self.exchange_s]
        for price in self.prices.values():
            numbers += [price.fixed_s, *price.factors.values()]
            if not 0 <= price.row_s < MOST:
                return False
        return {*self.prices} == {*LEARNED} and all(0 < number < MOST for number in numbers)


def record_path(device: str, kind: Mapping[str, object]) -> Path:
    """Where the record of a device and layers of a kind lies.

    Args:
        device: which, by its back-end.
        kind: what layers have in common, and how many threads the processor has.
    """
    key = msgspec.json.encode([machine_key(), device, sorted(kind.items())])
    return settings().cache_dir / FOLDER / f"{hashlib.sha256(key).hexdigest()[:32]}.json"


def keep(path: Path | None, estimates: Estimates, layers: int) -> None:
    """Keeps what was learned from so many layers, if these are enough and there is a place."""
    if path is not None and layers >= ENOUGH_LAYERS:
        write_record(path, Record.of(estimates, layers))


def read_record(path: Path | None) -> Record | None:
    """What is kept there; None if nothing is, it is damaged, or nothing is to be."""
    if path is None:
        return None
    try:
        record = msgspec.json.decode(read_private(path, MAX_FILE_BYTES), type=Record)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return record if record.is_sound else None


def write_record(path: Path, record: Record) -> None:
    """Keeps a record; where that cannot be done it is as if nothing had been learned."""
    try:
        private_folder(path.parent)
        write_atomically(path, msgspec.json.encode(record))
    except OSError as error:
        logger.info("what sharing costs is not kept: %s", error)


def _price(estimate: Estimate) -> Price:
    return Price(estimate.fixed_s, estimate.row_s, estimate.learned())
