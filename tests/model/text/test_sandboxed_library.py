"""Tokenizers of models run in the sandbox: whatever they do, this process goes on in silence.

What is read of a file beforehand is switched off here, so that the limits have to hold alone.
"""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import BundleError
from edgerun.model.sandbox.process import sandbox
from edgerun.model.text import sandboxed_library
from edgerun.model.text import tokenizer as tokenizer_module
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.model.text.tokenizer_check import TextBounds
from tests.support import fakes
from tests.support.interrupts import ctrl_c_after

LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
TOO_MUCH = r"it needs more time or memory \(.* MB\) than is allowed"


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "check_tokenizer_json", lambda text: TextBounds())


@pytest.fixture(autouse=True)
def _in_silence(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    assert capfd.readouterr() == ("", "")


def tokenizer(**parts: Any) -> Tokenizer:
    return Tokenizer.from_json(json.dumps({**json.loads(fakes.byte_tokenizer_json()), **parts}))


def growing(times: int) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [DOUBLING] * times}


def backtracking() -> Tokenizer:
    pattern = {"Regex": "(a+)+$"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, LEVEL]})


def test_memory_that_a_text_takes_is_limited() -> None:
    hostile, other = tokenizer(normalizer=growing(10)), fakes.byte_tokenizer()
    assert len(hostile.encode("a", bos=False)) == 1024
    with pytest.raises(BundleError, match=f"fails on this text: {TOO_MUCH}"):
        hostile.encode("a" * 4000)  # 4 MB, of which the library makes a gigabyte
    assert hostile.encode("b", bos=False) == [98]
    assert other.encode("b", bos=False) == [98]


def test_memory_that_loading_takes_is_limited() -> None:
    token = {"id": 400, "content": "a" * 4000, "normalized": True, "special": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    with pytest.raises(BundleError, match=f"cannot be read by the .*: {TOO_MUCH}"):
        tokenizer(normalizer=growing(14), added_tokens=[{**token, **flags}])


def test_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    vocab = {"[UNK]": 0, "a": 1}
    hostile = tokenizer(model={**words, "max_input_chars_per_word": 10**9, "vocab": vocab})
    soon = sandboxed_library.ENCODE._replace(cpu_s=0.2, cpu_s_per_byte=0)
    monkeypatch.setattr(sandboxed_library, "ENCODE", soon)
    with pytest.raises(BundleError, match=f"fails on this text: {TOO_MUCH}"):
        hostile.encode("a" * 200_000)
    assert hostile.encode("a", bos=False) == [1]


def test_a_panic_at_loading_is_a_sentence() -> None:
    merges = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}
    with pytest.raises(BundleError, match=r"tokenizer\.json cannot be read by the .*: slice index"):
        tokenizer(model={**merges, "continuing_subword_prefix": "##"}, added_tokens=[])


def test_a_panic_at_a_text_is_a_sentence() -> None:
    hostile = backtracking()
    assert hostile.encode("hello", bos=False)
    with pytest.raises(BundleError, match=r"fails on this text: .*retry-limit"):
        hostile.encode("a" * 40 + "b")
    assert hostile.encode("hello", bos=False)


def test_a_text_on_which_the_library_fails_is_known_among_others() -> None:
    hostile = backtracking()
    with pytest.raises(BundleError) as alone:
        hostile.encode("a" * 40 + "b")
    with pytest.raises(BundleError) as among_many:
        hostile.encode_many(["hello", "a" * 40 + "b", "x"])
    assert str(among_many.value) == str(alone.value)
    assert hostile.encode_many(["hello", "x"]) == [hostile.encode("hello"), hostile.encode("x")]


@pytest.mark.parametrize("is_own", [True, False])
def test_texts_that_take_too_much_together_are_encoded_apart(
    is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fakes.spm_tokenizer_json(prepend="first")
    tokenizer = Tokenizer.from_json(file, {"bos_token": "<s>"}, is_own=is_own)
    texts = ["I am", "", " a", "long " * 2000, "<s>", "z", "café"]
    expected = [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_many(texts) == expected
    assert tokenizer.encode_many([]) == []
    library, sizes = tokenizer._library, []

    def encode(texts: list[str], first: list[bool]) -> list[list[int]]:
        sizes.append(len(texts))
        if len(texts) > 1:
            raise BundleError("it needs more than is allowed")
        return type(library).encode(library, texts, first)  # type: ignore[arg-type]

    monkeypatch.setattr(library, "encode", encode)
    assert tokenizer.encode_many(texts) == expected
    assert max(sizes) > 1 and sizes.count(1) >= 6


def test_a_library_that_the_sandbox_lost_is_loaded_again() -> None:
    of_bytes, of_pieces = fakes.byte_tokenizer(), Tokenizer.from_json(fakes.spm_tokenizer_json())
    ids = of_bytes.encode("hello"), of_pieces.encode("hello")
    sandbox().close()
    assert (of_bytes.encode("hello"), of_pieces.encode("hello")) == ids
    assert of_pieces.decode(of_pieces.encode("hello", bos=False)) == "hello"


def test_tokenizers_that_nobody_has_any_more_are_dropped() -> None:
    keys = sandboxed_library._DROPPED
    tokenizer = fakes.byte_tokenizer()
    key = tokenizer._sandboxed._key
    del tokenizer
    gc.collect()
    assert key in keys
    fakes.byte_tokenizer()
    assert not keys


def test_ctrl_c_does_not_wait_for_the_library() -> None:
    hostile = fakes.byte_tokenizer()
    hostile.encode("a")
    process = sandbox()._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)  # it will not answer
    with pytest.raises(KeyboardInterrupt), ctrl_c_after(0.5):
        hostile.encode("hello " * 1000)
    assert process.poll() is not None
    assert hostile.encode("b", bos=False) == [98]


def test_many_threads_get_their_own_ids() -> None:
    shared, wrong = Tokenizer.from_json(fakes.spm_tokenizer_json()), []

    def ask(number: int) -> None:
        for turn in range(30):
            text = f"{number} im {turn}" * (1 + number)
            if shared.decode(shared.encode(text, bos=False)) != text:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


IMPORTS = """
import sys
from pathlib import Path
from edgerun.model.text.tokenizer import Tokenizer
text = Path("{path}").read_text("utf-8")
tokenizer = Tokenizer.from_json(text)
assert tokenizer.decode(tokenizer.encode("a dog", bos=False)) == "a dog"
print("tokenizers" in sys.modules, end="")
assert Tokenizer.from_json(text, is_own=True).encode("a dog") == tokenizer.encode("a dog")
print("tokenizers" in sys.modules, end="")
"""


def test_the_library_is_in_this_process_for_its_own_model_alone(repo_root: Path) -> None:
    path = repo_root / "models/default/bundle/tokenizer.json"
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(path=path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "FalseTrue", "")
