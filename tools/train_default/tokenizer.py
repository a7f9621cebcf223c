"""Train the model's byte-level BPE and write its Hugging Face files (tokenizer and chat template).

    python -m tools.train_default.tokenizer --text stories.txt chats.txt --vocab-size 4096 \\
        --out tokenizer/
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT, SYSTEM, USER, ASSISTANT, END = SPECIAL = (
    "<|endoftext|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
)
# GPT-2's pieces, with every digit by itself and any run of line ends apart from words.
PIECES = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def render_chat(messages: list[dict[str, str]]) -> str:
    """The chat template written out, for training text; without the leading `<|endoftext|>`."""
    return "".join(f"<|{m['role']}|>{m['content'].strip()}{END}" for m in messages)


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_files(tokenizer: Tokenizer, out: Path, max_length: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    special = {"bos_token": TEXT, "eos_token": END, "pad_token": TEXT}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": [SYSTEM, USER, ASSISTANT],
        "chat_template": CHAT_TEMPLATE,
        **special,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    special_map = {**special, "additional_special_tokens": [SYSTEM, USER, ASSISTANT]}
    (out / "special_tokens_map.json").write_text(json.dumps(special_map, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--text", type=Path, nargs="+", required=True, help="documents, one JSON string a line"
    )
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument(
        "--max-length", type=int, default=512, help="the model's context, for the config"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    markers = re.compile("|".join(re.escape(token) for token in SPECIAL))
    texts = (markers.sub("\n", json.loads(line)) for path in args.text for line in path.open())
    tokenizer = train_tokenizer(texts, args.vocab_size)
    write_files(tokenizer, args.out, args.max_length)


if __name__ == "__main__":
    main()
