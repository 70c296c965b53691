"""Keyed streams: ChaCha20 as in RFC 8439, one stream per record, and no key material outside."""

from __future__ import annotations

import copy
import json
import pickle
import struct
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpscale.privacy import streams
from dpscale.privacy.streams import (
    KeyedStream,
    PublicStream,
    canonical,
    new_secret,
    open_stream,
    seeded_secret,
    stream_key,
)
from tests.messages import refused

SECRET = seeded_secret(7)
KEY = bytes(range(32))


def chacha_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """Return one block as in RFC 8439, section 2.3, in plain Python; `nonce` is the 12 bytes after the counter."""
    start = struct.unpack("<16I", b"expand 32-byte k" + key + struct.pack("<I", counter) + nonce)
    x = list(start)

    def mix(a: int, b: int, c: int, d: int) -> None:
        for target, other, mixed, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[target] = (x[target] + x[other]) & 0xFFFFFFFF
            bits = x[mixed] ^ x[target]
            x[mixed] = (bits << turn | bits >> (32 - turn)) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            mix(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            mix(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(x, start, strict=True)))


def test_oracle_and_stream_equal_rfc_test_vector() -> None:
    # RFC 8439, appendix A.1, test vector 1: key, nonce and counter all zero.
    vector = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert chacha_block(bytes(32), 0, bytes(12)) == vector
    assert KeyedStream(bytes(32)).words(8).astype("<u8").tobytes() == vector


def test_blocks_are_counted_in_segment_and_segments_in_nonce() -> None:
    stream = KeyedStream(KEY, segment_words=24)
    pieces = np.concatenate([stream.words(n) for n in (5, 0, 30, 1, 44)])
    blocks = [chacha_block(KEY, i % 3, (i // 3).to_bytes(12, "little")) for i in range(10)]
    assert pieces.astype("<u8").tobytes() == b"".join(blocks)
    assert len(set(blocks)) == 10
    assert stream.position == 80


def test_segment_ends_before_block_counter_overflows() -> None:
    assert streams.SEGMENT_WORDS * 8 // 64 < 2**32
    with pytest.raises(ValueError):
        KeyedStream(KEY, segment_words=2 * streams.SEGMENT_WORDS)


@given(st.lists(st.integers(0, 300), max_size=8))
def test_words_do_not_depend_on_read_sizes(sizes: list[int]) -> None:
    stream, whole = KeyedStream(KEY), KeyedStream(KEY).words(sum(sizes))
    parts = [stream.words(n) for n in sizes]
    assert np.array_equal(np.concatenate([np.empty(0, np.uint64), *parts]), whole)


def test_reads_longer_than_buffer_give_same_words() -> None:
    count = len(streams._ZEROS) // 8 + 100
    stream = KeyedStream(KEY)
    first = stream.words(100)
    assert np.array_equal(np.concatenate([first, stream.words(count)]), KeyedStream(KEY).words(100 + count))


def test_streams_differ_by_purpose_record_and_secret() -> None:
    record = {"query": ["age", "sex"], "scale": 3, "round": 0}
    keys = {stream_key(SECRET, purpose, record) for purpose in streams.PURPOSES}
    keys |= {
        stream_key(SECRET, "noise", record | change) for change in ({"scale": 4}, {"round": 1}, {"query": ["age"]})
    }
    keys |= {stream_key(seeded_secret(8), "noise", record)}
    assert len(keys) == 7
    assert stream_key(SECRET, "noise", dict(reversed(record.items()))) == stream_key(SECRET, "noise", record)
    first, again = open_stream(SECRET, "noise", record), open_stream(SECRET, "noise", record)
    assert np.array_equal(first.words(9), again.words(9))


def test_continuation_depends_on_key_and_position_only() -> None:
    read, fresh = KeyedStream(KEY), KeyedStream(KEY)
    read.words(1000)
    assert np.array_equal(read.continuation(5).words(4), fresh.continuation(5).words(4))
    starts = {int(s.words(1)[0]) for s in (fresh, fresh.continuation(0), fresh.continuation(1), fresh.continuation(10))}
    assert len(starts) == 4


def test_canonical_is_sorted_compact_ascii_json() -> None:
    record = {"b": (1, None, True), "a": {"ü": -(2**70), "x": []}}
    assert canonical(record) == b'{"a":{"x":[],"\\u00fc":-1180591620717411303424},"b":[1,null,true]}'


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=4))
def test_canonical_round_trips(record: dict) -> None:
    assert json.loads(canonical(record)) == record


@pytest.mark.parametrize("bad", [1.0, float("nan"), np.float64(2), np.int64(2), b"x", {1, 2}, Fraction(1, 2)])
def test_canonical_refuses_unsupported_values(bad: object) -> None:
    for record in ({"a": bad}, {"a": [bad]}, {"a": {"b": (1, bad)}}):
        with pytest.raises(TypeError):
            canonical(record)


def test_canonical_refuses_nontext_keys_and_nonmappings() -> None:
    for bad in ({1: 2}, {"a": {None: 1}}, [("a", 1)]):
        with pytest.raises(TypeError):
            canonical(bad)  # type: ignore[arg-type]


def test_unknown_purpose_and_short_secret_are_refused() -> None:
    with refused(ValueError):
        stream_key(SECRET, "nosie", {})
    with refused(ValueError):
        stream_key(SECRET[:16], "noise", {})
    with refused(ValueError):
        KeyedStream(b"short")


def test_secrets_are_256_bits_and_differ() -> None:
    assert len(new_secret()) == len(SECRET) == 32
    assert new_secret() != new_secret()
    assert seeded_secret(7) == SECRET != seeded_secret(8)


@pytest.mark.parametrize("read", [0, 3])
def test_stream_hides_key_and_cannot_be_copied_or_pickled(read: int) -> None:
    stream = KeyedStream(b"K" * 32)
    stream.words(read)
    assert "KKK" not in repr(stream) + str(stream)
    assert b"K".hex() * 3 not in repr(stream)
    for escape in (pickle.dumps, copy.copy, copy.deepcopy):
        with refused(TypeError):
            escape(stream)
    cloudpickle = pytest.importorskip("cloudpickle")
    with pytest.raises(TypeError):
        cloudpickle.dumps({"task": stream})


def test_streams_import_loads_no_numba() -> None:
    code = "import sys, dpscale.privacy.streams, dpscale.privacy.noise; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=streams.__file__.split("dpscale/privacy")[0])


def test_rounded_numbers_are_floors_or_one_more_with_their_expected_values() -> None:
    values = np.array([0.2, 1.7, 0.0, 3.0, 0.6, 2.5])
    sums, names = np.cumsum(values), [f"release {number}" for number in range(3000)]
    found = np.stack([PublicStream(name, "rounded").rounded(sums) for name in names])
    assert ((found == np.floor(values)) | (found == np.ceil(values))).mean() == 1
    assert (np.abs(np.cumsum(found, axis=1) - sums) < 1).all()
    np.testing.assert_allclose(found.mean(axis=0), values, atol=5 * 0.5 / 3000**0.5)
    assert (np.stack([PublicStream(name, "rounded").rounded(sums, 8) for name in names]).sum(axis=1) == 8).all()
