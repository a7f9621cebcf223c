"""All faults, each under a name of its own."""

from __future__ import annotations

from itertools import chain

from tests.support.expert_faults import files, process, reads
from tests.support.expert_faults.fault import Fault

FAULTS: tuple[Fault, ...] = tuple(
    chain(reads.faults(), files.faults(), process.faults()),
)
