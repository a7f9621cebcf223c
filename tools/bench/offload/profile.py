"""Machines with a device beside the processor: files in which figures say where they are from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgerun.errors import InputError
from edgerun.files.plain import read_plain

FOLDER = Path(__file__).with_name("profiles")
MAX_FILE_BYTES = 1 << 20
F64 = NDArray[np.float64]


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number and where it comes from.

    Attributes:
        value: in bytes, multiply-adds and seconds.
        basis: how it is known.
        source: what was measured with what, or what the assumption stands on.
        date: ``YYYY-MM-DD``.
    """

    value: Annotated[float, msgspec.Meta(gt=0)]
    basis: Literal["measured", "assumed"]
    source: Annotated[str, msgspec.Meta(min_length=1)]
    date: Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d$")]


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a machine can do.

    Attributes:
        title: what it is.
        cpu_read_bytes_s: that all threads of the processor read from memory.
        cpu_macs_s: multiply-adds a second of its kernels with many rows.
        device_read_bytes_s: that the device reads from its memory.
        device_macs_s: multiply-adds a second of its kernels with many rows.
        product_s: what an expert costs on the device besides.
        link_bytes_s: from the processor's memory to the device's.
        upload_s: what an upload costs besides.
        layer_s: what a layer's attention and the calls of its kernels take, weights aside.
    """

    title: str
    cpu_read_bytes_s: Figure
    cpu_macs_s: Figure
    device_read_bytes_s: Figure
    device_macs_s: Figure
    product_s: Figure
    link_bytes_s: Figure
    upload_s: Figure
    layer_s: Figure

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Reads a file.

        Raises:
            InputError: there is none, or a figure is missing or says not where it is from.
        """
        try:
            return msgspec.json.decode(read_plain(path, MAX_FILE_BYTES), type=cls)
        except OSError as error:
            raise InputError(f"the profile {path} cannot be read: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise InputError(f"{path} is no profile of a device: {error}") from error

    def figures(self) -> Mapping[str, Figure]:
        """All figures by name."""
        names = [name for name in self.__struct_fields__ if name != "title"]
        return {name: getattr(self, name) for name in names}


def profiles() -> dict[str, Profile]:
    """Those that are committed, by the names of their files."""
    return {path.stem: Profile.read(path) for path in sorted(FOLDER.glob("*.json"))}


@dataclass(frozen=True)
class Model:
    """The shape of a mixture of experts.

    Attributes:
        layers: that have experts.
        experts: of a layer.
        top_k: experts of a token.
        hidden: width of a row.
        width: of an expert.
        attention: weights of a layer's attention.
    """

    layers: int
    experts: int
    top_k: int
    hidden: int
    width: int
    attention: int

    @property
    def expert_weights(self) -> int:
        """Weights of an expert."""
        return 3 * self.hidden * self.width


# From the config.json of each; attention is q, k, v and o (deepseek: with its compressed cache).
MODELS: Mapping[str, Model] = {
    "deepseek-v2-lite": Model(26, 64, 6, 2048, 1408, 13_000_000),
    "gpt-oss-120b": Model(36, 128, 4, 2880, 2880, 26_542_080),
    "gpt-oss-20b": Model(24, 32, 4, 2880, 2880, 26_542_080),
    "mixtral-8x7b": Model(32, 8, 2, 4096, 14336, 41_943_040),
    "olmoe-1b-7b": Model(16, 64, 8, 2048, 1024, 16_777_216),
    "qwen3-30b-a3b": Model(48, 128, 8, 2048, 768, 18_874_368),
}
WEIGHT_BYTES = 4 / 8 + 4 / 32  # int4 with a float32 scale for 32


@dataclass(frozen=True)
class Speeds:
    """What the experts of a model cost on a machine."""

    profile: Profile
    model: Model

    def costs(self, rows: NDArray[np.int64], is_cached: NDArray[np.bool_]) -> F64:
        """Seconds of active experts on processor, device and link, ``[experts, 3]``.

        Weights are read once, whatever the rows; where these are many, multiplying takes longer.
        """
        machine, weights = self.profile, self.model.expert_weights
        nbytes = weights * WEIGHT_BYTES
        cpu = np.maximum(
            nbytes / machine.cpu_read_bytes_s.value, rows * weights / machine.cpu_macs_s.value
        )
        device = machine.product_s.value + np.maximum(
            nbytes / machine.device_read_bytes_s.value, rows * weights / machine.device_macs_s.value
        )
        upload = machine.upload_s.value + nbytes / machine.link_bytes_s.value
        return np.stack([cpu, device, np.where(is_cached, 0.0, upload)], axis=1)

    def between_s(self, rows: int) -> float:
        """Seconds between two layers of experts: the attention of one, on the device."""
        machine, weights = self.profile, self.model.attention
        read = weights * WEIGHT_BYTES / machine.device_read_bytes_s.value
        return machine.layer_s.value + max(read, rows * weights / machine.device_macs_s.value)
