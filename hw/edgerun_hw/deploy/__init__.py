"""Packages a bitstream, puts it on a board, and takes it back when anything goes wrong."""

from edgerun_hw.build.boards import board_records
from edgerun_hw.deploy.broker.board.boards import BOARDS

# The helper imports nothing of edgerun, so it is told where its table of boards is here.
BOARDS.use(board_records)
