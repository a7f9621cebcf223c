"""What an error shows to a user."""

import pytest

from edgerun.errors import BundleError, EdgerunError


def test_ordinary_messages_are_shown_whole() -> None:
    message = "a/" * 400 + " is missing"
    assert str(BundleError(message)) == message


def test_a_name_without_end_does_not_hide_the_sentence() -> None:
    error = BundleError(f"cannot open {'a' * 5000}.bin: no such file, copy the model again")
    assert str(error).startswith("cannot open aaa")
    assert str(error).endswith("aaa.bin: no such file, copy the model again")
    assert "…" in str(error)
    assert len(str(error)) < 400
    assert len(error.args[0]) > 5000


@pytest.mark.parametrize("message", ["a b " * 5000, "\u00e9" * 10**6, " " * 10**5])
def test_no_message_is_longer_than_a_screen(message: str) -> None:
    assert len(str(EdgerunError(message))) <= 2000
