"""Search of files and output for the exact counts and values of a planted table.

The search finds counts of 6 digits as separate decimal text (also with commas or underscores between thousands, or
as a float that ends in .0) and as 8 raw little-endian bytes of an int64 or float64, and texts and numbers that
occur in records only. A noisy value may begin with the digits of a count by chance: a decimal point followed by a
digit other than 0, or adjacent digits, make it another number.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

CELLS = {(0, "Z"): 200111, (0, "Q"): 113267, (1, "Z"): 171773, (1, "Q"): 234567}
MARGINS = [313378, 406340, 371884, 347834]
COUNTS = sorted({*CELLS.values(), *MARGINS, 719718})  # no port and hardly a process has such a number
BAD_NUMBER, BAD_TEXT, UNIT = 987654321, "Xochimilco-7", 8675309
SECRETS = (str(BAD_NUMBER), BAD_TEXT, str(UNIT))


def planted_frame() -> pd.DataFrame:
    """Return rows whose marginal counts are all distinctive."""
    cells = [(a, city) for (a, city), count in CELLS.items() for _ in range(count)]
    frame = pd.DataFrame(cells, columns=["a", "city"])
    return frame.assign(unit=np.arange(len(frame)) + UNIT).sample(frac=1, random_state=0)


def leaks_in(content: bytes) -> list[str]:
    """Return the planted counts and values that occur in some bytes."""
    return [str(count) for count in COUNTS if _contains_count(content, count)] + [
        s for s in SECRETS if s.encode() in content
    ]


def _contains_count(content: bytes, count: int) -> bool:
    text = str(count)
    shapes = rf"{text}|{text[:-3]}[,_]{text[-3:]}".encode()
    alone = rb"(?<![0-9A-Za-z.,])(?:" + shapes + rb")(?![0-9A-Za-z]|[,_][0-9]|\.[0-9]*[1-9])"
    return bool(re.search(alone, content)) or any(struct.pack(kind, count) in content for kind in ("<q", "<d"))


def leaks_under(folders: Iterable[Path]) -> dict[str, list[str]]:
    """Return the planted counts and values by file, for every file in the directories that contains one."""
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    found = {str(path): leaks_in(path.name.encode() + b"\0" + path.read_bytes()) for path in files}
    return {name: leaks for name, leaks in found.items() if leaks}
