"""Text for messages and tables: nearest known names, safe representations of values, formatted numbers.

An object passed by a user may contain records, such as a table or its text in place of a path; messages never show it
(`shown`).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a remedy: the nearest known name, or the list of known names."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return f"there are: {shown}"


MOST_SHOWN = 250  # characters of a text that a message shows
MOST_BITS = 500  # of an integer that a message shows, about 150 digits


def safe_repr(value: object) -> str:
    """Return a repr of `value` that is safe to print; long or non-scalar values show only their type."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:  # Python refuses to print much longer ones
        return "a number of hundreds of digits"
    if value is None or isinstance(value, int | float) or (isinstance(value, str) and _is_short(value)):
        return repr(value)
    return "a long text" if isinstance(value, str) else type_of_value(value)


def type_of_value(value: object) -> str:
    """Return the type of a value with its article, as in `an int`."""
    name = type(value).__name__
    if isinstance(value, bytes):  # a plural
        return name
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def format_bytes(count: int) -> str:
    """Format a number of bytes in a readable unit."""
    for unit, least in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= least:
            return f"{count / least:.3g} {unit}" if count < 1000 * least else f"{count / least:,.0f} {unit}"
    return f"{count} bytes"


def distinct_sizes(needed: int, limit: int) -> tuple[str, str]:
    """Format two different numbers of bytes so that their texts differ."""
    shown = format_bytes(needed), format_bytes(limit)
    return shown if shown[0] != shown[1] else (f"{needed:,} bytes", f"{limit:,} bytes")


def quantity(count: int, noun: str) -> str:
    """Return a number with a noun, as `1 set` or `2 sets`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def display_path(path: object) -> str:
    """Return a path as text, unless it may be a text of records."""
    return str(path) if _is_short(str(path)) else safe_repr(str(path))


def _is_short(text: str) -> bool:
    """Return whether a text is one line that is short enough for a name or path."""
    return len(text) <= MOST_SHOWN and text.isprintable()


MOST = 20  # rows of a table in a notebook
PADDED = "padding: 0.1em 0.6em; text-align:"  # as notebooks, on pages whose tables have no style
SPACED = "style='margin: 0 0 1em'"
LEFT, RIGHT = f"style='{PADDED} left'", f"style='{PADDED} right'"


def glance(title: str, facts: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """Return an HTML heading and a table of the first facts."""
    pairs = list(facts.items() if isinstance(facts, Mapping) else facts)
    rows = [
        f"<tr><th scope='row' {LEFT}>{escape(name)}</th><td {LEFT}>{escape(value)}</td></tr>"
        for name, value in pairs[:MOST]
    ]
    more = [f"<tr><td colspan='2'>and {len(pairs) - MOST:,} more</td></tr>"] if len(pairs) > MOST else []
    return f"<strong>{escape(title)}</strong><table {SPACED}>{''.join(rows + more)}</table>"


def html_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], labels: int = 1) -> str:
    """Return an HTML heading and a table with named columns.

    Parameters
    ----------
    title : str
    columns : sequence of str
    rows : sequence of sequences
        Values, which are escaped.
    labels : int
        Number of columns at the left that contain text; numbers are aligned to the right.
    """
    styles = [LEFT if place < labels else RIGHT for place in range(len(columns))]
    head = "".join(f"<th scope='col' {style}>{escape(name)}</th>" for name, style in zip(columns, styles, strict=True))
    body = [
        "".join(f"<td {style}>{escape(str(value))}</td>" for value, style in zip(row, styles, strict=True))
        for row in rows
    ]
    lines = "".join(f"<tr>{line}</tr>" for line in body)

    return (
        f"<strong>{escape(title)}</strong><table {SPACED}><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    )


FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of a formula in a spreadsheet
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


def escape_formula(text: str | None) -> str | None:
    """Put an apostrophe before a text that a spreadsheet would read as a formula, unless it is a number such as -5."""
    return f"'{text}" if text and text[0] in FORMULA and not NUMBER.fullmatch(text) else text


RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SMALLEST_PLAIN = 1e-4  # smaller numbers are shown with a power of ten


def figure(value: float | None) -> str:
    """Format a number with four significant digits and thousands separators; a dash if there is none.

    Tiny numbers are written with a power of ten.
    """
    if value is None or not math.isfinite(value):
        return "—"
    if 0 < abs(value) < SMALLEST_PLAIN:
        return power(value)
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"


def epsilon_text(epsilon: float | None, digits: int = 6) -> str:
    """Return an epsilon with some significant digits; None, of a release with a seed, is infinite."""
    return "infinite" if epsilon is None else f"{epsilon:.{digits}g}"


def power(value: float) -> str:
    """Format in scientific notation, as 8.77 × 10⁻⁶."""
    digits, exponent = f"{value:.2e}".split("e")
    digits = digits.rstrip("0").rstrip(".")
    raised = f"10{str(int(exponent)).translate(RAISED)}"
    return raised if digits == "1" else f"{digits} × {raised}"


def whole(value: float | None) -> str:
    """Format a count as an integer with thousands separators."""
    return "—" if value is None or not math.isfinite(value) else f"{round(value):,}".replace("-", "−")


def rounded(value: float | None, error: float | None, most: int = 12) -> str:
    """Format a number to two significant digits of its standard error, with at most some decimals.

    Numbers without a positive error have four significant digits.
    """
    if value is None or not math.isfinite(value):
        return "—"
    if error is None or not error > 0 or not math.isfinite(error):
        return whole(value) if most == 0 else figure(value)
    digits = min(1 - math.floor(math.log10(float(f"{error:.1e}"))), most)
    text = f"{round(value, digits):,.{max(digits, 0)}f}"
    return text.replace("-", "" if not float(text.replace(",", "")) else "−")


def between(low: float, high: float, error: float | None, most: int = 12) -> str:
    """Format the ends of an interval, as 138 to 303, rounded to the standard error; empty for unknown ends."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{rounded(low, error, most)} to {rounded(high, error, most)}"


def share_text(share: float, low: float, high: float, error: float) -> str:
    """Format a share with its interval, as 12 % [10 to 14]."""
    shown = [rounded(100 * one, 100 * error, 2 if share >= 0.01 else 12) for one in (share, low, high)]
    return f"{shown[0]} % [{shown[1]} to {shown[2]}]"


def percent(value: float | None) -> str:
    """Format a share as a percentage: 12 %, 0.4 %, below 0.01 %."""
    if value is None or not math.isfinite(value):
        return "—"
    if 0 < value < 1e-4:
        return "below 0.01 %"
    return f"{100 * value:.2g} %" if value < 0.995 else f"{100 * value:,.0f} %"
