"""Verifies Ed25519 signatures with nothing but the standard library.

Follows RFC 8032, section 5.1.7. Verification handles public values only, so that it need not take
the same time for all of them; nothing is ever signed here. Tested against ``cryptography``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, PRIME - 2, PRIME) % PRIME
ROOT_OF_MINUS_ONE = pow(2, (PRIME - 1) // 4, PRIME)
# How a public key's SubjectPublicKeyInfo (RFC 8410, section 4) begins; 32 bytes follow.
SPKI_PREFIX = bytes.fromhex("302a300506032b6570032100")
KEY_BYTES, SIGNATURE_BYTES = 32, 64

Point = tuple[int, int, int, int]  # extended coordinates: x = X/Z, y = Y/Z, x*y = T/Z
NEUTRAL: Point = (0, 1, 1, 0)


def verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether ``signature`` (64 bytes) over ``message`` is by the owner of ``key`` (32 bytes)."""
    if len(key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    owner, commitment = _decode(key), _decode(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if owner is None or commitment is None or scalar >= ORDER:
        return False
    digest = hashlib.sha512(signature[:32] + key + message).digest()
    challenge = int.from_bytes(digest, "little") % ORDER
    return _equal(_multiply(scalar, BASE), _add(commitment, _multiply(challenge, owner)))


def read_keys(pem: bytes) -> list[bytes]:
    """Takes the Ed25519 public keys (32 bytes each) out of a file of PEM blocks.

    Raises:
        ValueError: a block is something else, or there is none.
    """
    keys, block = [], None
    for line in pem.decode("ascii").splitlines():
        if line == "-----BEGIN PUBLIC KEY-----":
            block = ""
        elif line == "-----END PUBLIC KEY-----" and block is not None:
            keys.append(_key_of(block))
            block = None
        elif block is not None:
            block += line.strip()
    if not keys:
        raise ValueError("there is no public key in it")
    return keys


def _key_of(block: str) -> bytes:
    try:
        data = base64.b64decode(block, validate=True)
    except binascii.Error:
        raise ValueError("a key is not base64") from None
    if len(data) != len(SPKI_PREFIX) + KEY_BYTES or not data.startswith(SPKI_PREFIX):
        raise ValueError("a key is not an Ed25519 public key")
    return data[len(SPKI_PREFIX) :]


def _decode(data: bytes) -> Point | None:
    """A point from its y and the sign of its x (section 5.1.3), or None if there is none."""
    encoded = int.from_bytes(data, "little")
    y, sign = encoded & ((1 << 255) - 1), encoded >> 255
    if y >= PRIME:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, PRIME - 2, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if (x * x - square) % PRIME:
        x = x * ROOT_OF_MINUS_ONE % PRIME
    if (x * x - square) % PRIME or (not x and sign):
        return None
    if x & 1 != sign:
        x = PRIME - x
    return (x, y, 1, x * y % PRIME)


def _add(first: Point, second: Point) -> Point:
    """Section 5.1.4."""
    a = (first[1] - first[0]) * (second[1] - second[0]) % PRIME
    b = (first[1] + first[0]) * (second[1] + second[0]) % PRIME
    c = 2 * first[3] * second[3] * D % PRIME
    d = 2 * first[2] * second[2] % PRIME
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % PRIME, g * h % PRIME, f * g % PRIME, e * h % PRIME)


def _multiply(scalar: int, point: Point) -> Point:
    result = NEUTRAL
    while scalar:
        if scalar & 1:
            result = _add(result, point)
        point = _add(point, point)
        scalar >>= 1
    return result


def _equal(first: Point, second: Point) -> bool:
    return not (
        (first[0] * second[2] - second[0] * first[2]) % PRIME
        or (first[1] * second[2] - second[1] * first[2]) % PRIME
    )


_BASE = _decode((4 * pow(5, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little"))
assert _BASE is not None
BASE: Point = _BASE
