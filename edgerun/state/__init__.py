"""What programs read and write between calls: the ragged batch and the states of sequences."""

from edgerun.state.batch import Batch
from edgerun.state.kv_cache import CacheSpec, KVCache
from edgerun.state.spec import AttentionState, RecurrentState, State
from edgerun.state.store import Room, Slot, StateStore

__all__ = [
    "AttentionState",
    "Batch",
    "CacheSpec",
    "KVCache",
    "RecurrentState",
    "Room",
    "Slot",
    "State",
    "StateStore",
]
