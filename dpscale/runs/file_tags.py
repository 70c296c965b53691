"""Keyed tags of the files that a run has read, by which the same content is recognised under other names and times.

A tag is a keyed hash of the size and content of a file and of the columns in its folder names, by the key of the user
(`manifest.keyed_tags`), so that nobody else can compare guesses with it. `files.json` has the tags of every table.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpscale.base.errors import DataError
from dpscale.records import Table
from dpscale.records.origin import Fingerprint, fingerprints
from dpscale.runs.manifest import keyed_tags
from dpscale.storage.files import present, read_text, write_whole

FILES = "files.json"
MOST_NAMED = 3  # files that a message names
Prints = Mapping[str, tuple[Table, Sequence[Fingerprint]]]


@dataclass(frozen=True)
class Comparison:
    """Comparison of the files of a run with those that it has read.

    Attributes
    ----------
    text : str
        What differs; empty for the same content.
    known : bool
        Whether the contents could be compared.
    """

    text: str
    known: bool = True

    @property
    def same(self) -> bool:
        return self.known and not self.text


def record_tags(run: Any, prints: Prints) -> None:
    """Write the keyed tags (digests of contents) of each table's files, unless they are recorded or no key exists.

    `prints` maps a table's name to the table and the fingerprints of its files.
    """
    if present(run.path / FILES):
        return
    release, recorded = run.manifest["release"], {}
    for name, (table, fingerprints_of_files) in prints.items():
        tags = keyed_tags(_contents(release, table, fingerprints_of_files), create=True)
        if tags is None:
            return
        recorded[name] = {"key": tags[0], "tags": tags[1]}
    write_whole(run.path / FILES, json.dumps(recorded).encode())


def compare_files(run: Any, prints: Prints | None = None) -> Comparison:
    """Return the comparison of the files, which are read if their fingerprints are not given, with the recorded tags.

    Names and times of files do not count.

    `prints` has the table and its fingerprints (path, size, hash) by the name of the table. Tags under another key
    cannot be compared.
    """
    if not present(run.path / FILES):
        return Comparison("their content has no recorded fingerprint", known=False)
    recorded = json.loads(read_text(run.path / FILES))
    if prints is None:
        footers = run.content.uses_footers
        prints = {name: (table, fingerprints(table, footers)) for name, table in run.content.open_data().items()}
    texts = []
    for name, (table, own) in prints.items():
        before, now = recorded.get(name), keyed_tags(_contents(run.manifest["release"], table, own))
        # without the same key equal contents have other tags
        if before is None or now is None or before["key"] != now[0]:
            return Comparison("the fingerprint of their content was computed with the key of another user", known=False)
        texts.append(_difference(before["tags"], now[1], [path for path, *_ in own]))
    return Comparison("; ".join(filter(None, texts)))


def check_same_files(run: Any, prints: Prints, charged: bool) -> None:
    """Raise DataError unless the files have the contents that the run has recorded when it began.

    `charged` selects the remedy: a charged run may be restored or ended, others may be removed. `prints` maps a table's
    name to the table and the fingerprints of its files.
    """
    comparison = compare_files(run, prints)
    if not comparison.same:
        what = comparison.text if comparison.known else "their names or contents"
        got = f"the files changed since this release started ({what})"
        remedy = ("restore them, or end this run and start a new one with --fresh" if charged else
                  f"restore them, or remove {run.path}, which has charged nothing, and run the job again")  # fmt: skip
        raise DataError("data.path", got, "the same files", remedy)


def _contents(release: str, table: Table, prints: Sequence[Fingerprint]) -> list[str]:
    fixed = {part.path: part.fixed for part in table.partitions}
    return [json.dumps(["file", release, fixed[path], size, content]) for path, size, content in prints]


def _difference(before: Sequence[str], now: Sequence[str], paths: Sequence[str]) -> str:
    """Return how many files changed, with the names of those that differ now; empty for the same contents.

    Parameters
    ----------
    before, now : sequence of str
        Tags of the contents of the files then and now, in any order; equal contents have equal tags.
    paths : sequence of str
        Paths of the files now.
    """
    missing = Counter(before)
    missing.subtract(now)
    changed_before = sum(count for count in missing.values() if count > 0)

    remaining, names = Counter(before), list[str]()
    for tag, path in zip(now, paths, strict=True):
        if remaining[tag] <= 0:
            names.append(os.path.basename(path))
        remaining[tag] -= 1
    if not changed_before and not names:
        return ""
    shown = ", ".join(sorted(names)[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
    # a missing and a new content are one changed file
    changed = min(changed_before, len(names))
    parts = [f"{changed:,} of {len(before):,} files changed"] if changed else []
    parts += [f"{changed_before - changed:,} of {len(before):,} files missing"] if changed_before > changed else []
    parts += [f"{len(names) - changed:,} more than the {len(before):,} files"] if len(names) > changed else []
    return ", ".join(parts) + (f": {shown}" if names else "")
