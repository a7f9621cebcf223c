"""What can go wrong with a package or a board; all within the tree of ``edgerun.errors``.

InputError
├── PackageError    a bitstream, overlay or package is broken, altered or does not fit
└── RefusedError    the board will not take it, and nothing was changed
BackendError
└── BoardError      the board failed; says what runs on it now
"""

from __future__ import annotations

from edgerun.errors import BackendError, InputError


class PackageError(InputError):
    """A file that goes into a package, or a package, is unusable."""


class RefusedError(InputError):
    """The board refuses; nothing was changed."""


class BoardError(BackendError):
    """The board, or the way to it, failed."""
