"""Compiled hash functions of privacy units and of their rows' codes.

SipHash-2-4 of texts (Aumasson & Bernstein, 2012) and the mix of integers are those of pandas' `hash_array`. LANES texts
are processed at a time, eight letters of each per word, so that SIMD instructions apply to several texts. This module
is separate so that Numba is loaded where units are used and not by the import.

Texts are bytes in `data`: text i is from offsets[i] to offsets[i + 1]. A *lane* is the number of a text in its block.
`held` has the words of the texts of a block, shape (words, lanes); `counts` has the number of words of each text that
is still to be hashed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.base.compilation import njit
from dpscale.base.numerics import Flags, Integers, NDArray, Words
from dpscale.contributions.few_rows import CHANGE, FACTOR, SECOND, SHIFT, START
from dpscale.records.parquet.headers import U, word

ROWS = 1024  # rows per block, whose mix fits in the L1 cache
LANES, HELD = 256, 8  # texts per block, and words of each; longer texts are processed separately
# lowest bit, and highest bit, of each byte of a word
EACH, TOPS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)


@njit(cache=True, nogil=True)
def mixed(codes: NDArray[Any]) -> Words:
    """Return a 64-bit mix of each row's codes; `codes` has shape (attributes, rows).

    Rows are processed in parts of ROWS, whose words stay in the cache while all columns are mixed in.
    """
    columns, rows = codes.shape
    out = np.full(rows, START, np.uint64)
    for first in range(0, rows, ROWS):
        part = out[first : first + ROWS]
        for column in range(columns):
            block = codes[column, first : first + ROWS]
            for k in range(len(part)):
                product = (part[k] ^ np.uint64(block[k])) * FACTOR
                part[k] = product ^ (product >> SHIFT)

    return out


@njit(cache=True, nogil=True)
def plain_words(data: NDArray[np.uint8], offsets: Integers, keys: Words) -> tuple[Words, Flags]:
    """Return both words of every text that is plainly an id or an integer, and which texts are.

    A plain id consists of printable ASCII letters, at least one of which occurs in no whole number. `keys` contains two
    words for each of the two hashes. Texts are taken LANES at a time: their bytes are spread over `held`, examined for
    the letters that occur in them, and either read as an integer or hashed as an id.
    """
    rows = len(offsets) - 1
    words, plain = np.zeros((rows, 2), np.uint64), np.zeros(rows, np.bool_)
    held, marks = np.zeros((HELD, LANES), np.uint64), np.empty((2, LANES), np.uint64)

    lengths, counts = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    for first in range(0, rows, LANES):
        many = min(LANES, rows - first)
        block_offsets, block_words = offsets[first : first + many + 1], words[first : first + many]
        most = _hold(data, block_offsets, lengths, held)
        _look(held, lengths[:many], most, marks)
        _summarise(data, block_offsets, marks, keys, block_words, plain[first : first + many], counts)
        if counts[:many].any():
            _ids(held[:most], lengths, counts[:many], keys[0], block_words[:, 0])
            _ids(held[:most], lengths, counts[:many], keys[1], block_words[:, 1])

    return words, plain


@njit(cache=True, nogil=True)
def _hold(data: NDArray[np.uint8], offsets: Integers, lengths: Integers, held: Words) -> Any:
    """Load the first words of every text, padded with zeros; return the number of words of the longest.

    Each text is a lane, a column of `held`; a text has one word more than its full eights, for its length.
    """
    most = 0
    for lane in range(len(offsets) - 1):
        start, end = offsets[lane], offsets[lane + 1]
        lengths[lane] = end - start
        for k in range(min((end - start) // 8 + 1, HELD)):
            held[k, lane] = _eight(data, start + 8 * k, end)
        most = max(most, (end - start) // 8 + 1)
    return min(most, HELD)


@njit(cache=True, nogil=True, inline="always")
def _eight(data: NDArray[np.uint8], at: int, end: int) -> np.uint64:
    """Return the eight letters from `at` on as a word, or the remaining ones before `end`, and zeros."""
    left, found = end - at, U(0)
    # a whole word is in the data, though perhaps not in the text
    if at + 8 <= len(data):
        found = word(data, U(at))
        return found if left >= 8 else found & ((U(1) << U(8 * left)) - U(1))
    for place in range(min(left, 8)):
        found |= U(data[at + place]) << U(8 * place)
    return found


@njit(cache=True, nogil=True)
def _look(held: Words, lengths: Integers, most: int, marks: Words) -> None:
    """Mark letters that are not printable ASCII, and letters other than digits and minus, in the bytes' top bits.

    `marks` has both for each lane, shape (2, lanes): a bit is set if a word of the text has such a letter there. `mine`
    has the top bit of each byte that belongs to the text. Adding a constant to a byte below 128 sets its top bit
    exactly for letters from some letter on, so that two sums decide for eight letters at a time.
    """
    marks[:] = 0
    for k in range(most):
        for lane in range(len(lengths)):
            left = min(max(lengths[lane] - 8 * k, 0), 8)
            mine = TOPS >> U(64 - 8 * left) if left else U(0)
            letters = held[k, lane]
            # at least "0" (0x30 + 0x50 = 0x80) and not above "9" (0x3A + 0x46 = 0x80)
            digits = (letters + EACH * U(0x50)) & ~(letters + EACH * U(0x46))
            # printable: at least "!" (0x21 + 0x5F = 0x80), and not above "~" (0x7F + 0x01 = 0x80)
            marks[0, lane] |= ~((letters + EACH * U(0x5F)) & ~(letters + EACH) & ~letters) & mine
            marks[1, lane] |= ~(digits | _is(letters, 45)) & mine


@njit(cache=True, nogil=True)
def _summarise(
    data: NDArray[np.uint8], offsets: Integers, marks: Words, keys: Words,
    words: Words, plain: Flags, counts: Integers,
) -> None:  # fmt: skip
    """Find the plain texts, hash integers and long texts, and count the words of the others.

    `marks` are those of `_look` for a text of at most HELD words. A text is plain if it can be hashed as it is:
    printable ASCII, or a whole number, which is hashed as that number. `counts` receives the words of a text that still
    must be hashed, 0 for those that are hashed here; `words` receives both hashes of these.
    """
    for lane in range(len(plain)):
        start, end, counts[lane] = offsets[lane], offsets[lane + 1], 0
        is_printable, is_like_number = marks[0, lane] == 0, marks[1, lane] == 0
        # `_look` has not seen all letters of a long text
        if end - start >= 8 * HELD:
            is_printable, is_like_number = _looked_at(data, start, end)
        # a text: its words with the last one, which also has the length (SipHash)
        if is_printable and not is_like_number:
            plain[lane], counts[lane] = True, (end - start) // 8 + 1
        # a whole number: the second hash mixes a number with some bits inverted
        elif is_like_number and _is_whole(data, start, end):
            number = _whole(data, start, end)
            words[lane, 0], words[lane, 1], plain[lane] = _mixed(number), _mixed(number ^ CHANGE), True

        # too long for the block, so that it is hashed alone
        if counts[lane] > HELD:
            words[lane, 0], words[lane, 1] = _hashed(data, start, end, keys)
            counts[lane] = 0


@njit(cache=True, nogil=True, inline="always")
def _is(letters: np.uint64, letter: int) -> np.uint64:
    """Return the top bits of the bytes equal to a letter; all bytes must be ASCII."""
    return ~((letters ^ (EACH * U(letter))) + EACH * U(0x7F))


@njit(cache=True, nogil=True)
def _looked_at(data: NDArray[np.uint8], start: int, end: int) -> tuple[bool, bool]:
    """Return whether all letters are printable ASCII, and whether all are digits or minus signs."""
    is_printable, is_like_number = True, True
    for place in range(start, end):
        letter = data[place]
        is_printable &= 0x21 <= letter <= 0x7E
        is_like_number &= 48 <= letter <= 57 or letter == 45
    return is_printable, is_like_number


@njit(cache=True, nogil=True)
def _is_whole(data: NDArray[np.uint8], start: int, end: int) -> bool:
    """Return whether a text is 0, or an optional minus and up to 18 digits that do not start with 0.

    18 digits fit 64 bits. 45, 48 and 57 are the codes of "-", "0" and "9".
    """
    if end - start == 1 and data[start] == 48:
        return True

    if end > start and data[start] == 45:
        start += 1
    if not 1 <= end - start <= 18 or data[start] == 48:
        return False

    digits = True
    for place in range(start, end):
        digits &= 48 <= data[place] <= 57
    return digits


@njit(cache=True, nogil=True)
def _whole(data: NDArray[np.uint8], start: int, end: int) -> np.uint64:
    """Return a whole number in decimal digits as the 64 bits of its two's complement; 45 and 48 are "-" and "0"."""
    minus, value = data[start] == 45, np.int64(0)
    for place in range(start + minus, end):
        value = value * 10 + (np.int64(data[place]) - 48)
    return np.uint64(-value if minus else value)


@njit(cache=True, nogil=True)
def _mixed(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> np.uint64(30))) * FACTOR
    word = (word ^ (word >> np.uint64(27))) * SECOND
    return word ^ (word >> np.uint64(31))


@njit(cache=True, nogil=True, inline="always")
def _turned(word: np.uint64, by: int) -> np.uint64:
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


State = tuple[np.uint64, np.uint64, np.uint64, np.uint64]


@njit(cache=True, nogil=True, inline="always")
def _round(state: State) -> State:
    """Return the state after one round of SipHash: additions, rotations and exclusive ors of its four words.

    The numbers are the rotations of SipHash (Aumasson & Bernstein 2012).
    """
    a, b, c, d = state
    a, c = a + b, c + d
    b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
    a = _turned(a, 32)
    c, a = c + b, a + d
    b, d = _turned(b, 17) ^ c, _turned(d, 21) ^ a
    return a, b, _turned(c, 32), d


@njit(cache=True, nogil=True, inline="always")
def _begun(key: Words) -> State:
    return (key[0] ^ np.uint64(0x736F6D6570736575), key[1] ^ np.uint64(0x646F72616E646F6D),
            key[0] ^ np.uint64(0x6C7967656E657261), key[1] ^ np.uint64(0x7465646279746573))  # fmt: skip


@njit(cache=True, nogil=True, inline="always")
def _absorbed(state: State, word: np.uint64) -> State:
    a, b, c, d = _round(_round((state[0], state[1], state[2], state[3] ^ word)))
    return a ^ word, b, c, d


@njit(cache=True, nogil=True, inline="always")
def _ended(state: State) -> np.uint64:
    a, b, c, d = _round(_round(_round(_round((state[0], state[1], state[2] ^ np.uint64(0xFF), state[3])))))
    return a ^ b ^ c ^ d


@njit(cache=True, nogil=True)
def _hashed(data: NDArray[np.uint8], start: int, end: int, keys: Words) -> tuple[np.uint64, np.uint64]:
    """Return the mixed SipHash-2-4 of some bytes under each of two keys.

    As SipHash demands, the last word has the remaining letters and, in its highest byte, the length modulo 256.
    """
    state, second_state = _begun(keys[0]), _begun(keys[1])
    for first in range(start, end + 1, 8):
        length = U(0) if end - first >= 8 else U((end - start) & 0xFF) << U(56)
        eight = _eight(data, first, end) | length
        state, second_state = _absorbed(state, eight), _absorbed(second_state, eight)
    return _mixed(_ended(state)), _mixed(_ended(second_state))


@njit(cache=True, nogil=True)
def _ids(held: Words, lengths: Integers, counts: Integers, key: Words, out: Words) -> None:
    """Write the hash of `_hashed` under one key for all loaded texts that have words to hash; others stay in `out`.

    All texts of the block are hashed at once, word by word.
    """
    states, many = np.empty((4, LANES), np.uint64), len(counts)
    states[0], states[1], states[2], states[3] = _begun(key)
    for k in range(len(held)):
        _absorb(states, held[k], lengths, counts, k)
    for lane in range(many):
        found = _mixed(_ended((states[0, lane], states[1, lane], states[2, lane], states[3, lane])))
        out[lane] = found if counts[lane] else out[lane]


@njit(cache=True, nogil=True)
def _absorb(states: Words, words: Words, lengths: Integers, counts: Integers, k: int) -> None:
    """Absorb word `k` of every text that has that many words; the last word contains the length."""
    for lane in range(len(counts)):
        length = U(lengths[lane]) << U(56) if k == counts[lane] - 1 else U(0)
        state = (states[0, lane], states[1, lane], states[2, lane], states[3, lane])
        a, b, c, d = _absorbed(state, words[lane] | length)
        has_word = k < counts[lane]
        states[0, lane], states[1, lane] = a if has_word else state[0], b if has_word else state[1]
        states[2, lane], states[3, lane] = c if has_word else state[2], d if has_word else state[3]


@njit(cache=True, nogil=True)
def text_words(data: NDArray[np.uint8], offsets: Integers, keys: Words) -> Words:
    """Return two words of every text under two secret keys, whatever the text denotes; `keys` has shape (2, 2)."""
    words = np.empty((len(offsets) - 1, 2), np.uint64)
    for row in range(len(words)):
        words[row, 0], words[row, 1] = _hashed(data, offsets[row], offsets[row + 1], keys)
    return words
