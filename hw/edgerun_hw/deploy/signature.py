"""Signs manifests with Ed25519 and checks signatures, through ``cryptography``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from edgerun.errors import MissingDependencyError
from edgerun.files.plain import read_plain
from edgerun_hw.deploy.broker.formats import ed25519
from edgerun_hw.deploy.errors import PackageError

MAX_KEY_BYTES = 64 * 1024
MAKE_A_KEY = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"


def sign(manifest: bytes, key_file: Path) -> bytes:
    """Signs a manifest with a private key in a PEM file without a password; 64 bytes.

    Raises:
        PackageError: the file holds no such key.
        MissingDependencyError: ``cryptography`` is not installed.
    """
    serialization, keys = _cryptography()
    try:
        key = serialization.load_pem_private_key(_read(key_file), password=None)
    except (ValueError, TypeError):
        raise PackageError(
            f"{key_file} holds no private key without a password; {MAKE_A_KEY}"
        ) from None
    if not isinstance(key, keys.Ed25519PrivateKey):
        raise PackageError(f"the key in {key_file} is not an Ed25519 key; {MAKE_A_KEY}")
    return bytes(key.sign(manifest))


def check_signature(manifest: bytes, signature: bytes, keys_file: Path) -> None:
    """Checks a signature against the public keys in a PEM file.

    Raises:
        PackageError: there is no key in the file, or none of them has signed.
        MissingDependencyError: ``cryptography`` is not installed.
    """
    _, algorithm = _cryptography()
    try:
        keys = ed25519.read_keys(_read(keys_file))
    except ValueError as error:
        raise PackageError(
            f"{keys_file} holds no Ed25519 public key ({error}); take it out of the private key "
            "with: openssl pkey -in key.pem -pubout"
        ) from None
    from cryptography.exceptions import InvalidSignature

    for key in keys:
        try:
            algorithm.Ed25519PublicKey.from_public_bytes(key).verify(signature, manifest)
            return
        except InvalidSignature:
            continue
    raise PackageError(f"the package is not signed by a key in {keys_file}")


def _read(file: Path) -> bytes:
    try:
        return read_plain(Path(os.path.realpath(file)), MAX_KEY_BYTES)
    except OSError as error:
        raise PackageError(f"the key file {file} cannot be read: {error.strerror}") from None


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519 as algorithm
    except ImportError:
        raise MissingDependencyError(
            "signatures need the package cryptography: pip install 'edgerun[fpga]'"
        ) from None
    return serialization, algorithm
