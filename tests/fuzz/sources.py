"""Valid bundles and checkpoints, each made once a process: what the mutators begin with."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from edgerun.engine.session_file import save_session
from edgerun.model.bundle import open_bundle
from tests.export.checkpoint.conftest import (
    llama2c_bytes,
    llama2c_tokenizer,
    llama_tensors,
    write_gguf,
)
from tests.export.linear import test_gguf_linear as linear
from tests.export.state_spaces import written as state_spaces
from tests.fuzz.files import MANIFEST, Files, read_files, seal, write_files
from tests.support.bundles import GOLDEN, bundle_of
from tests.support.gguf_model import source_of
from tests.support.gguf_model import write_gguf as write_model
from tests.support.unlike import unlike_of

SESSION = "session"
# The forms that graphs have.
BUNDLES = (
    partial(bundle_of, "llama", weights="int4"),
    partial(bundle_of, "bitnet-offline", weights="ternary"),
    partial(bundle_of, "qwen3", weights="int8"),
    partial(bundle_of, "mistral", weights="int4_asym"),
    partial(bundle_of, "llama-yarn", weights="fp32"),
    partial(unlike_of, "llama", weights="int4"),
    partial(bundle_of, "olmoe", weights="int4"),
    partial(bundle_of, "mistral", weights="int4_offset"),
    partial(bundle_of, "deepseek_v2", weights="int4"),
    partial(bundle_of, "gemma3n_text", weights="int8"),
    partial(bundle_of, "cohere", weights="int4"),
    partial(bundle_of, "gpt_neox", weights="int8"),
    partial(bundle_of, "lfm2", weights="int4"),
    partial(bundle_of, "qwen3_next", weights="int4"),
    partial(bundle_of, "nemotron_h", weights="int8"),
    partial(bundle_of, "gpt_oss", weights="int4"),
)
MIXTURES = [
    index
    for index, make in enumerate(BUNDLES)
    if make.args[0] in ("olmoe", "deepseek_v2", "qwen3_next", "gpt_oss")
]
CHECKPOINTS = ("llama", "bitnet-packed", "qwen3", "gpt_neox", "falcon_h1", "qwen3_next", "gpt_oss")
GGUF_FILES: tuple[Callable[[Path], object], ...] = (
    lambda path: write_gguf(path, llama_tensors(tied=False)),
    lambda path: write_gguf(path, llama_tensors(tied=True)),
    lambda path: write_model(path, "stablelm", *source_of("stablelm")),
    lambda path: state_spaces.written(path, "falcon_h1"),
    lambda path: linear.written(path, "qwen3_next"),
)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@cache
def bundle(number: int) -> Files:
    """One of ``BUNDLES``, with a chat template."""
    files = read_files(BUNDLES[number % len(BUNDLES)]())
    config = json.loads(_bytes(files, "tokenizer_config.json"))
    files["tokenizer_config.json"] = json.dumps({**config, "chat_template": TEMPLATE}).encode()
    return seal(files)


@cache
def mixture(number: int) -> Files:
    """A bundle whose experts can be read while the model runs."""
    return bundle(MIXTURES[number % len(MIXTURES)])


@cache
def foreign(number: int) -> Files:
    """A bundle as another exporter would have made it: without a manifest, and layers all alike."""
    number = number if BUNDLES[number % len(BUNDLES)].func is bundle_of else 0
    return {name: content for name, content in bundle(number).items() if name != MANIFEST}


@cache
def session(number: int) -> Files:
    """A bundle with a saved chat."""
    files = bundle(number)
    messages = ({"role": "user", "content": "a story"}, {"role": "assistant", "content": "of us"})
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_files(files, folder / "bundle")
        digest = open_bundle(folder / "bundle").digest
        save_session(folder / SESSION, digest, messages)
        return {**files, SESSION: (folder / SESSION).read_bytes()}


def session_bytes(payload: bytes) -> bytes:
    """A session file whose checksum is right, whatever its content."""
    digest = hashlib.sha256(payload).hexdigest()
    return f"edgerun-session 1 {digest} {len(payload)}\n".encode() + payload


@cache
def checkpoint(number: int) -> Files:
    """A Hugging Face folder."""
    name = CHECKPOINTS[number % len(CHECKPOINTS)]
    return {key: data for key, data in read_files(GOLDEN / name).items() if key != "golden.npz"}


@cache
def sentencepiece(number: int) -> Files:
    """A Hugging Face folder with a sentencepiece model in place of ``tokenizer.json``."""
    files = {name: data for name, data in checkpoint(0).items() if name != "tokenizer.json"}
    return {**files, "tokenizer.model": _pieces()}


def _pieces() -> bytes:
    """A sentencepiece model of three special pieces and some letters, written by hand."""
    pieces = [(b"<unk>", 2), (b"<s>", 3), (b"</s>", 3), *((b"%c" % c, 1) for c in range(97, 123))]
    out = b""
    for index, (text, kind) in enumerate(pieces):
        score = struct.pack("<f", -index)
        out += _field(1, 2, _field(1, 2, text) + _field(2, 5, score) + _field(3, 0, bytes([kind])))
    return out + _field(2, 2, _field(3, 0, b"\x02")) + _field(3, 2, _field(4, 0, b"\x00"))


def _field(number: int, wire: int, payload: bytes) -> bytes:
    """A field of a protobuf message; payloads of wire type 2 have less than 128 bytes."""
    size = bytes([len(payload)]) if wire == 2 else b""
    return bytes([number << 3 | wire]) + size + payload


@cache
def gguf(number: int) -> Files:
    """A GGUF file."""
    with TemporaryDirectory() as name:
        path = Path(name) / "model.gguf"
        GGUF_FILES[number % len(GGUF_FILES)](path)
        return {path.name: path.read_bytes()}


@cache
def llama2c(number: int) -> Files:
    """A llama2.c file of either version with its tokenizer."""
    data = llama2c_bytes(llama_tensors(tied=True), number % 2)
    return {"model.bin": data, "tokenizer.bin": llama2c_tokenizer()}


def _bytes(files: Files, name: str) -> bytes:
    content = files[name]
    assert isinstance(content, bytes)
    return content
