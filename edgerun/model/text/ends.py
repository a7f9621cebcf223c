"""Which control tokens end a reply, whatever a model's files name as the end of a sequence.

Many checkpoints leave such tokens out of their lists. The names are those of llama.cpp's
``llama-vocab.cpp`` (``special_eog_ids``).
"""

from __future__ import annotations

from collections.abc import Collection

END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|end_of_text|>",
    "<|eot|>",
    "<|EOT|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<|tool_response>",
    "<end_of_utterance>",
    "_<EOT>",
    "<｜end▁of▁sentence｜>",
)
# Where a vocabulary has both of two such ends, replies are several messages (gpt-oss, Solar Open),
# and this ends each of them.
END_OF_MESSAGE = "<|end|>"
ENDS_BEHIND_MESSAGES = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"})


def ends_of_turns(names: Collection[str]) -> tuple[str, ...]:
    """Those of a vocabulary's control tokens that end a reply."""
    has_messages = any(ends <= {*names} for ends in ENDS_BEHIND_MESSAGES)
    return tuple(
        name
        for name in END_OF_TURN
        if name in names and not (has_messages and name == END_OF_MESSAGE)
    )
