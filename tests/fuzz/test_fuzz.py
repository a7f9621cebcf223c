"""Hostile files of every kind end in tokens or in one sentence, and touch nothing else.

A case fails if it ends its process, raises anything but an ``EdgerunError``, opens or starts
something outside its folder, writes to the terminal, or takes more memory than its files and
256 MB. ``docs/fuzzing.md`` tells how to go on from a failure.
"""

from __future__ import annotations

import pytest

from tests.fuzz.client import Servers
from tests.fuzz.kinds import KINDS

DEFAULT_CASES = 2_000
SLOW_CASES = 50_000
UNCOMPILED_SHARE = 0.1
SHOWN = 10


# The first server may have to compile kernels, on a machine that is busy.
pytestmark = pytest.mark.timeout(1200)


def check(servers: Servers, kind: str, first: int, count: int) -> None:
    summary = servers.run(kind, range(first, first + count))
    assert len(summary.outcomes) == count
    failures = summary.failures
    assert not failures, f"{len(failures)} of {count} cases\n" + "\n".join(
        map(str, failures[:SHOWN])
    )
    assert len(summary.uncompiled) <= UNCOMPILED_SHARE * count
    assert summary.count("refused")


def test_the_default_run_has_its_cases() -> None:
    assert sum(kind.share for kind in KINDS.values()) >= DEFAULT_CASES


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files_are_used_or_refused(servers: Servers, kind: str) -> None:
    check(servers, kind, 0, KINDS[kind].share)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("kind", KINDS)
def test_many_hostile_files_are_used_or_refused(servers: Servers, kind: str) -> None:
    share = sum(each.share for each in KINDS.values())
    check(servers, kind, 1_000_000, -(-SLOW_CASES * KINDS[kind].share // share))
