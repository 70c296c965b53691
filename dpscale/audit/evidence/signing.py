"""A curator's key under a bundle: Ed25519 over hashes.json, which has the hash of every other file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpscale.base.errors import JobError

ALGORITHM = "Ed25519"


def signer(path: Path) -> tuple[str, Callable[[bytes], str]]:
    """The public half of a private key's PEM file, in hexadecimal, and what signs with the other."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _loaded(path, "--key", lambda content: load_pem_private_key(content, password=None), Ed25519PrivateKey)
    return key.public_key().public_bytes_raw().hex(), lambda content: key.sign(content).hex()


def public_key(path: Path) -> str:
    """The public key of a PEM file, in hexadecimal."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return str(_loaded(path, "--public-key", load_pem_public_key, Ed25519PublicKey).public_bytes_raw().hex())


def fingerprint(public: str) -> str:
    """SHA-256 of a public key: what people compare."""
    return hashlib.sha256(bytes.fromhex(public)).hexdigest()


def verified(public: str, signature: str, content: bytes) -> bool:
    """Whether the key signed the content."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key, signed = bytes.fromhex(public), bytes.fromhex(signature)
        Ed25519PublicKey.from_public_bytes(key).verify(signed, content)
    except (InvalidSignature, ValueError):
        return False
    return (key.hex(), signed.hex()) == (public, signature)  # one spelling: no byte may differ


def _loaded(path: Path, field: str, load: Callable[[bytes], Any], kind: type) -> Any:
    """A key; JobError that tells nothing of what the file holds."""
    try:
        key = load(path.read_bytes())
    except OSError as error:
        raise JobError(field, f"cannot read {path} ({error.strerror})", "a PEM file", "check the path") from None
    except (ValueError, TypeError):  # TypeError: a password is asked for
        key = None
    if not isinstance(key, kind):
        raise JobError(field, f"{path} holds no such key without a password", f"an {ALGORITHM} key as PEM",
                       "make one: openssl genpkey -algorithm ed25519 -out key.pem")  # fmt: skip
    return key
