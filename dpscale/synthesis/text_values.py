"""Texts of public formats in synthetic rows, each a function of the number of its row.

A pattern is divided into pieces of at most 2³¹ texts. Unique texts come from a permutation of the texts of some
successive pieces: a Feistel network on the next larger square of a power of two, which is repeated until the value is
one of theirs (cycle walking; Black and Rogaway, 2002). The permutation needs no memory, and rows may be divided into
files in any way. Other pieces are drawn independently. Keys are public; no text depends on a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from dpscale.base.arrow import pa
from dpscale.base.numerics import Integers, NDArray, Words
from dpscale.domain.text_format import Repetition, TextFormat
from dpscale.privacy.streams import PublicStream

MOST_OF_PIECE, MOST_PERMUTED = 1 << 31, 1 << 62  # texts of a piece, and of the pieces that are permuted
ROUNDS = 8  # rounds of the Feistel network
BLOCK_LETTERS = 1 << 23  # of the rows that are made together


def text_column(form: TextFormat, rows: Integers, key: str) -> pa.Array:
    """Return the texts of rows; null for row −1.

    Parameters
    ----------
    form : TextFormat
    rows : ndarray of int64, shape (n,)
        Numbers of the rows in their table.
    key : str
        Public name of the release.

    Returns
    -------
    pyarrow Array of n texts
    """
    stream = PublicStream(key, f"format {form.name}")
    pieces = list(_pieces(form.elements))
    permuted = _permuted(pieces) if form.unique else slice(0, 0)
    keys = [stream.state()[0] for _ in range(ROUNDS + len(pieces))]
    length = max(BLOCK_LETTERS // sum(piece.most for piece in pieces), 1)
    blocks = []
    for start in range(0, len(rows), length):
        blocks.append(_texts(pieces, permuted, keys, rows[start : start + length]))
    return pa.concat_arrays(blocks) if blocks else pa.array([], pa.string())


def distinct_texts(form: TextFormat) -> int:
    """Return the largest number of rows with different texts."""
    pieces = list(_pieces(form.elements))
    return math.prod(piece.texts for piece in pieces[_permuted(pieces)])


def _pieces(elements: Sequence[Repetition]) -> Iterator[Repetition]:
    """Yield the elements of a format as pieces of at most 2³¹ texts each.

    An element is a repetition of `least` to `most` letters. A fixed number of letters is divided; of a longer variable
    one only the greatest lengths are kept.
    """
    for element in elements:
        letters, least, most = element.letters, element.least, element.most
        if least < most and element.texts > MOST_OF_PIECE:
            tail = max(t for t in range(most - least + 1) if Repetition(letters, 0, t).texts <= MOST_OF_PIECE)
            yield from _pieces([Repetition(letters, most - tail, most - tail)] if most > tail else [])
            least, most = 0, tail
        longest = max(k for k in range(1, 32) if len(letters) ** k <= MOST_OF_PIECE)
        while least == most > longest:
            yield Repetition(letters, longest, longest)
            least = most = most - longest
        if most:
            yield Repetition(letters, least, most)


def _permuted(pieces: Sequence[Repetition]) -> slice:
    """Return the successive pieces, of at most 2⁶² texts together, with the most texts.

    Every run of successive pieces with at most 2⁶² texts is tried from each start.
    """
    best, most = slice(0, 1), 0
    for begin in range(len(pieces)):
        end, texts = begin, 1
        while end < len(pieces) and texts * pieces[end].texts <= MOST_PERMUTED:
            texts, end = texts * pieces[end].texts, end + 1
        if texts > most:
            best, most = slice(begin, end), texts
    return best


def _texts(pieces: Sequence[Repetition], permuted: slice, keys: Sequence[np.uint64], rows: Integers) -> pa.Array:
    """Return the texts of rows, given the pieces of their format.

    The pieces in the slice `permuted` together have a different text for each row: that of the row's image under a
    permutation. The texts of the others are hashes of the row's number.
    """
    null, numbers = rows < 0, np.where(rows < 0, 0, rows).astype(np.uint64)
    together = pieces[permuted]
    texts = math.prod(repetition.texts for repetition in together)
    places = _permute(numbers, texts, keys[:ROUNDS]) if together else numbers
    letters = []
    for at, piece in enumerate(pieces):
        size = np.uint64(piece.texts)
        if permuted.start <= at < permuted.stop:
            places, number_of_text = places // size, places % size
        else:
            number_of_text = _mixed(_mixed(numbers ^ keys[ROUNDS + at]) + keys[ROUNDS + at]) % size
        letters.append(_letters(piece, number_of_text))
    return _joined(np.concatenate(letters, axis=1), null)


def _mixed(words: Words) -> Words:
    """Return the words of SplitMix64's output function (Steele, Lea and Flood, 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _permute(numbers: Words, size: int, keys: Sequence[np.uint64]) -> Words:
    """Return the images of numbers below `size` under a keyed permutation of them.

    It is a Feistel network on 2^(2 half) ≥ `size` numbers: the halves of a number are exchanged after one is changed
    by a hash of the other. Images of `size` or more are mapped again until they are below.
    """
    half = np.uint64(max(-(-(size - 1).bit_length() // 2), 1))
    mask, images = np.uint64((1 << int(half)) - 1), numbers.copy()
    outside = np.arange(len(numbers))
    while len(outside):
        left, right = images[outside] >> half, images[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) >> (np.uint64(64) - half))
        images[outside] = (left << half) | right
        outside = outside[images[outside] >= size]
    return images


def _letters(piece: Repetition, places: Words) -> NDArray[np.uint32]:
    """Return the code points of the texts of a piece at some places, shape (n, most); 0 after the end of a text.

    Texts of a piece are numbered by length, shortest first: `begins` is the first number of each length, and the rest
    is written in the base of the number of letters.
    """
    letters, count = np.array([ord(letter) for letter in piece.letters], np.uint32), len(piece.letters)
    begins = np.cumsum([0, *(count**k for k in range(piece.least, piece.most + 1))], dtype=np.uint64)
    longer = np.searchsorted(begins[1:], places, "right")
    rest, codes = places - begins[longer], np.zeros((len(places), piece.most), np.uint32)
    for at in range(piece.most):
        codes[:, at] = np.where(at < piece.least + longer, letters[(rest % np.uint64(count)).astype(np.int64)], 0)
        rest = rest // np.uint64(count)
    return codes


def _joined(points: NDArray[np.uint32], null: NDArray[np.bool_]) -> pa.Array:
    """Return texts from their code points, without those that are 0."""
    points[null] = 0
    written = points[points > 0]
    # bytes of each letter in UTF-8: one more from each of these code points on
    sizes = sum((points >= least).astype(np.int32) for least in (1, 1 << 7, 1 << 11, 1 << 16))
    ends = np.cumsum(np.r_[0, np.asarray(sizes).sum(axis=1)]).astype(np.int32)
    words = written.astype("<u4").tobytes().decode("utf-32-le").encode()
    texts = pa.StringArray.from_buffers(len(points), pa.py_buffer(ends.tobytes()), pa.py_buffer(words))
    if not null.any():
        return texts
    return texts.take(pa.array(np.arange(len(points)), mask=null))
