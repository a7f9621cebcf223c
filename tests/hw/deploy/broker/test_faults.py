"""Whatever goes wrong at whichever action, the board ends with a working application.

Every action of the helper (a file made, written, synchronised, renamed, an attribute or a register
written, xmutil run) is one at which it is killed, the disk is full, or the device fails.
"""

import random
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from edgerun_hw.deploy.emulate.board import Faults, power_cycle
from edgerun_hw.deploy.emulate.dfx_mgr import RELEASES
from tests.hw.deploy.harness import (
    LOADERS,
    ROLLBACK,
    Quick,
    ask,
    board,
    check_tidy,
    converse,
    copies,
    deploy,
    deployment,
    digest_of,
    running,
    without_faults,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)
# A share in the default run, all of them with -m slow.
SHARE = pytest.mark.parametrize(
    "stride", [pytest.param(6, id="share"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)


def boot(root: Path) -> str:
    from edgerun_hw.deploy.broker.session import boot

    return boot(Quick(root))


@SHARE
@LOADERS
def test_kill_at_every_action_of_a_deployment(
    tmp_path: Path, xmutil: bool, stride: int, first, second
) -> None:
    original = board(tmp_path / "board", xmutil, first)
    old, new = digest_of(first), digest_of(second)
    copy = copies(original)
    count, seen = len(deploy(copy(Faults()), second).actions), set()
    assert count > 30
    for at in range(1 + (stride > 1) * xmutil, count + 1, stride):
        root = copy(Faults(at, "kill"))
        result = deploy(root, second)
        status = ask(root, "status")
        if at % 7 % 3 == 0:  # lost power: the logic is empty and the next thing is a start
            power_cycle(root)
            boot(root)
        elif at % 7 % 3 == 1 or status["interrupted"] is None:
            ask(root, "recover", by="test")
        else:
            # Where the deployment counts already this begins a rollback, which, left alone after
            # its first request, is itself taken back.
            ask(root, "rollback", by="test")
        after = running(root)
        assert after in (old, new), (at, result)
        assert status["interrupted"] is not None or status["active"]["digest"] in (old, new)
        check_tidy(root)
        seen.add(after)
        assert deploy(root, second).is_confirmed
        assert running(root) == new
    assert old in seen


@SHARE
@LOADERS
@pytest.mark.parametrize("kind", ["full", "io"])
def test_error_at_every_action_of_a_deployment(
    tmp_path: Path, xmutil: bool, stride: int, kind: str, first, second
) -> None:
    original = board(tmp_path / "board", xmutil, first)
    old, new = digest_of(first), digest_of(second)
    copy = copies(original)
    start = 1 + (stride > 1) * (2 * xmutil + (kind == "io"))
    for at in range(start, len(deploy(copy(Faults()), second).actions) + 1, stride):
        root = copy(Faults(at, kind))
        result = deploy(root, second)
        assert running(root) == (new if result.is_confirmed else old), (at, result)
        if not result.is_confirmed:
            assert result.error is not None and result.error["code"] == "failed"
        without_faults(root)
        assert deploy(root, second).is_confirmed
        check_tidy(root)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "stride", [pytest.param(23, id="share"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
def test_fault_at_every_action_with_every_release_of_dfx_mgr(
    tmp_path: Path, release: str, stride: int, first, second
) -> None:
    """The board works after it, or says what to do and works after that."""
    copy = copies(board(tmp_path / "board", True, first, release=release))
    old, new = digest_of(first), digest_of(second)
    count = len(deploy(copy(Faults()), second).actions)
    start = 1 + list(RELEASES).index(release) * 3 % stride
    for at in range(start, count + 1, stride):
        for kind in ("kill", "io"):
            root = copy(Faults(at, kind))
            result = deploy(root, second)
            if kind == "io":
                assert running(root) == (new if result.is_confirmed else old), (at, result)
            without_faults(root)
            ask(root, "recover", by="test")
            assert running(root) in (old, new), (at, kind, result)
            check_tidy(root)
            assert deploy(root, second).is_confirmed
            assert running(root) == new
            result = converse(root, ROLLBACK)
            assert running(root) == (old if result.is_confirmed else new)


@SHARE
@LOADERS
def test_error_and_then_another_while_taking_back(
    tmp_path: Path, xmutil: bool, stride: int, first, second
) -> None:
    original = board(tmp_path / "board", xmutil, first)
    old, new = digest_of(first), digest_of(second)
    copy, generator = copies(original), random.Random(5)
    count = len(deploy(copy(Faults()), second).actions)
    for _ in range(120 // stride // 2):
        at = generator.randrange(count // 2, count + 1)
        then = at + generator.randrange(1, 25)
        root = copy(Faults(at, "io", then, generator.choice(("kill", "io"))))
        deploy(root, second)
        ask(root, "recover", by="test")
        assert running(root) in (old, new), (at, then)
        check_tidy(root)


@pytest.mark.parametrize(
    "stride", [pytest.param(4, id="share"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
@LOADERS
def test_signal_while_taking_back_does_not_stop_it(
    tmp_path: Path, xmutil: bool, stride: int, first, second
) -> None:
    """Nor does it let the lock go before the old one runs: it is as if it had not come."""
    copy = copies(board(tmp_path / "board", xmutil, first))
    faults = Faults(logic="dead", only=digest_of(second))
    actions, kinds = deploy(copy(faults), second).actions, cycle(("term", "quit", "alrm", "tstp"))
    # The new one is unloaded: behind the old one's unloading, and the making of a node for the new.
    nodes = [n for n, line in enumerate(actions, 1) if "unloadapp" in line or "configfs" in line]
    for at in range(nodes[1 if xmutil else 2], len(actions) + 1, stride):
        root = copy(replace(faults, at=at, kind=next(kinds)))
        result = deploy(root, second)
        assert running(root) == digest_of(first), (at, result)
        assert "undone" in result.answers[-1]
        check_tidy(root)


@SHARE
@LOADERS
def test_kill_at_every_action_of_a_rollback(
    tmp_path: Path, xmutil: bool, stride: int, first, second
) -> None:
    original = board(tmp_path / "board", xmutil, first, second)
    old, new = digest_of(first), digest_of(second)
    copy = copies(original)
    root = copy(Faults())
    result = converse(root, ROLLBACK)
    assert result.is_confirmed and running(root) == old
    for at in range(1, len(result.actions) + 1, stride):
        root = copy(Faults(at, "kill"))
        converse(root, ROLLBACK)
        ask(root, "recover", by="test")
        assert running(root) in (old, new)
        check_tidy(root)


@SHARE
def test_kill_at_every_action_of_the_first_deployment(tmp_path: Path, stride: int, first) -> None:
    copy = copies(board(tmp_path / "board"))
    for at in range(1, len(deploy(copy(Faults()), first).actions) + 1, stride):
        root = copy(Faults(at, "kill"))
        deploy(root, first)
        ask(root, "recover", by="test")
        assert running(root) in (None, digest_of(first))
        check_tidy(root)
        assert deploy(root, first).is_confirmed


@LOADERS
@pytest.mark.parametrize("logic", ["error", "dead", "refused"])
def test_logic_that_does_not_work_is_taken_back(
    tmp_path: Path, xmutil: bool, logic: str, first, second
) -> None:
    if logic == "refused" and xmutil:
        return  # xmutil applies the overlay itself
    copy = copies(board(tmp_path / "board", xmutil, first))
    root = copy(Faults(logic=logic, only=digest_of(second)))
    result = deploy(root, second)
    assert result.error is not None and result.error["code"] == "failed"
    assert "undone" in result.answers[-1]
    assert running(root) == digest_of(first)
    check_tidy(root)


@LOADERS
def test_connection_cut_after_every_request(tmp_path: Path, xmutil: bool, first, second) -> None:
    steps = deployment(second)
    copy = copies(board(tmp_path / "board", xmutil, first))
    for count in range(1, len(steps)):
        root = copy(Faults())
        converse(root, steps[:count])
        assert running(root) == digest_of(first), steps[count - 1][0]
        check_tidy(root)


def test_board_that_lost_power_loads_what_counts_when_it_starts(tmp_path: Path, first) -> None:
    root = board(tmp_path / "board", True, first)
    power_cycle(root)
    assert running(root) is None
    assert ask(root, "status")["is_loaded"] is False
    assert "edgerun-tlmm" in boot(root)
    assert running(root) == digest_of(first)
    assert boot(root) == "nothing to do"


def test_going_back_that_fails_keeps_the_journal_for_another_try(
    tmp_path: Path, first, second
) -> None:
    copy = copies(board(tmp_path / "board", True, first))
    root = copy(Faults(logic="error"))  # for every bitstream: nothing loads at all
    result = deploy(root, second)
    assert "broken" in result.answers[-1]
    assert ask(root, "status")["interrupted"]["new"]["digest"] == digest_of(second)
    answer = ask(root, "rollback", by="test")
    assert answer["done"] and running(root) == digest_of(first)
    check_tidy(root)


def test_everything_is_on_the_disk_before_it_is_renamed(tmp_path: Path, first, second) -> None:
    """What a power failure could leave half-written never has a name that counts."""
    root = board(tmp_path / "board", True, first)
    unsaved: set[str] = set()
    renames = 0
    for action, _, rest in (line.partition(" ") for line in deploy(root, second).actions):
        if action in ("create", "write"):
            unsaved.add(rest)
        elif action == "sync":
            unsaved.discard(rest)
        elif action == "rename":
            source = rest.partition(" -> ")[0]
            assert not [path for path in unsaved if path.startswith(source)], rest
            renames += 1
    assert renames >= 6 and not unsaved


@pytest.mark.parametrize(
    "count", [pytest.param(30, id="share"), pytest.param(500, id="all", marks=pytest.mark.slow)]
)
def test_files_altered_on_their_way_are_refused_by_the_board(
    tmp_path: Path, count: int, first, second
) -> None:
    root, generator = board(tmp_path / "board", True, first), random.Random(count)
    for _ in range(count):
        name = generator.choice(sorted(second))
        data = bytearray(second[name])
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        result = converse(root, deployment(second, {name: bytes(data)}))
        assert result.error is not None and result.error["code"] == "refused"
        assert running(root) == digest_of(first)
    check_tidy(root)
