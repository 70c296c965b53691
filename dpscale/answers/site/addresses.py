"""Permanent addresses of pages, made from titles and names alone.

They consist of a to z, digits, `_`, `.`, `-` between names and `~` between other parts, so that every file system and
browser accepts them. A name with other characters gets the first digits of its hash, so that different names have
different addresses, also where a file system ignores upper case.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import unicodedata
from collections.abc import Sequence

LONGEST = 80  # letters of an address without its hash
DIGITS = 6  # hexadecimal digits of a hash in an address
PLAIN = re.compile(r"(?!(con|prn|aux|nul|com\d|lpt\d)(\.|$))[a-z0-9_]+(\.[a-z0-9_]+)?")  # not a device of Windows


def address_of_title(title: str) -> str:
    """Return the folder of a title: its words in lower case, without accents.

    Examples
    --------
    >>> address_of_title("Émergency visits, 2024")
    'emergency-visits-2024'
    """
    letters = unicodedata.normalize("NFKD", title)
    words = "-".join(re.findall("[a-z0-9]+", "".join(filter(str.isascii, letters)).lower()))
    is_whole = not any(letter.isalnum() and not letter.isascii() for letter in letters)
    if is_whole and len(words) <= LONGEST and PLAIN.fullmatch(words.replace("-", "_")):
        return words
    return "-".join(filter(None, (words[:LONGEST].strip("-"), _hash(title))))


def address_of_name(name: str) -> str:
    """Return the part of an address for an attribute, a number or a table; different names have different parts.

    Examples
    --------
    >>> address_of_name("age"), address_of_name("Age (years)")
    ('age', 'age_years_fc244a')
    """
    if PLAIN.fullmatch(name) and len(name) <= LONGEST:
        return name
    words = "_".join(re.findall("[a-z0-9]+", name.lower()))
    return "_".join(filter(None, (words[:LONGEST].strip("_"), _hash(name))))


def address_of_names(names: Sequence[str], order: bool = True) -> str:
    """Return the part of an address for several names, in the order of the alphabet unless `order` is false."""
    parts = [address_of_name(name) for name in names]
    joined = "-".join(sorted(parts) if order else parts)
    return joined if len(joined) <= LONGEST else f"{joined[:LONGEST].rstrip('-_')}-{_hash(joined)}"


def relative(page: str, target: str) -> str:
    """Return the address of a file of the site as a page links to it."""
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
