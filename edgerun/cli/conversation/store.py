"""What chats keep between runs, in the user's state folder: messages typed, and the last chat.

Nothing of it is in the cache folder, which people share and throw away. Files are the user's alone
(mode 0600). ``/history off`` writes a marker, and nothing more is kept until ``/history on``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgerun.engine.session_file import load_session, save_session
from edgerun.errors import SessionError, StorageError
from edgerun.files.private import open_private, private_folder, write_atomically

if TYPE_CHECKING:
    from edgerun.llm.llm import ChatSession

HISTORY = "chat_history"
OFF = "history_off"
DIGITS = 16  # of the model's digest, in the name of its last chat
LAST_CHAT = re.compile(rf"last-[0-9a-f]{{0,{DIGITS}}}\.chat")  # others somebody saved here


@dataclass(frozen=True, slots=True)
class ChatStore:
    """The files of chats.

    Attributes:
        folder: may not exist yet.
    """

    folder: Path

    @property
    def is_on(self) -> bool:
        """Whether anything is kept."""
        return not (self.folder / OFF).exists()

    def switch(self, *, on: bool) -> None:
        """Keeps messages and chats from now on, or no longer; what there is stays.

        Raises:
            StorageError: the folder cannot be written.
        """
        try:
            if on:
                (self.folder / OFF).unlink(missing_ok=True)
            else:
                self._make_folder()
                (self.folder / OFF).touch(mode=0o600)
        except OSError as error:
            raise StorageError(f"cannot write to {self.folder}: {error.strerror}") from error

    def files(self) -> list[Path]:
        """What was kept."""
        chats = [path for path in self.folder.glob("*.chat") if LAST_CHAT.fullmatch(path.name)]
        return [path for path in (self.folder / HISTORY, *chats) if path.exists()]

    def clear(self) -> int:
        """Deletes what was kept; returns the number of files.

        Raises:
            StorageError: one cannot be deleted.
        """
        files = self.files()
        for path in files:
            try:
                path.unlink()
            except OSError as error:
                raise StorageError(f"cannot delete {path}: {error.strerror}") from error
        return len(files)

    def make_history_file(self) -> None:
        """Makes the file of messages typed, for its owner alone, where there is none.

        Raises:
            OSError: it cannot be made, or somebody else could write to it.
        """
        self._make_folder()
        if not os.path.lexists(self.folder / HISTORY):
            write_atomically(self.folder / HISTORY, b"")
        os.close(open_private(self.folder / HISTORY))

    @property
    def has_history(self) -> bool:
        """Whether messages typed were kept, in a file that is nobody else's."""
        try:
            os.close(open_private(self.folder / HISTORY))
        except OSError:
            return False
        return True

    def last_chat(self, digest: str) -> Path:
        """Where the last chat with a model is kept."""
        return self.folder / f"last-{digest[:DIGITS]}.chat"

    def keep(self, session: ChatSession, digest: str) -> None:
        """Writes a chat as the last one with its model.

        Raises:
            StorageError: it cannot be written.
        """
        if not self.is_on:
            return
        try:
            self._make_folder()
        except OSError as error:
            raise StorageError(f"cannot make {self.folder}: {error.strerror}") from error
        save_session(self.last_chat(digest), digest, session.messages, private=True)

    def read(self, digest: str) -> list[dict[str, Any]]:
        """The messages of the last chat with a model.

        Raises:
            SessionError: the file is broken, or somebody else could have written it.
        """
        try:
            return load_session(self.last_chat(digest), digest, private=True)
        except SessionError as error:
            raise SessionError(f"{error}; start without --continue for a new chat") from error

    def _make_folder(self) -> None:
        private_folder(self.folder)
