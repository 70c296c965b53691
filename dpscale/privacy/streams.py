"""Keyed random streams: a measurement always receives the same noise, and no two measurements share any.

A retried task must not draw again, because the mean of two draws has less noise than the charge permits. There is
therefore no random state that advances by itself: a stream is ChaCha20 (RFC 8439) under the key

    HMAC-SHA256(secret of the release, canonical JSON of {"purpose": ..., "record": ...})

The record identifies the measurement (release, snapshot, query, noise scale, mechanism version, round), never where or
how often it is computed. Records contain only text and integers; a float has no canonical text and is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms

from dpscale.base.numerics import Floats, NDArray

PLAIN = (str, int, type(None))
_TEXTS, _LISTS, _SCALARS = frozenset([str]), frozenset([list, tuple]), frozenset([*PLAIN, bool])
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)
SECRET_BYTES = 32  # 256 bits, the key of HMAC-SHA256
PURPOSES = ("noise", "selection", "sampling")

WORD_BYTES = 8  # of a 64-bit word
# A ChaCha20 block counter has 32 bits: 2^32 blocks of 64 bytes. A segment ends at half of that; then the nonce
# changes.
SEGMENT_WORDS = 2**34
_ZEROS = bytes(2**20)  # plain text whose encryption is the stream; the most bytes encrypted at once


def new_secret() -> bytes:
    """Return 256 bits from the operating system: the secret of one release.

    The secret must not enter task graphs, logs or manifests.
    """
    return secrets.token_bytes(SECRET_BYTES)


def seeded_secret(seed: int) -> bytes:
    """Return a secret that anyone can compute from `seed`; it protects nothing and is for tests only."""
    return hashlib.sha256(b"dpscale seeded secret, for tests only:" + str(int(seed)).encode()).digest()


def canonical(record: Mapping[str, Any]) -> bytes:
    """Return the canonical text of a record: JSON with sorted keys, no spaces, ASCII only.

    Keys are texts; values are texts, int, bool, None, and lists, tuples (written as lists) or mappings of these. Raises
    TypeError for anything else, in particular floats.
    """
    if not isinstance(record, Mapping):
        raise TypeError(f"record: got {type(record).__name__}; expected a mapping with text keys")
    return _ENCODER.encode(record if _is_plain(record) else _plain(record, "record")).encode("ascii")


def _is_plain(value: Any) -> bool:
    """Return whether a value consists of the plain types themselves, which JSON represents without conversion."""
    if type(value) is dict:
        if not _TEXTS.issuperset(map(type, value)):
            return False
        value = value.values()
    elif type(value) not in _LISTS:
        return type(value) in _SCALARS
    return _SCALARS.issuperset(map(type, value)) or all(map(_is_plain, value))


def _plain(value: Any, where: str) -> Any:
    """Return a value in types that JSON writes in one way; refuse floats and other types, naming the place.

    `where` is the path of the value for messages. PLAIN are the types that are returned as they are.
    """
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [x if isinstance(x, PLAIN) else _plain(x, f"{where}[{index}]") for index, x in enumerate(value)]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"{where}: a key is not text; expected text keys only")
        return {key: x if isinstance(x, PLAIN) else _plain(x, f"{where}.{key}") for key, x in value.items()}

    raise TypeError(
        f"{where}: got {type(value).__name__}; expected text, int, bool, None, list, tuple or mapping; "
        "write a real number as a fraction of two integers"
    )


def stream_key(secret: bytes, purpose: str, record: Mapping[str, Any]) -> bytes:
    """Return the 32-byte key of the stream of `record` for `purpose` ("noise", "selection" or "sampling").

    The purpose is part of the HMAC input, so the draws that select a query are independent of those that perturb its
    answer.

    Guarantee
    ---------
    Protected: a retry draws the same noise, and two records share none.
    Cost: none by itself.
    Neighbours: none by itself.
    Proof: docs/privacy.md, One draw for one charge; tests/privacy/test_streams.py.
    """
    if purpose not in PURPOSES:
        raise ValueError(f"purpose: got {purpose!r}; expected one of {', '.join(PURPOSES)}")
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"secret: got {len(secret)} bytes; expected {SECRET_BYTES}; use new_secret()")
    text = canonical({"purpose": purpose, "record": record})
    return hmac.new(secret, text, hashlib.sha256).digest()


def open_stream(secret: bytes, purpose: str, record: Mapping[str, Any]) -> KeyedStream:
    """Return the stream of `record` for `purpose`, at its beginning."""
    return KeyedStream(stream_key(secret, purpose, record))


class KeyedStream:
    """ChaCha20 as a sequence of uniform 64-bit words: `words(a)` then `words(b)` equals `words(a + b)`.

    It can be neither pickled nor copied: the first would put a key into a task graph, the second would replay noise. A
    stream must be read by one thread; concurrent threads open one stream each.

    Parameters
    ----------
    key : bytes
        32 bytes, as from `stream_key`.
    segment_words : int
        Words under one nonce, a multiple of 8 (one block); smaller than the default only in tests.
    """

    __slots__ = ("_cipher", "_key", "_position", "_segment_words")

    def __init__(self, key: bytes, segment_words: int = SEGMENT_WORDS) -> None:
        """Raise ValueError for a wrong key or segment; a segment is whole blocks of the cipher, 8 words each."""
        if len(key) != 32:
            raise ValueError(f"key: got {len(key)} bytes; expected 32")
        if not 0 < segment_words <= SEGMENT_WORDS or segment_words % 8:
            raise ValueError(f"segment_words: got {segment_words}; expected a multiple of 8, at most {SEGMENT_WORDS}")
        self._key, self._segment_words, self._position = key, segment_words, 0
        self._cipher: CipherContext | None = None

    @property
    def position(self) -> int:
        """Number of words drawn so far."""
        return self._position

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return the next `n` words, shape (n,), little-endian from the key stream on every machine.

        `room` is what is left of a segment, and the cipher encrypts at most as many zeros as _ZEROS has.
        """
        if n < 0:
            raise ValueError(f"n: got {n}; expected a number of words >= 0")

        out = np.empty(n, dtype="<u8")
        done = 0
        while done < n:
            room = self._segment_words - self._position % self._segment_words
            count = min(n - done, room, len(_ZEROS) // WORD_BYTES)
            self._fill(out[done : done + count])
            done += count

        return out.astype(np.uint64, copy=False)

    def _fill(self, out: NDArray[np.uint64]) -> None:
        """Fill an array with the next 64-bit words of the stream, which must all be in one segment.

        A segment is `_segment_words` words that are encrypted with one nonce, and has a cipher of its own. `words`, the
        only caller, never asks for words beyond the end of a segment. So each segment is entered at its first word, and
        until its end the same cipher continues where it stopped.
        """
        segment, words_used_of_segment = divmod(self._position, self._segment_words)
        if words_used_of_segment == 0:
            # The library's nonce begins with the block counter (4 bytes, or 8 in older OpenSSL). With the segment in
            # the bytes after the fourth, both layouts give each (segment, block) a distinct block.
            nonce = bytes(4) + segment.to_bytes(12, "little")
            self._cipher = Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor()

        assert self._cipher is not None
        zeros = memoryview(_ZEROS)[: out.nbytes]  # encrypted, they are the stream
        self._cipher.update_into(zeros, out.data.cast("B"))
        self._position += len(out)

    def continuation(self, position: int) -> KeyedStream:
        """Return a separate stream for a draw at word `position` that needs more words than its share.

        It depends only on the key and `position`, not on how far this stream has been read.
        """
        text = b"dpscale continuation:" + str(int(position)).encode()
        return KeyedStream(hmac.new(self._key, text, hashlib.sha256).digest())

    def __repr__(self) -> str:
        return f"KeyedStream(key hidden, position={self._position})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a KeyedStream contains a key and cannot be pickled or copied; open it in the process that uses it"
        )


COMPILED_LENGTH = 1 << 10  # numbers that a compiled loop shuffles faster than a sort


class PublicStream:
    """Public random stream for one purpose; the draws depend on the order of the calls."""

    def __init__(self, release: str, purpose: str, *numbers: int) -> None:
        """Open the stream of a release, identified by its public name."""
        key = hashlib.sha256(b"dpscale rows, public: " + release.encode()).digest()
        self._stream = open_stream(key, "sampling", {"rows": purpose, "numbers": list(numbers)})

    def state(self) -> NDArray[np.uint64]:
        """Return a nonzero seed for the compiled loops' own generator."""
        return self._stream.words(1) | np.uint64(1)

    def uniforms(self, count: int) -> Floats:
        """Return numbers in [0, 1), shape (count,)."""
        return np.asarray((self._stream.words(count) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """Return the integers below `count` in random order."""
        if count < COMPILED_LENGTH:
            return np.argsort(self._stream.words(count), kind="stable").astype(np.int64)
        from dpscale.privacy.sampling_loops import shuffle  # imports numba

        numbers = np.arange(count)
        shuffle(numbers, self.state()[0])
        return numbers

    def systematic(self, shares: Floats, count: int) -> NDArray[np.int32]:
        """Return `count` labels in random order, each as often as its share of `count`, rounded down or up."""
        numbers = self.rounded(np.cumsum(shares / shares.sum()) * count, count)
        return np.repeat(np.arange(len(shares), dtype=np.int32), numbers)[self.permutation(count)]

    def rounded(self, sums: Floats, count: int | None = None) -> NDArray[np.int64]:
        """Return whole numbers of given expected running sums: each number is rounded down or up.

        Parameters
        ----------
        sums : ndarray, shape (n,)
            Running sums of the expected numbers.
        count : int, optional
            Sum of the numbers, if it is known.
        """
        ends = np.floor(sums + self.uniforms(1)[0]).astype(np.int64)
        if count is not None:
            ends = np.minimum(ends, count)
            ends[-1] = count
        return np.diff(ends, prepend=0)

    def rounded_in_order(self, values: Floats, order: NDArray[np.int64], slack: float = 0.0) -> NDArray[np.int64]:
        """Return values ≥ 0 rounded down or up, so that sums of consecutive ones in `order` change by less than 1.

        A value at most `slack` below a whole number is rounded to it.
        """
        floors = np.floor(values + slack)
        parts = np.maximum(values - floors, 0.0)[order]
        rounded = floors.astype(np.int64)
        rounded[order] += self.rounded(np.cumsum(parts) + slack)
        return rounded
