"""What a layer remembers from one call to the next, as its op declares it.

A model's states are a tuple, one entry a layer that remembers anything. They are read from the
lowered graph, node by node; nothing else says how large a cache is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

CODEC = "fp16"
_MATRICES = "recurrent"
CALL_TOKENS = 512


@dataclass(frozen=True, slots=True)
class AttentionState:
    """A key and a value for every token that a row may still attend to; any tail can be dropped.

    A convolution over the latest tokens keeps what it is given of each as a key without a value,
    in a window.

    Attributes:
        name: what the layer calls it, unique in a model; see ``attention_name``.
        kv_heads: heads of keys and values.
        key_dim: elements of a key.
        value_dim: elements of a value; 0 for none.
        window: positions that a row sees, its own included; 0 for all before it.
        codec: how keys and values are stored: the name of a file in ``state/codecs``.
        call_tokens: that a layer with a window keeps beyond it while a call runs: those of the
            call, and those up to pages' ends. No layer declares it, so states that differ in
            nothing else are equal.
        values_are_keys: values are not stored: the value of a token is its key.
    """

    name: str
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int = 0
    codec: str = CODEC
    call_tokens: int = field(default=CALL_TOKENS, compare=False)
    values_are_keys: bool = False


@dataclass(frozen=True, slots=True)
class RecurrentArray:
    """One array of a recurrent state, float32.

    Attributes:
        name: what the layer calls it.
        shape: its dimensions; it is the same for a sequence of any length, and begins as zeros.
    """

    name: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes for one sequence."""
        return 4 * prod(self.shape)


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """Arrays of fixed size that every token changes; they go back to a checkpoint only.

    Attributes:
        name: what the layer calls it, unique in a model.
        arrays: what it consists of.
    """

    name: str
    arrays: tuple[RecurrentArray, ...]


State: TypeAlias = AttentionState | RecurrentState


def attention_name(layer: int) -> str:
    """The name of a layer's keys and values, as model files call them (``….key``, ``….value``)."""
    return f"past_key_values.{layer}"


def matrices_name(layer: int) -> str:
    """The name of matrices that a layer keeps, which may have keys and values, too."""
    return f"{attention_name(layer)}.{_MATRICES}"


def owners_of(name: str) -> tuple[str, ...]:
    """Names of the states that an input of a model file may belong to."""
    layer, _, kind = name.rpartition(".")
    return (layer, f"{layer}.{_MATRICES}") if kind in ("conv", _MATRICES) else (layer,)


def attention_of(states: Iterable[State], layer: int) -> AttentionState | None:
    """What an attention layer keeps; None if nothing says so."""
    for state in states:
        if isinstance(state, AttentionState) and state.name == attention_name(layer):
            return state
    return None


def geometries(states: Iterable[State]) -> list[list[AttentionState]]:
    """The attention states among some, in groups that differ in nothing but their names."""
    groups: dict[AttentionState, list[AttentionState]] = {}
    for state in states:
        if isinstance(state, AttentionState):
            groups.setdefault(replace(state, name=""), []).append(state)
    return list(groups.values())


def same_attention(
    layers: int, kv_heads: int, head_dim: int, codec: str = CODEC, window: int = 0
) -> tuple[AttentionState, ...]:
    """The states of a model all of whose layers attend alike."""
    return tuple(
        AttentionState(attention_name(layer), kv_heads, head_dim, head_dim, window, codec)
        for layer in range(layers)
    )
