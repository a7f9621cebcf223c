"""Who will come for tokens, and whether a call of the model can wait until they have."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_

from edgerun.engine.sequence import Sequence


class Readers:
    """Those who wait for an engine's lock, or for a thread in which to do so.

    Each of many whose replies wait for a slot would make a call before those come that have one,
    which would pause and lose it. So who finds nothing passes while another would find something.
    """

    def __init__(self) -> None:
        """Begins without any."""
        self._awaited: dict[object, Sequence_[Sequence]] = {}
        self._passes = 0  # since the last call

    def begin(self, reader: object, sequences: Sequence_[Sequence]) -> None:
        """Learns that a reader will come for what there is of sequences; needs no lock."""
        self._awaited[reader] = sequences

    def end(self, reader: object) -> None:
        """Learns that a reader has come, or will not; needs no lock."""
        self._awaited.pop(reader, None)

    def let_others_read(self) -> bool:
        """Whether who has the lock is to pass: another reader would find something to take.

        No more pass in turn than there are readers: one who is below a handler of a signal does
        not come before that has returned.
        """
        if self._passes < len(self._awaited) > 1:
            self._passes += 1
            waiting = list(self._awaited.values())  # in one go: others come and leave meanwhile
            if any(sequence.is_ready for each in waiting for sequence in each):
                return True
        self._passes = 0
        return False
