"""Reader and writer of the public file of a hierarchy: a row for each leaf with the names of its ancestors.

Parquet columns are texts or integers; every field of a CSV file is a text, so "NA" and leading zeros remain. An empty
text is missing. With `key = "leaf"` the name of a leaf identifies it. Then names are identifiers: a leaf with two paths
is refused, and so is a cycle, a name that is above itself when the rows of the file are followed downwards. With
`key = "path"` names may repeat, and a leaf is the whole row. A row that occurs twice is one leaf.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrow import arrow_csv, is_text, pa, pc, pq
from dpscale.base.display import display_path, nearest, safe_repr
from dpscale.base.errors import DomainError
from dpscale.base.numerics import Flags, Floats, Integers, Integers32, NDArray
from dpscale.domain.tree import SEPARATOR, LevelTree
from dpscale.storage.files import is_local, place

KEYS = ("leaf", "path")
TREE_KEYS = {"file", "levels"}  # required
MORE_TREE_KEYS = {"leaf", "key", "unspecified", "coordinates", "cells", "sha256"}
SUFFIXES = (".csv", ".parquet")
LARGEST_ANGLES = (90.0, 180.0)  # of latitudes and longitudes, in degrees


def read_hierarchy(name: str, table: Mapping[str, Any], folder: Path | None) -> LevelTree:
    """Return the tree of a table [attributes.NAME] of kind "hierarchy".

    Parameters
    ----------
    name : str
    table : mapping
    folder : Path or None
        Folder from which a relative path starts; None for the current one.

    Returns
    -------
    LevelTree

    Raises
    ------
    DomainError
        If an option or the file is invalid, or the file is not the one whose hash is given.
    """
    field = f"attributes.{name}"
    levels, leaf, key = table["levels"], table.get("leaf", name), table.get("key", KEYS[0])
    if (
        not isinstance(levels, list | tuple)
        or not levels
        or not all(isinstance(level, str) and level for level in levels)
    ):
        raise DomainError(f"{field}.levels", safe_repr(levels), "a list of the columns of ancestors, the top first",
                          'write levels = ["country", "region"]')  # fmt: skip
    if not isinstance(leaf, str) or not leaf:
        raise DomainError(f"{field}.leaf", safe_repr(leaf), "the column of the leaves", "fix it")
    if twice := [level for at, level in enumerate(levels) if level in (*levels[:at], leaf, name)]:
        raise DomainError(
            f"{field}.levels", f"the column {twice[0]!r} twice", "distinct columns above the leaf", "drop the repeat"
        )
    if not isinstance(key, str) or key not in KEYS:
        raise DomainError(
            f"{field}.key", safe_repr(key), " or ".join(KEYS), nearest(key, KEYS) if isinstance(key, str) else "fix it"
        )

    unspecified = table.get("unspecified", False)
    if not isinstance(unspecified, bool):
        raise DomainError(f"{field}.unspecified", safe_repr(unspecified), "true or false", "fix it")

    axes = _coordinate_columns(field, table.get("coordinates", ()), (*levels, leaf))
    path = _path(field, table["file"], folder)
    tree = _read(field, str(path), (*levels, leaf), key == "path", unspecified, axes, _file_digest(field, path))
    digest, cells = table.get("sha256", tree.digest), [len(starts) for starts in tree.starts]
    if not isinstance(digest, str) or digest != tree.digest:
        raise DomainError(f"{field}.file", f"{display_path(path)}, which was changed",
                          "the file as the domain was written with",
                          "restore it, or remove cells and sha256")  # fmt: skip
    if not isinstance(table.get("cells", cells), list) or table.get("cells", cells) != cells:
        raise DomainError(f"{field}.cells", safe_repr(table["cells"]), f"{cells}, as in the file", "remove it")
    return tree


def _coordinate_columns(field: str, axes: object, others: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of latitudes and longitudes, or none."""
    given = tuple(axes) if isinstance(axes, list | tuple) and all(isinstance(axis, str) for axis in axes) else ("",)
    if len(given) not in (0, 2) or "" in given or len({*given, *others}) < len(given) + len(others):
        raise DomainError(f"{field}.coordinates", safe_repr(axes), "two other columns, of latitudes and longitudes",
                          'write coordinates = ["lat", "lon"]')  # fmt: skip
    return given


def _path(field: str, file: object, folder: Path | None) -> Path:
    if not isinstance(file, str) or not file.endswith(SUFFIXES):
        raise DomainError(f"{field}.file", safe_repr(file), "the path of a CSV or Parquet file", "fix or convert it")
    path = place(file if "://" in file or folder is None else folder / file, "file")
    return path.resolve() if is_local(path) else path


def _file_digest(field: str, path: Path) -> str:
    """Return the SHA-256 of a file, by which one that has been read before is recognised."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise DomainError(
            f"{field}.file", f"cannot read {display_path(path)} ({reason})", "the file of a hierarchy", "check the path"
        ) from None


@lru_cache(maxsize=4)
def _read(
    field: str,
    file: str,
    columns: tuple[str, ...],
    by_path: bool,
    unspecified: bool,
    axes: tuple[str, ...],
    file_digest: str,
) -> LevelTree:
    """Return the tree in a file; one that has not changed is not read again."""
    path = place(file, "file")
    try:
        table = _table(field, path, columns, axes)
    except (OSError, pa.ArrowException):
        raise DomainError(
            f"{field}.file", f"{display_path(path)}, which cannot be read", "CSV in UTF-8, or Parquet", "convert it"
        ) from None

    texts = [_text(field, column, table[column].combine_chunks(), path.name.endswith(".csv")) for column in columns]
    angles = [_angles(field, axis, table[axis], most) for axis, most in zip(axes, LARGEST_ANGLES, strict=False)]
    coordinates = np.stack(angles) if angles else None
    return replace(build_tree(field, columns, texts, by_path, unspecified, coordinates), axes=axes, file=file)


def _table(field: str, path: Path, columns: Sequence[str], axes: Sequence[str]) -> Any:
    """Return the columns of names and coordinates; those of a CSV file as texts."""
    content = pa.BufferReader(path.read_bytes())
    csv = path.name.endswith(".csv")
    if csv:
        every = arrow_csv.open_csv(content).schema.names
        content = pa.BufferReader(path.read_bytes())
    else:
        every = pq.read_schema(content).names

    if unknown := [one for one in (*columns, *axes) if one not in every]:
        where = "leaf" if unknown[0] == columns[-1] else "levels" if unknown[0] in columns else "coordinates"
        raise DomainError(f"{field}.{where}", f"no column {unknown[0]!r} in {display_path(path)}", ", ".join(every),
                          nearest(unknown[0], every))  # fmt: skip

    if csv:
        names = [*columns, *axes]
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), include_columns=names, strings_can_be_null=False
        )
        return arrow_csv.read_csv(content, convert_options=convert)

    return pq.read_table(content, columns=[*columns, *axes])


def _angles(field: str, name: str, column: Any, most: float) -> Floats:
    """Return coordinates in degrees, nan where the file has none."""
    try:
        if is_text(column.type):
            trimmed = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, trimmed.type), trimmed)
        found = column.cast(pa.float64()).to_numpy()
    except (pa.ArrowException, TypeError):
        raise DomainError(
            f"{field}.coordinates", f"a column {name!r} with values that are not numbers", "degrees", "fix it"
        ) from None

    if (np.abs(found) > most).any():
        raise DomainError(f"{field}.coordinates", f"a value of {name!r} beyond {most:g} degrees",
                          "latitudes, then longitudes, in degrees", "convert them or exchange the columns")  # fmt: skip
    return np.where(np.isnan(found), np.nan, found + 0.0)  # one representation of nan and of 0


def _text(field: str, name: str, column: Any, trimmed: bool) -> Any:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise DomainError(f"{field}.file", f"a column {name!r} of type {kind}", "texts or integers", "convert it")
    texts = column.cast(kind).cast(pa.large_string())
    texts = pc.utf8_trim_whitespace(texts) if trimmed else texts
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.large_string()), texts)


def build_tree(
    field: str,
    columns: tuple[str, ...],
    texts: Sequence[Any],
    by_path: bool = False,
    unspecified: bool = False,
    coordinates: Floats | None = None,
) -> LevelTree:
    """Return the tree whose leaves are the rows of some columns.

    Parameters
    ----------
    field : str
        Table of the domain file, for errors.
    columns : tuple of str
        Names of the columns, the top first and the leaf last.
    texts : sequence of pyarrow.Array
        Columns of type large_string; a missing name is null.
    by_path, unspecified : bool
        As in `LevelTree`.
    coordinates : ndarray, shape (2, rows), optional

    Returns
    -------
    LevelTree

    Raises
    ------
    DomainError
        If the rows are not a tree.
    """
    if not len(texts[0]):
        raise DomainError(f"{field}.file", "no rows", "a row for each leaf", "add them")

    names, numbers = zip(*map(_sorted_names, texts), strict=True)
    if empty := [column for column, own in zip(columns[:-1], names, strict=False) if not len(own)]:
        raise DomainError(
            f"{field}.levels", f"the column {empty[0]!r} without any name", "columns with names", "leave it out"
        )

    codes = np.stack(numbers)
    _check_names(field, columns, names, codes, by_path)
    chosen = _distinct_rows(codes)
    codes, own = codes[:, chosen], None if coordinates is None else coordinates[:, chosen]
    tree = LevelTree(columns, names, codes, np.ones(codes.shape[1], np.bool_), by_path, coordinates=own)
    if not by_path:
        _check_parents(field, tree)
        _check_cycles(field, tree)

    if unspecified:
        tree = _with_unspecified(field, tree)
    if codes.shape[1] < 2:
        raise DomainError(f"{field}.file", "1 leaf", "at least 2 leaves", "omit the attribute")
    return tree


def _sorted_names(texts: Any) -> tuple[Any, Integers32]:
    """Return the distinct texts, sorted as bytes, and the place of each row among them, −1 for a null."""
    encoded = texts.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    ranks = np.empty(len(order) + 1, np.int32)
    ranks[order.to_numpy()] = np.arange(len(order))
    ranks[-1] = -1
    return encoded.dictionary.take(order), ranks[encoded.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)]


def _distinct_rows(codes: Integers32) -> Integers:
    """Return the columns of the array in their order, the first of equal ones."""
    order = np.lexsort(codes[::-1])
    ordered = codes[:, order]
    new = np.append(True, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0))
    return order[new[: len(order)]]


def _check_names(field: str, columns: Sequence[str], names: Sequence[Any], codes: Integers32, by_path: bool) -> None:
    if by_path:
        if (codes < 0).all(axis=0).any():
            raise DomainError(f"{field}.file", "a row without any name", "a name in every row", "remove the row")
        if any(pc.any(pc.match_substring(one, SEPARATOR)).as_py() for one in names):
            raise DomainError(f"{field}.file", "a name with the character U+001F", "other characters", "remove it")
    elif (codes[-1] < 0).any():
        raise DomainError(f"{field}.file", f"a row without a value of {columns[-1]!r}", "a leaf in every row",
                          'fill it in, or set key = "path"')  # fmt: skip


def _check_parents(field: str, tree: LevelTree) -> None:
    """Raise DomainError if a leaf has two paths."""
    rows = np.argsort(tree.codes[-1], kind="stable")
    twice = np.flatnonzero(np.diff(tree.codes[-1][rows]) == 0)
    if len(twice):
        pair = rows[twice[0] : twice[0] + 2]
        name = tree.names[-1][int(tree.codes[-1, pair[0]])].as_py()
        above = " and ".join(repr(one) for one in tree.paths(pair, tree.leaf - 1).to_pylist())
        raise DomainError(f"{field}.file", f"the leaf {name!r} below {above}", "one path for each leaf",
                          'remove one row, or set key = "path" if names repeat below different ancestors')  # fmt: skip


def _check_cycles(field: str, tree: LevelTree) -> None:
    """Raise DomainError if a name is above itself. Only names that are above others can be in a cycle."""
    numbers, edges = tree.name_ids, set[tuple[int, int]]()
    inner = np.zeros(len(numbers), np.bool_)
    inner[numbers[: tree.offsets[-1]]] = True

    for level in range(tree.leaf):
        rows = tree.starts[level + 1]  # of each node below, one leaf
        rows = rows[tree.codes[level, rows] >= 0]
        upper = numbers[tree.places(rows, np.full(len(rows), level, np.int32))]
        lower = numbers[tree.places(rows, tree.levels[level + 1, rows])]
        kept = inner[lower] & (upper != lower)
        edges.update(zip(upper[kept].tolist(), lower[kept].tolist(), strict=True))

    if cycle := _cycle(edges):
        texts = tree.texts.dictionary_encode().dictionary
        path = " above ".join(repr(texts[one].as_py()) for one in cycle)
        raise DomainError(f"{field}.file", f"a cycle, {path}", "names that are not above themselves",
                          'rename one, or set key = "path" if names repeat below different ancestors')  # fmt: skip


def _cycle(edges: set[tuple[int, int]]) -> list[int]:
    """Return the nodes of a cycle of a directed graph, the first one repeated; empty if there is none."""
    below: dict[int, list[int]] = {}
    for upper, lower in sorted(edges):
        below.setdefault(upper, []).append(lower)
    done = set[int]()
    for root in below:
        path, stack = list[int](), [(root, iter(below[root]))] if root not in done else []
        path += [root] if stack else []
        while stack:
            node = next((one for one in stack[-1][1] if one not in done), None)
            if node is None:
                done.add(path.pop())
                stack.pop()
            elif node in path:
                return [*path[path.index(node) :], node]
            else:
                path.append(node)
                stack.append((node, iter(below.get(node, []))))

    return []


def _with_unspecified(field: str, tree: LevelTree) -> LevelTree:
    """Return the tree with a leaf for the records of every inner node that a record can state."""
    added = [_node_rows(tree, level) for level in range(tree.leaf)]
    codes = np.concatenate(added, axis=1)
    if not tree.by_path:
        codes = codes[:, _stated(field, tree, codes)]
    every = np.concatenate([tree.codes, codes], axis=1)  # a row of the file precedes an equal one that is added
    chosen = _distinct_rows(every)
    listed, own = chosen < tree.codes.shape[1], tree.coordinates
    if own is not None:
        own = np.concatenate([own, np.full((2, codes.shape[1]), np.nan)], axis=1)[:, chosen]

    return replace(tree, codes=every[:, chosen], listed=listed, unspecified=True, coordinates=own)


def _node_rows(tree: LevelTree, level: int) -> Integers32:
    """Return the paths of the named nodes of a level, without the names below."""
    starts = tree.starts[level]
    codes = tree.codes[:, starts[tree.codes[level, starts] >= 0]].copy()
    codes[level + 1 :] = -1
    return codes


def _stated(field: str, tree: LevelTree, codes: Integers32) -> Flags:
    """Return which inner nodes a name states: the highest one of that name, unless the name is that of a leaf.

    Raises DomainError if a name is that of two nodes of which neither is above the other.
    """
    columns, levels = np.arange(codes.shape[1]), (codes >= 0)[::-1].argmax(axis=0)
    levels = (tree.leaf - levels).astype(np.int32)
    numbers = tree.name_ids[tree.offsets[levels] + codes[levels, columns]]
    leaves = tree.name_ids[tree.offsets[-1] :][: len(tree.names[-1])]
    inner = columns[~np.isin(numbers, leaves)]
    inner = inner[np.lexsort((levels[inner], numbers[inner]))]
    first = np.append(True, np.diff(numbers[inner]) != 0)[: len(inner)]
    highest = inner[np.maximum.accumulate(np.where(first, np.arange(len(inner)), 0))]
    below: NDArray[np.bool_] = (
        (codes[:, highest] == codes[:, inner]) | (np.arange(len(codes))[:, None] > levels[highest])
    ).all(axis=0)

    if not below.all():
        place = np.flatnonzero(~below)[0]
        name = tree.texts.dictionary_encode().dictionary[int(numbers[inner[place]])].as_py()
        raise DomainError(f"{field}.unspecified", f"the name {name!r} of two inner nodes", "distinct names of nodes",
                          'rename one, or set key = "path"')  # fmt: skip

    stated = np.zeros(codes.shape[1], np.bool_)
    stated[inner[first]] = True
    return stated


def stored_name(digest: str) -> str:
    """Return the name of the copy of a tree's file in a run directory, which follows from the digest of the tree."""
    return f"hierarchy-{digest[:16]}.parquet"


def tree_bytes(tree: LevelTree) -> bytes:
    """Return a Parquet file with the leaves of the tree's file, from which the same tree is read."""
    columns = [
        names.take(pa.array(np.where(codes < 0, 0, codes), mask=codes < 0))
        for names, codes in zip(tree.names, tree.codes[:, tree.listed], strict=True)
    ]
    if tree.coordinates is not None:
        columns += [pa.array(own, from_pandas=True) for own in tree.coordinates[:, tree.listed]]
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns, names=[*tree.columns, *tree.axes]), buffer, compression="zstd")

    return buffer.getvalue()
