"""Newline-delimited JSON: one object per line, whose keys are columns.

Every column is read as texts, so types are never inferred from values and do not depend on the blocks in which a file
is read. A string is its own text, a number the text that the file contains, and true and false are these words. null,
NaN and a missing key are nulls. An array or an object is its JSON as written, which no domain of numbers contains.

A block of whole lines is read by compiled loops. `_scan` is an automaton over its bytes: it checks the grammar of
RFC 8259 (with NaN and Infinity, which Python and pandas write) and finds tokens, which `_collect` combines to keys and
values. `_unescape` replaces escape sequences in place, `_match` finds the requested columns and repeated keys, and
`_gather` copies the texts of one column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from dpscale.base.arrow import pa, pc
from dpscale.base.compilation import njit
from dpscale.base.errors import DataError
from dpscale.base.numerics import Flags, Integers, Integers32, NDArray
from dpscale.records.files import Dialect, OpenFile, RecordFormat, batch_rows, codec_of, file_size, streamed

BLOCK_BYTES = 1 << 22  # of one read
RANGE_BYTES = 1 << 23  # of a separately readable part of a file
LINE_BYTES = 1 << 22  # of the longest line
EDGE_BYTES = 1 << 16  # of the first read beyond a part, which completes its last line
ROW_BYTES = 64  # assumed length of a line, from which the work of a part is estimated
SHORTEST = 3  # bytes of the line {}
PACKED = 5  # upper estimate of rows per byte of a compressed file
MARK = b"\xef\xbb\xbf"  # byte order mark of UTF-8

Bytes = NDArray[np.uint8]
KEY, KEY_END, VALUE, VALUE_END = range(4)  # columns of `spans`
TEXT, ESCAPED, ESCAPED_KEY = 1, 2, 4  # flags of `kinds`
INVALID, LONG, REPEATED = -1, -2, -3  # faults of a line
STATE_BITS, ACTION_BITS = 6, 4  # bits of a state in the table of steps, and of an action in a token
# actions of the automaton; 0 is none
(FAIL, NEWLINE, START_ROW, OPEN, CLOSE, END_ROW, COMMA, START_KEY, ESCAPE_KEY, END_KEY, START_TEXT, ESCAPE_TEXT,
 END_TEXT, START_SCALAR, END_SCALAR) = range(1, 16)  # fmt: skip
# action: column of `spans`, its distance from the byte, and flag; a column that is set already stays
EFFECTS = {START_KEY: (KEY, 1, 0), ESCAPE_KEY: (-1, 0, ESCAPED_KEY), END_KEY: (KEY_END, 0, 0),
           START_TEXT: (VALUE, 1, TEXT), ESCAPE_TEXT: (-1, 0, ESCAPED), END_TEXT: (VALUE_END, 0, 0),
           START_SCALAR: (VALUE, 0, 0), END_SCALAR: (VALUE_END, 0, 0), COMMA: (VALUE_END, 0, 0),
           OPEN: (VALUE, 0, 0), CLOSE: (VALUE_END, 1, 0), END_ROW: (VALUE_END, 0, 0)}  # fmt: skip

BLANKS, DIGITS, WORDS = b" \t\r", b"0123456789", ("true", "false", "null", "NaN", "Infinity")
ENDS = ("zero", "whole", "fraction", "power", "word")  # states in which a number or a word may end
TEXTS = (("name", START_KEY, ESCAPE_KEY, END_KEY, "colon"), ("text", START_TEXT, ESCAPE_TEXT, END_TEXT, "after"))
STATES = ("error", "line", "key", "value", "after", "end", "colon", "object", "array", "minus", "point", "exponent",
          "sign", *ENDS, *(name + part for name, *_ in TEXTS for part in ("", "-escape", "-1", "-2", "-3", "-4")),
          *sorted({word[n:] for word in WORDS for n in range(1, len(word))}))  # fmt: skip
LINE, NEXT_KEY, NEXT_VALUE, AFTER, END = range(1, 6)  # numbers in STATES of the states that the loop uses
RULES = (  # state, bytes, next state, action; the loop chooses the state after a comma and a closing bracket
    ("line", b"\n", "line", NEWLINE), ("line", b"{", "object", START_ROW), ("end", b"\n", "line", NEWLINE),
    *((state, BLANKS, state, 0) for state in ("line", "object", "key", "colon", "value", "array", "after", "end")),
    ("object", b'"', "name", START_KEY), ("object", b"}", "after", CLOSE), ("key", b'"', "name", START_KEY),
    ("colon", b":", "value", 0), ("array", b"]", "after", CLOSE),
    *((state, first, new, action) for state in ("value", "array") for first, new, action in (
        (b'"', "text", START_TEXT), (b"{", "object", OPEN), (b"[", "array", OPEN), (b"-", "minus", START_SCALAR),
        (b"0", "zero", START_SCALAR), (DIGITS[1:], "whole", START_SCALAR),
        *((word[:1].encode(), word[1:], START_SCALAR) for word in WORDS))),
    *((state, last, "after", action) for state in ("after", *ENDS) for last, action in ((b",", COMMA), (b"}]", CLOSE))),
    *((state, BLANKS, "after", END_SCALAR) for state in ENDS),
    *(rule for state, _, escape, end, new in TEXTS for rule in (
        (state, bytes(range(32, 256)), state, 0), (state, b'"', new, end), (state, b"\\", f"{state}-escape", escape),
        (f"{state}-escape", b'"\\/bfnrt', state, 0), (f"{state}-escape", b"u", f"{state}-1", 0),
        *((f"{state}-{n}", DIGITS + b"abcdefABCDEF", f"{state}-{n + 1}" if n < 4 else state, 0)
          for n in range(1, 5)))),
    ("minus", b"0", "zero", 0), ("minus", DIGITS[1:], "whole", 0), ("minus", b"I", "nfinity", 0),
    *((state, b".", "point", 0) for state in ("zero", "whole")),
    *((state, b"eE", "exponent", 0) for state in ("zero", "whole", "fraction")),
    ("whole", DIGITS, "whole", 0), ("point", DIGITS, "fraction", 0), ("fraction", DIGITS, "fraction", 0),
    ("exponent", b"+-", "sign", 0), *((state, DIGITS, "power", 0) for state in ("exponent", "sign", "power")),
    *((word[n:], word[n : n + 1].encode(), word[n + 1 :] or "word", 0)
      for word in WORDS for n in range(1, len(word))),
)  # fmt: skip


@cache
def _tables() -> tuple[NDArray[np.int16], NDArray[np.int8]]:
    """Return the next state, and above it the action, for each state and byte; and the effects of each action.

    A rule is (state, bytes, next state, action). Bytes without a rule lead to FAIL.
    """
    steps = np.full((len(STATES), 256), FAIL << STATE_BITS, np.int16)
    for state, characters, new, action in RULES:
        steps[STATES.index(state), list(characters)] = STATES.index(new) | action << STATE_BITS
    effects = [EFFECTS.get(action, (-1, 0, 0)) for action in range(1 << ACTION_BITS)]
    return steps.ravel(), np.array(effects, np.int8)


@cache
def _compiled(function: Callable[..., Any]) -> Any:
    """Return a function as machine code; compiled here, because every job imports the module of every format."""
    return njit(cache=True, nogil=True)(function)


def _scan(data: Bytes, begin: int, steps: NDArray[np.int16], stack: Bytes, tokens: Integers32) -> int:
    """Check whole lines and find the tokens of their objects; return the number of tokens, or the fault of a line.

    The actions and the table `steps` are those of `_tables`: the next state in the lowest STATE_BITS bits, the action
    above them. `depth` is the number of open brackets.

    Parameters
    ----------
    data : ndarray of uint8
    begin : int
        Start of the first line.
    steps : ndarray of int16, shape (states * 256,)
    stack : ndarray of uint8
        Space for the open brackets.
    tokens : ndarray of int32
        Output: place and, in the lowest bits, action of each token that is not in a nested value.
    """
    state, depth, count, line = LINE, 0, 0, begin
    for place in range(begin, len(data)):
        # the table has a step for each state and byte
        step = steps[state << 8 | data[place]]
        state, action = step & ((1 << STATE_BITS) - 1), step >> STATE_BITS
        if action == 0:
            continue
        if action == FAIL:
            return INVALID

        if action == NEWLINE:
            if place - line > LINE_BYTES:
                return LONG
            line = place + 1
        elif action in (START_ROW, OPEN):
            stack[depth] = data[place]
            depth += 1
        elif action == CLOSE:
            depth -= 1
            if stack[depth] + 2 != data[place]:  # { and }, [ and ] differ by two
                return INVALID
            if depth == 0:
                state, action = END, END_ROW
        # the state after a comma depends on the innermost bracket, which the table does not know
        elif action == COMMA:
            state = NEXT_KEY if stack[depth - 1] == ord("{") else NEXT_VALUE

        # tokens of the line's object only; the opening bracket of a nested value is the start of that value
        if depth < 2 or (action == OPEN and depth == 2):
            tokens[count] = place << ACTION_BITS | action
            count += 1

    return count


def _collect(
    tokens: Integers32, effects: NDArray[np.int8], rows: Integers, spans: Integers32, kinds: Bytes, members: int
) -> int:
    """Collect the members of objects from tokens after the first `members`; return the number of objects.

    The outputs are the first member of each object (`rows`, which ends with the number of members), start and end of
    each member's key and value without quotes (`spans`, shape (members, 4)), and its flags (`kinds`). They are 0 before
    the call, and 0 in `spans` means "not seen yet": an object begins at byte 0, so no key or value does. A row of
    `effects` has the column of `spans` that an action sets, or -1, the distance of the end from the token, and the
    flags. The end of an object without members is written to the member before it, which has an end already or is a
    requested name, or to the last row of `spans`, which no member has.
    """
    count = 0
    for token in tokens:
        place, action = token >> ACTION_BITS, token & ((1 << ACTION_BITS) - 1)
        if action == START_ROW:
            rows[count] = members
            count += 1
        members += action == START_KEY
        column, distance, flags = effects[action, 0], effects[action, 1], effects[action, 2]
        kinds[members - 1] |= flags
        if column >= 0 and spans[members - 1, column] == 0:
            spans[members - 1, column] = place + distance

    rows[count] = members
    return count


def _unescape(data: Bytes, spans: Integers32, kinds: Bytes) -> None:
    """Replace the escape sequences of keys and texts in place; a lone surrogate becomes U+FFFD.

    Text never becomes longer, so that `out` (where the next byte is written) never passes `place` (where it is read).
    `high` is the end of the U+FFFD that replaced a first surrogate, and `lead` has that surrogate's ten bits.

    A member has a key and a value, whose ends are in `spans`. A character beyond U+FFFF is written as two surrogates,
    each an escape of six bytes; it has four bytes in UTF-8.
    """
    for member in range(len(kinds)):
        for flag, column in ((ESCAPED_KEY, KEY), (ESCAPED, VALUE)):
            if not kinds[member] & flag:
                continue

            place, end = spans[member, column], spans[member, column + 1]
            out, high, lead = place, np.int64(0), np.int64(0)
            while place < end:
                byte = data[place]
                place += 1
                if byte != ord("\\"):
                    data[out], out = byte, out + 1
                    continue

                byte = data[place]
                place += 1
                code = np.int64(byte)
                if byte == ord("u"):
                    code = np.int64(0)
                    for digit in data[place : place + 4]:
                        # hexadecimal digit: letters, whose codes have bit 6 set, have 1 to 6 in the lowest bits
                        code = code << 4 | ((digit & 15) + 9 * (digit >> 6))
                    place += 4
                else:
                    for letter, meaning in ((98, 8), (102, 12), (110, 10), (114, 13), (116, 9)):  # b, f, n, r, t
                        code = np.int64(meaning) if byte == letter else code

                low = 0xDC00 <= code < 0xE000
                if low and high == out:  # the three bytes before are U+FFFD, for the first surrogate of this pair
                    code, out = 0x10000 + (lead << 10) + (code & 0x3FF), out - 3
                elif 0xD800 <= code < 0xE000:
                    lead, high = code & 0x3FF, np.int64(0 if low else out + 3)
                    code = np.int64(0xFFFD)

                # bytes of the character in UTF-8: the last ones have six bits each
                size = 1 + (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF)
                for index in range(size - 1, 0, -1):
                    data[out + index] = 0x80 | (code & 0x3F)
                    code >>= 6

                # the lead byte of UTF-8 has as many ones as bytes, followed by a zero
                data[out] = code | ((0xF00 >> size) & 0xF0 if size > 1 else 0)
                out += size

            spans[member, column + 1] = out


def _match(
    data: Bytes, rows: Integers, spans: Integers32, columns: int, slots: Integers32, matched: Integers32
) -> bool:
    """Find the member of each column in each object; return False if an object has a key twice.

    The keys of the first `columns` members are the requested columns. `slots` is an empty hash table (-1) of members,
    in which those of earlier objects count as absent. The output `matched` of shape (columns, rows) is -1 as before
    where an object lacks a column.

    `spans` has the start and end of each member's key and value in `data`; the members of row r are those from rows[r]
    up to rows[r + 1]. The row -1 of the loop enters the requested columns themselves as keys.
    """
    mask = len(slots) - 1
    for row in range(-1, len(rows) - 1):
        first, end = (0, columns) if row < 0 else (rows[row], rows[row + 1])
        for member in range(first, end):
            start, length = spans[member, KEY], spans[member, KEY_END] - spans[member, KEY]
            # hash of the key's bytes; places in the table are tried one after the other from it
            code = np.uint64(14695981039346656037)  # FNV-1a
            for place in range(start, start + length):
                code = (code ^ np.uint64(data[place])) * np.uint64(1099511628211)
            slot = np.int64((code ^ code >> np.uint64(32)) & np.uint64(mask))

            while True:
                other = slots[slot]
                # free, or occupied by a member of an earlier object
                if other < 0 or columns <= other < first:
                    slots[slot] = member
                    break

                begin, same = spans[other, KEY], spans[other, KEY_END] - spans[other, KEY] == length
                place = 0
                while same and place < length:
                    same = data[start + place] == data[begin + place]
                    place += 1

                # the same key twice in an object, or a requested column twice
                if same and (other >= columns or row < 0 or matched[other, row] >= 0):
                    return False
                # the key of a requested column: its member in this object
                if same:
                    matched[other, row] = member
                    break
                slot = (slot + 1) & mask

    return True


def _gather(data: Bytes, spans: Integers32, kinds: Bytes, column: int, members: Integers32, offsets: Integers32,
            valid: Flags, out: Bytes) -> None:  # fmt: skip
    """Copy the keys or the values of members, which `column` selects.

    `valid` is set to False for nulls: members that are -1, null and NaN.

    `members` has the member of each row, -1 if it is absent. The texts are written to `out` one after the other, and
    `offsets` has their starts and the end of the last one, as in an Arrow array of texts.
    """
    total = 0
    for row in range(len(members)):
        member = members[row]
        offsets[row] = total
        valid[row] = False
        if member < 0:
            continue

        start, end = spans[member, column], spans[member, column + 1]
        letter = data[start]  # of the values without quotes, only null and NaN begin with n or N
        valid[row] = kinds[member] & TEXT or (letter != ord("n") and letter != ord("N"))
        if valid[row]:
            for place in range(start, end):
                out[total] = data[place]
                total += 1

    offsets[len(members)] = total


class _Block:
    """Objects of whole lines, and the members of them that are requested columns."""

    def __init__(self, path: str, text: bytes, columns: Sequence[str]) -> None:
        """Scan the text for its objects and members; `path` names the file in errors.

        `spans` and `kinds` have the places and kinds of the members, and `rows` the first member of each object.
        Raises DataError for a text that is no sequence of objects.
        """
        self.path, self.columns = path, len(columns)
        text.decode()  # refuses bytes that are not UTF-8
        names = [name.encode() for name in columns]
        # the names of the columns come before the lines, so that a requested column is a member like those of the
        # objects; each member has a colon, so that the number of colons bounds that of members
        self.data = np.frombuffer(bytearray(b"".join([*names, text])), np.uint8)
        begin, most = sum(map(len, names)), len(names) + text.count(b":") + 1
        self.spans, self.kinds = np.zeros((most, 4), np.int32), np.zeros(most, np.uint8)
        self.spans[: len(names), KEY_END] = np.cumsum([len(name) for name in names])
        self.spans[1 : len(names), KEY] = self.spans[: max(len(names) - 1, 0), KEY_END]
        (steps, effects), stack = _tables(), np.empty(len(self.data), np.uint8)
        tokens, rows = np.empty(len(self.data), np.int32), np.zeros(text.count(b"\n") + 1, np.int64)
        count = _compiled(_scan)(self.data, begin, steps, stack, tokens)
        if count < 0:
            raise _refused(path, count)

        count = _compiled(_collect)(tokens[:count], effects, rows, self.spans, self.kinds, len(names))
        self.rows = rows[: count + 1]
        # a flag above TEXT: some key or text has an escape sequence
        if (self.kinds > TEXT).any():
            _compiled(_unescape)(self.data, self.spans, self.kinds)

    def __len__(self) -> int:
        return len(self.rows) - 1

    def members(self, start: int, rows: int) -> Integers32:
        """Return the member of each column in some objects; -1 where an object lacks the column.

        `slots` has at least twice as many entries as an object has members and requested columns together.
        """
        chosen = self.rows[start : start + rows + 1]
        # the largest object
        most = int(np.diff(chosen).max(initial=0)) + self.columns
        members = np.full((self.columns, len(chosen) - 1), -1, np.int32)
        slots = np.full(1 << (2 * most).bit_length(), -1, np.int32)
        if not _compiled(_match)(self.data, chosen, self.spans, self.columns, slots, members):
            raise _refused(self.path, REPEATED)
        return members

    def texts(self, members: Integers32, column: int = VALUE) -> pa.Array:
        """Return the values, or the keys, of some members as an Arrow array of texts.

        A member is a key of an object with its value. `spans` has a row for each member, with the places in `data` at
        which its key starts and ends, and its value starts and ends; `kinds` says whether its value is a text.

        Parameters
        ----------
        members : ndarray of int32, shape (rows,)
            Number of a member for each row of the result; −1 for a null.
        column : int
            VALUE or KEY: column of `spans` with the starts; the next column has the ends.
        """
        rows, present_spans = len(members), self.spans[members[members >= 0]]
        # as many bytes as all texts have; those of the words null and NaN, which become nulls, stay unused
        most_bytes = (present_spans[:, column + 1] - present_spans[:, column]).sum()
        # every key is a text
        kinds = self.kinds if column == VALUE else np.full(len(self.kinds), TEXT, np.uint8)

        # `_gather` fills the three parts of an Arrow array: bytes, their offsets by row, and whether a row is no null
        text_bytes, offsets, valid = np.empty(most_bytes, np.uint8), np.empty(rows + 1, np.int32), np.empty(rows, bool)
        _compiled(_gather)(self.data, self.spans, kinds, column, members, offsets, valid, text_bytes)
        valid_bits = np.packbits(valid, bitorder="little")
        return pa.StringArray.from_buffers(rows, *map(pa.py_buffer, (offsets, text_bytes, valid_bits)))


def _refused(path: str, fault: int) -> DataError:
    """Return the error for a file with a line that cannot be read; it names neither the line nor its place."""
    problem, takes = {
        INVALID: ("a line that is not a JSON object", "one JSON object per line"),
        LONG: (f"a line of more than {LINE_BYTES >> 20} MiB", "shorter lines"),
        REPEATED: ("a line with a repeated key", "distinct keys in each object"),
    }[fault]
    return DataError("data.path", f"{path} has {problem}", takes, "fix or remove it")


class OpenNdjson(OpenFile):
    """File of newline-delimited JSON; its parts are ranges of bytes, and a line belongs to the part of its start."""

    def __init__(self, path: str) -> None:
        self.path = path

    @cached_property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        """Keys of all lines in the order of their first occurrence; reads the file."""
        names: dict[str, None] = {}
        for text in self._lines(0, None):
            block = _Block(self.path, text, ())
            keys = block.texts(np.arange(block.rows[-1], dtype=np.int32), KEY)
            names |= dict.fromkeys(pc.unique(keys).to_pylist())
        return list(names)

    def groups(self) -> list[int]:
        """Return the estimated number of rows of each range of bytes; a compressed file has one."""
        size = file_size(self.path)
        return [size * PACKED] if codec_of(self.path) else [RANGE_BYTES // ROW_BYTES] * -(-size // RANGE_BYTES)

    def batches(
        self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = "", domain: object = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of the columns as texts, dictionary-encoded except `ids`.

        `row_groups` are the numbers of the ranges of bytes to read; a compressed file has no ranges and is read whole.
        Without columns a batch has one column of nulls, for its number of rows. `domain` is not used.
        """
        columns = list(dict.fromkeys(columns))
        rows, parts = batch_rows(len(columns)), () if codec_of(self.path) else row_groups
        ranges: Iterable[tuple[int, int | None]] = ((part * RANGE_BYTES, (part + 1) * RANGE_BYTES) for part in parts)

        for text in (text for start, end in (ranges if parts else [(0, None)]) for text in self._lines(start, end)):
            block = _Block(self.path, text, columns)
            for start in range(0, len(block), rows):
                members = block.members(start, rows)
                texts = zip(columns, map(block.texts, members), strict=True)
                arrays = {name: column if name == ids else column.dictionary_encode() for name, column in texts}
                yield pa.RecordBatch.from_pydict(arrays or {"": pa.nulls(members.shape[1])})

    def _lines(self, start: int, end: int | None) -> Iterator[bytes]:
        """Yield the lines that start in a range of bytes, about BLOCK_BYTES at a time.

        `rest` is the incomplete line at the end of the last block, `cut` the end of the last line that starts in the
        range, and `first` whether the next lines are the first of the file, which may follow a byte order mark.
        """
        # the byte before the range tells whether its first line starts at `start`
        place, rest, last = max(start - 1, 0), b"", False
        skip, first = start > 0, start == 0  # the line of the byte before the range is another range's
        with streamed(self.path) as file:
            if place:
                file.seek(place)
            while not last:
                size = BLOCK_BYTES if end is None else max(min(BLOCK_BYTES, end - place), EDGE_BYTES)
                if not (block := file.read(size)):
                    break

                # end of the line that contains the last byte of the range, if it is in this block
                cut = -1 if end is None else block.find(b"\n", max(end - 1 - place, 0))
                place, last = place + len(block), cut >= 0
                block = block[: cut + 1] if last else block
                # skip until the end of the line that started before
                if skip:
                    _, newline, block = block.partition(b"\n")
                    skip = not newline

                whole, newline, rest = (rest + block).rpartition(b"\n")
                if len(rest) > LINE_BYTES + len(MARK):
                    raise _refused(self.path, LONG)
                if newline:
                    yield (whole + newline).removeprefix(MARK if first else b"")
                    first = False

        # the last line of a file may lack its end
        if rest:
            yield rest.removeprefix(MARK if first else b"") + b"\n"


class NdjsonFormat(RecordFormat):
    """Newline-delimited JSON in UTF-8."""

    name = "ndjson"
    title = "NDJSON"
    suffixes = (".ndjson", ".jsonl")
    compressed = True
    typed = False
    lists_columns = False
    splittable = True

    def open(self, path: str, dialect: Dialect) -> OpenNdjson:
        return OpenNdjson(path)

    def row_bound(self, path: str, dialect: Dialect) -> int:
        """Return one row per three bytes, or five rows per byte of a compressed file."""
        size = file_size(path)
        return size * PACKED if codec_of(path) else size // SHORTEST + 1

    def remedy(self, path: str, start: bytes, error: object) -> str:
        return "convert it to UTF-8" if isinstance(error, UnicodeError) else super().remedy(path, start, error)


NDJSON = NdjsonFormat()
