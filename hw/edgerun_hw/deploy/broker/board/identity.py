"""Which board this is."""

from __future__ import annotations

from ..errors import RefusalError
from .boards import BOARDS, Board, identify
from .policy import SETTINGS, Policy
from .system import System

DEVICE_TREE = "proc/device-tree"


def board_of(system: System, policy: Policy) -> Board:
    """The board that this is.

    Raises:
        RefusalError: it is none of those that can be deployed to.
    """
    names = compatible(system)
    board = identify(names, policy.board)
    if board is None:
        choices = ", ".join(BOARDS)
        raise RefusalError(
            f"this board calls itself {', '.join(names) or 'nothing'}, which is none of {choices}; "
            f'where that is only a module or processor, say {{"board": NAME}} in /{SETTINGS}; a '
            "board that is newer than this helper needs a new one (`edgerun fpga broker`)"
        )
    if board.silicon is not None:
        idcode = system.read_word(board.silicon)
        if not board.accepts_idcode(idcode):
            raise RefusalError(
                f"this board's silicon has IDCODE {idcode:#010x}, and {board.title} has "
                f"{board.idcode:#010x}"
            )
    return board


def compatible(system: System) -> tuple[str, ...]:
    """The names by which the device tree calls the board."""
    text = system.read_text(f"{DEVICE_TREE}/compatible")
    return tuple(name for name in text.split("\0") if name)
