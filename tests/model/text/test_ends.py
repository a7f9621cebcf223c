"""What ends a reply: tokens of turns, and of messages only where a reply is one."""

from __future__ import annotations

import pytest

from edgerun.model.text.ends import ends_of_turns
from tests.model.chat.test_disguise import tokenizer_for


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        (["<|end|>", "<|return|>", "<|call|>"], {"<|return|>", "<|call|>"}),  # gpt-oss
        (["<|end|>", "<|calls|>", "<|flush|>"], {"<|calls|>", "<|flush|>"}),  # Solar Open
        (["<|end|>", "<|return|>"], {"<|end|>", "<|return|>"}),
        (["<|end|>", "<|user|>"], {"<|end|>"}),  # Phi-3
        (["<|tool_response>", "<turn|>"], {"<|tool_response>", "<turn|>"}),  # Gemma 4
        (["<s>"], set()),
    ],
)
def test_a_message_of_several_ends_no_reply(names: list[str], ends: set[str]) -> None:
    assert set(ends_of_turns(names)) == ends
    tokenizer = tokenizer_for("".join(names))
    controls = tokenizer.controls
    spelled = {name for name in controls.names if controls.id_of(name) in tokenizer.eos_ids}
    assert spelled - {"</s>", "<|im_end|>"} == ends


def test_letters_end_nothing() -> None:
    """Only control tokens do: a text may hold the letters."""
    tokenizer = tokenizer_for("<s>")
    assert tokenizer.controls.id_of("<|im_end|>") in tokenizer.eos_ids
    assert len(tokenizer.eos_ids) == 2
