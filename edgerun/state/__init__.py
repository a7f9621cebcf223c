"""What programs read and write between calls: the ragged batch and the states of sequences."""

from edgerun.state.batch import Adjust, Adjustment, Batch, TakeLogits
from edgerun.state.sequences import SequenceStore
from edgerun.state.spec import AttentionState, RecurrentState, State, attention_name, same_attention
from edgerun.state.store import Room, Slot, StateStore

__all__ = [
    "Adjust",
    "Adjustment",
    "AttentionState",
    "Batch",
    "RecurrentState",
    "Room",
    "SequenceStore",
    "Slot",
    "State",
    "StateStore",
    "TakeLogits",
    "attention_name",
    "same_attention",
]
