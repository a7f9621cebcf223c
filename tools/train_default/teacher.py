"""Sample stories from stories260K (llama2.c's smallest published model, MIT licence).

The teacher is so small that its weights and one sequence's cache stay in a core's cache, so the
fastest sampler is one sequence at a time per thread, compiled by Numba. Every story has its own
seed, hence the text does not depend on the number of threads.

    python -m tools.train_default.teacher --model stories260K --count 60000 \\
        --words train.txt --out teacher.txt
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit, prange

BOS = 1
SEPARATOR = "<|endoftext|>"
Array = np.ndarray


class Teacher(NamedTuple):
    """Float32 weights; matrices are [layer, in, out], as a vectorised matvec wants them."""

    embedding: Array  # [vocab, dim]
    attn_norm: Array
    wq: Array
    wk: Array
    wv: Array
    wo: Array
    ffn_norm: Array
    w1: Array
    w2: Array
    w3: Array
    final_norm: Array
    cos: Array  # [seq_len, head_dim // 2]
    sin: Array
    head: Array  # the embedding transposed: [dim, vocab]


def load_teacher(path: Path) -> tuple[Teacher, int]:
    """Read a version 0 llama2.c checkpoint; returns the weights and the number of query heads."""
    raw = path.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocab, seq_len = struct.unpack("7i", raw[:28])
    head_dim = dim // heads
    kv_dim = kv_heads * head_dim
    shapes = [
        (vocab, dim),
        (layers, dim),
        (layers, dim, dim),
        (layers, kv_dim, dim),
        (layers, kv_dim, dim),
        (layers, dim, dim),
        (layers, dim),
        (layers, hidden, dim),
        (layers, dim, hidden),
        (layers, hidden, dim),
        (dim,),
        (seq_len, head_dim // 2),
        (seq_len, head_dim // 2),
    ]
    data = np.frombuffer(raw, np.float32, offset=28)
    tensors, at = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        tensors.append(np.ascontiguousarray(data[at : at + size].reshape(shape)))
        at += size
    transposed = [np.ascontiguousarray(t.swapaxes(1, 2)) if t.ndim == 3 else t for t in tensors]
    return Teacher(*transposed, head=np.ascontiguousarray(tensors[0].T)), heads


def load_pieces(path: Path, vocab: int = 512) -> list[bytes]:
    """Token texts of `tok512.bin`: longest length, then each one's score, length and bytes."""
    raw, at, pieces = path.read_bytes(), 4, []
    for _ in range(vocab):
        (length,) = struct.unpack_from("i", raw, at + 4)
        piece = raw[at + 8 : at + 8 + length]
        at += 8 + length
        byte = re.fullmatch(rb"<0x([0-9A-F]{2})>", piece)
        pieces.append(bytes([int(byte[1], 16)]) if byte else piece)
    return pieces


@njit(fastmath=True, cache=True)
def _norm(x, weight, out):
    total = np.float32(0)
    for i in range(x.size):
        total += x[i] * x[i]
    scale = np.float32(1) / np.sqrt(total / np.float32(x.size) + np.float32(1e-5))
    for i in range(x.size):
        out[i] = weight[i] * (scale * x[i])


@njit(fastmath=True, cache=True)
def _matvec(weight, x, out):
    out[:] = np.float32(0)
    for i in range(0, x.size, 4):
        a, b, c, d = x[i], x[i + 1], x[i + 2], x[i + 3]
        wa, wb, wc, wd = weight[i], weight[i + 1], weight[i + 2], weight[i + 3]
        for r in range(out.size):
            out[r] += (wa[r] * a + wb[r] * b) + (wc[r] * c + wd[r] * d)


@njit(fastmath=True, cache=True)
def _rotate(x, cos, sin):
    half = cos.size
    for i in range(0, x.size, 2):
        c, s = cos[(i // 2) % half], sin[(i // 2) % half]
        a, b = x[i], x[i + 1]
        x[i] = a * c - b * s
        x[i + 1] = a * s + b * c


@njit(fastmath=True, cache=True)
def _exp2(x, n, power):
    """x[:n] = 2 ** x[:n], x <= 0, to a relative 1e-5 (Numba does not vectorise libm's exp)."""
    for i in range(n):
        v = max(x[i], np.float32(-126))
        whole = np.int32(v)  # towards zero: the fraction is in (-1, 0]
        f = v - np.float32(whole)
        power[i] = (whole + np.int32(127)) << np.int32(23)
        p = np.float32(0.0013333558) * f + np.float32(0.0096181291)
        p = (p * f + np.float32(0.0555041087)) * f + np.float32(0.2402265070)
        x[i] = (p * f + np.float32(0.6931471806)) * f + np.float32(1)
    scale = power.view(np.float32)
    for i in range(n):
        x[i] *= scale[i]


@njit(fastmath=True, cache=True)
def _softmax(x, n, power):
    top = x[0]
    for i in range(n):
        top = max(top, x[i])
    for i in range(n):
        x[i] = (x[i] - top) * np.float32(1.4426950409)
    _exp2(x, n, power)
    total = np.float32(0)
    for i in range(n):
        total += x[i]
    for i in range(n):
        x[i] /= total


@njit(fastmath=True, cache=True)
def _attend(q, keys, values, pos, scores, power, out):
    """One query over `pos + 1` positions; keys and values are [kv_head, head_dim, seq_len]."""
    kv_heads, head_dim = keys.shape[0], keys.shape[1]
    group = q.size // (kv_heads * head_dim)
    root = np.float32(1) / np.sqrt(np.float32(head_dim))
    n = pos + 1
    for h in range(kv_heads * group):
        scores[:n] = np.float32(0)
        for d in range(head_dim):
            qd = q[h * head_dim + d] * root
            key = keys[h // group, d]
            for t in range(n):
                scores[t] += qd * key[t]
        _softmax(scores, n, power)
        for d in range(head_dim):
            total = np.float32(0)
            value = values[h // group, d]
            for t in range(n):
                total += scores[t] * value[t]
            out[h * head_dim + d] = total


@njit(fastmath=True, cache=True)
def _sample(logits, temperature, power):
    """Draw from the softmax of logits / temperature; the logits are overwritten."""
    for i in range(logits.size):
        logits[i] /= temperature
    _softmax(logits, logits.size, power)
    remaining = np.float32(np.random.random())
    for i in range(logits.size):
        remaining -= logits[i]
        if remaining < 0:
            return i
    return logits.size - 1


@njit(fastmath=True, cache=True)
def _story(model, heads, seed, temperature, tokens):
    """Fill `tokens` with one sequence; returns its length, or -1 where it did not end by itself."""
    np.random.seed(seed)
    layers, dim = model.attn_norm.shape
    head_dim, seq_len = dim // heads, model.cos.shape[0]
    kv_dim, hidden = model.wk.shape[2], model.w1.shape[2]
    keys = np.empty((layers, kv_dim // head_dim, head_dim, seq_len), np.float32)
    values = np.empty_like(keys)
    norm, mixed, q = np.empty(dim, np.float32), np.empty(dim, np.float32), np.empty(dim, np.float32)
    k, v = np.empty(kv_dim, np.float32), np.empty(kv_dim, np.float32)
    gate, up = np.empty(hidden, np.float32), np.empty(hidden, np.float32)
    scores, logits = np.empty(seq_len, np.float32), np.empty(len(model.embedding), np.float32)
    power = np.empty(max(seq_len, logits.size), np.int32)
    token = BOS
    for pos in range(seq_len):
        x = model.embedding[token].copy()
        for n in range(layers):
            _norm(x, model.attn_norm[n], norm)
            _matvec(model.wq[n], norm, q)
            _matvec(model.wk[n], norm, k)
            _matvec(model.wv[n], norm, v)
            _rotate(q, model.cos[pos], model.sin[pos])
            _rotate(k, model.cos[pos], model.sin[pos])
            for i in range(kv_dim):
                keys[n, i // head_dim, i % head_dim, pos] = k[i]
                values[n, i // head_dim, i % head_dim, pos] = v[i]
            _attend(q, keys[n], values[n], pos, scores, power, mixed)
            _matvec(model.wo[n], mixed, norm)
            x += norm
            _norm(x, model.ffn_norm[n], norm)
            _matvec(model.w1[n], norm, gate)
            _matvec(model.w3[n], norm, up)
            for i in range(hidden):
                gate[i] = gate[i] / (np.float32(1) + np.exp(-gate[i])) * up[i]
            _matvec(model.w2[n], gate, norm)
            x += norm
        _norm(x, model.final_norm, norm)
        _matvec(model.head, norm, logits)
        token = _sample(logits, temperature, power)
        if token == BOS or token == 2:
            return pos
        tokens[pos] = token
    return -1


@njit(parallel=True, cache=True)
def _stories(model, heads, seeds, temperatures, tokens, lengths):
    for i in prange(seeds.size):
        lengths[i] = _story(model, heads, seeds[i], temperatures[i], tokens[i])


def sample(model: Teacher, heads: int, seeds: Array, temperatures: Array) -> list[Array]:
    """Token ids of the stories that ended within the teacher's context."""
    tokens = np.zeros((len(seeds), model.cos.shape[0]), np.uint16)
    lengths = np.zeros(len(seeds), np.int64)
    _stories(model, heads, seeds, temperatures.astype(np.float32), tokens, lengths)
    return [row[:length] for row, length in zip(tokens, lengths, strict=True) if length > 0]


def known_words(text: str) -> set[str]:
    """Lower-case words of the real stories: the dictionary that teacher text must keep to."""
    return set(re.findall(r"[a-z]+", text.lower()))


def is_good(story: str, words: set[str]) -> bool:
    """Complete, of a normal length, spelled with known words and not caught in a loop."""
    if not 200 <= len(story) <= 2000 or story[-1] not in '.!?"' or not story[0].isupper():
        return False
    if not story.isascii() or not set(re.findall(r"[a-z]+", story.lower())) <= words:
        return False
    sentences = re.split(r"(?<=[.!?])\s+", story)
    return len(set(sentences)) >= 0.9 * len(sentences) and story.count('"') % 2 == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", type=Path, required=True, help="folder with stories260K.bin, tok512.bin"
    )
    parser.add_argument(
        "--words", type=Path, required=True, help="real stories: the allowed vocabulary"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--count", type=int, default=60_000, help="stories to sample before filtering"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--temperature", type=float, nargs=2, default=(0.6, 0.9), help="range, uniform"
    )
    args = parser.parse_args()

    model, heads = load_teacher(args.model / "stories260K.bin")
    pieces = load_pieces(args.model / "tok512.bin", len(model.embedding))
    words = known_words(args.words.read_text())
    temperatures = np.random.default_rng(args.seed).uniform(*args.temperature, args.count)
    start, count, size = time.time(), 0, 0
    with args.out.open("w") as out:
        for first in range(0, args.count, 1000):
            part = slice(first, min(first + 1000, args.count))
            seeds = np.arange(part.start, part.stop) + args.seed * 10_000_000
            for ids in sample(model, heads, seeds, temperatures[part]):
                story = b"".join(pieces[i] for i in ids).decode(errors="replace").strip()
                if is_good(story, words):
                    out.write(f"{story}\n{SEPARATOR}\n")
                    count, size = count + 1, size + len(story)
            out.flush()
            speed = size / (time.time() - start) / 1e3
            print(
                f"{part.stop} sampled, {count} kept, {size / 1e6:.1f} MB, {speed:.0f} kB/s",
                file=sys.stderr,
            )


if __name__ == "__main__":
    main()
