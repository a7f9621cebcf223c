"""Whom the helper trusts, and that its own reading of signatures is right."""

import random
from pathlib import Path

import pytest

from edgerun_hw.deploy.broker.application.manifest import MANIFEST, SIGNATURE
from edgerun_hw.deploy.broker.formats import ed25519
from tests.hw.deploy.harness import board, deploy, digest_of, running


def test_board_that_trusts_keys_takes_signed_applications_only(tmp_path: Path, first) -> None:
    pytest.importorskip("cryptography")
    from tests.hw.deploy.test_package import keys

    private, public = keys(tmp_path)
    from edgerun_hw.deploy.signature import sign

    root = board(tmp_path / "board")
    (root / "etc/edgerun/fpga-keys.pem").write_bytes(public.read_bytes())
    result = deploy(root, first)
    assert result.error and "this one is not signed" in result.error["message"]
    signature = sign(first[MANIFEST], private)
    wrong = bytes([signature[0] ^ 1]) + signature[1:]
    result = deploy(root, {**first, SIGNATURE: wrong})
    assert result.error and "signed by none of the 1 keys" in result.error["message"]
    assert deploy(root, {**first, SIGNATURE: signature}).is_confirmed
    (root / "etc/edgerun/fpga-keys.pem").write_bytes(b"nonsense")
    result = deploy(root, {**first, SIGNATURE: signature})
    assert result.error and "trusted keys" in result.error["message"]
    assert running(root) == digest_of(first)


def test_signatures_are_judged_as_cryptography_judges_them() -> None:
    module = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.exceptions import InvalidSignature

    generator = random.Random(4)
    for size in (0, 1, 100, 1000):
        key = module.Ed25519PrivateKey.from_private_bytes(generator.randbytes(32))
        public, message = key.public_key().public_bytes_raw(), generator.randbytes(size)
        signature = key.sign(message)
        assert ed25519.verify(public, message, signature)
        for _ in range(8):
            parts = [bytearray(public), bytearray(message), bytearray(signature)]
            part = generator.choice([part for part in parts if part])
            part[generator.randrange(len(part))] ^= 1 << generator.randrange(8)
            try:
                theirs = module.Ed25519PublicKey.from_public_bytes(bytes(parts[0]))
                theirs.verify(bytes(parts[2]), bytes(parts[1]))
                expected = True
            except (InvalidSignature, ValueError):
                expected = False
            assert ed25519.verify(*map(bytes, (parts[0], parts[1], parts[2]))) == expected


def test_signature_of_rfc_8032() -> None:
    """Section 7.1, test 2."""
    key = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert ed25519.verify(key, b"\x72", signature)
    order = ed25519.ORDER + int.from_bytes(signature[32:], "little")
    malleable = signature[:32] + order.to_bytes(32, "little")
    assert not ed25519.verify(key, b"\x72", malleable)
