"""Public tree of names with the same number of levels on every path, for attributes of kind "hierarchy", and its file.

A leaf is a row of names, the top first and its own name last; a name above it may be missing. A missing name stands for
the next one below it on the path, so every leaf has a node at every level. A node is identified by the names down to
its own and by the places of the missing ones, so a name may occur below different ancestors.

Leaves are sorted by their names as bytes, level by level, a missing name first. The leaves of a node are then an
interval at every level, cells do not depend on the order of the rows of a file, and texts are stored once in Arrow
arrays.

The public file has a row for each leaf with the names of its ancestors. Parquet columns are texts or integers; every
field of a CSV file is a text, so "NA" and leading zeros remain. An empty text is missing. With `key = "leaf"` the name
of a leaf identifies it. Then names are identifiers: a leaf with two paths is refused, and so is a cycle, a name that is
above itself when the rows of the file are followed downwards. With `key = "path"` names may repeat, and a leaf is the
whole row. A row that occurs twice is one leaf.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from dpscale.base.arrow import arrow_csv, buffers_of, is_text, pa, pc, pq
from dpscale.base.display import display_path, nearest, safe_repr
from dpscale.base.errors import DomainError
from dpscale.base.numerics import Flags, Floats, Integers, Integers32, NDArray
from dpscale.storage.files import is_local, place

UNSPECIFIED = "(unspecified)"  # name of the leaf of records that are coded at an inner node
SEPARATOR = "\x1f"  # between the names of a path in a key
RESERVED = ("(outside)", "(null)")  # labels of the cells that every attribute may have

_known: WeakValueDictionary[tuple[object, ...], LevelTree] = WeakValueDictionary()
KEYS = ("leaf", "path")
TREE_KEYS = {"file", "levels"}  # required
MORE_TREE_KEYS = {"leaf", "key", "unspecified", "coordinates", "cells", "sha256"}
SUFFIXES = (".csv", ".parquet")
LARGEST_ANGLES = (90.0, 180.0)  # of latitudes and longitudes, in degrees


class Labels(Sequence[Any]):
    """Sequence of texts in an Arrow array, which is compared and hashed by its content.

    Parameters
    ----------
    texts : pyarrow.Array
        Of type large_string, without nulls.
    """

    def __init__(self, texts: Any) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, place: Any) -> Any:
        texts = self.texts[place]
        return tuple(texts.to_pylist()) if isinstance(place, slice) else texts.as_py()

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts.to_pylist())

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the texts."""
        return texts_digest(self.texts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Labels) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Labels({len(self):,} texts)"


def texts_digest(texts: Any) -> bytes:
    """Return the SHA-256 of an array of texts, which does not depend on how they are stored.

    The hash is over the lengths of the texts and then their bytes, so that different divisions of the same bytes
    differ.
    """
    data, offsets = buffers_of(texts)
    digest = hashlib.sha256(np.diff(offsets).astype("<i8").tobytes())
    digest.update(data[offsets[0] : offsets[-1]].tobytes())
    return digest.digest()


@dataclass(frozen=True, eq=False)
class LevelTree:
    """Public tree in which every leaf has a node at every level.

    Parameters
    ----------
    columns : tuple of str
        Columns of the names, the top first and the leaf last.
    names : tuple of pyarrow.Array
        Distinct names of each column, sorted, of type large_string.
    codes : ndarray of int32, shape (columns, leaves)
        Position in `names` of every name of a leaf's path, −1 where it is missing. The paths are sorted and distinct.
    listed : ndarray of bool, shape (leaves,)
        Leaves of the file; others are added for records that are coded at an inner node.
    by_path : bool
        Whether a record states the whole path of its leaf; otherwise its name alone.
    unspecified : bool
        Whether inner nodes have a leaf for records that are coded at them.
    file : str
        File from which the tree was read.
    coordinates : ndarray, shape (2, leaves), optional
        Public latitude and longitude of every leaf in degrees, nan where they are missing. Only the report uses them.
    axes : tuple of str
        Columns of the coordinates.
    """

    columns: tuple[str, ...]
    names: tuple[Any, ...]
    codes: Integers32 = field(repr=False)
    listed: Flags = field(repr=False)
    by_path: bool = False
    unspecified: bool = False
    file: str = ""
    coordinates: Floats | None = field(default=None, repr=False)
    axes: tuple[str, ...] = ()

    @property
    def leaf_level(self) -> int:
        """Level of the leaves."""
        return len(self.columns) - 1

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the names and the leaves of the file, and of coordinates if it has them, in hexadecimal.

        `codes` has the place of each leaf's name at each level, −1 for none; `listed` marks the leaves in the file,
        without added ones.
        """
        digest = hashlib.sha256(b"".join(map(texts_digest, self.names)))
        digest.update(np.ascontiguousarray(self.codes[:, self.listed], "<i4").tobytes())
        if self.coordinates is not None:
            digest.update(np.ascontiguousarray(self.coordinates[:, self.listed], "<f8").tobytes())
        return digest.hexdigest()

    @cached_property
    def _identity(self) -> tuple[object, ...]:
        return self.digest, self.columns, self.axes, self.by_path, self.unspecified, self.file

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LevelTree) and self._identity[:-1] == other._identity[:-1]

    def __hash__(self) -> int:
        return hash(self._identity[:-1])

    def __reduce__(self) -> tuple[Any, ...]:
        fields = self.columns, self.names, self.codes, self.listed, self.by_path, self.unspecified, self.file
        return _shared, (self._identity, *fields, self.coordinates, self.axes)

    @cached_property
    def levels(self) -> Integers32:
        """Level at which the node of each leaf at each level finds its name, shape (levels, leaves).

        It is the node's level, or, if the name is missing there (its code is −1), that of the next name below it on the
        path to the leaf. Level 0 is the top. Every leaf has a name.
        """
        levels_of_names = np.empty(self.codes.shape, np.int32)
        levels_of_names[self.leaf_level] = self.leaf_level
        for level in reversed(range(self.leaf_level)):  # from the level above the leaves up to the top
            has_name = self.codes[level] >= 0
            levels_of_names[level] = np.where(has_name, level, levels_of_names[level + 1])
        return levels_of_names

    @cached_property
    def starts(self) -> tuple[Integers, ...]:
        """First leaf of the nodes of each level, in the order of their cells."""
        changed = self.codes[:, 1:] != self.codes[:, :-1]
        first = np.append(np.int32(-1), changed.argmax(axis=0))  # level at which a path differs from the one before
        return tuple(np.flatnonzero(first <= levels) for levels in self.levels)

    def cells(self, level: int) -> Integers:
        """Return the cell of the node of every leaf at a level, shape (leaves,)."""
        starts = self.starts[level]
        return np.repeat(np.arange(len(starts)), np.diff(np.append(starts, self.codes.shape[1])))

    @cached_property
    def texts(self) -> Any:
        """Names of all columns, and the name of unspecified leaves."""
        return pa.concat_arrays([*self.names, pa.array([UNSPECIFIED], pa.large_string())])

    @cached_property
    def offsets(self) -> Integers:
        """Place of the first name of each column in `texts`."""
        return np.cumsum([0, *map(len, self.names)])[:-1]

    def places(self, leaves: Integers, levels: Integers32) -> Integers:
        """Return the positions among the names of all columns of one name of each leaf's path."""
        codes = self.codes[levels, leaves]
        return np.where(codes >= 0, self.offsets[levels] + codes, len(self.texts) - 1)

    @cached_property
    def name_ids(self) -> Integers:
        """Number of each name of all columns; names with the same text have the same number."""
        return np.asarray(self.texts.dictionary_encode().indices.to_numpy(zero_copy_only=False), np.int64)

    def paths(self, leaves: Integers, level: Integers32 | int, separator: str = "/", missing: bool = False) -> Any:
        """Return the joined names of leaves down to a level, one level for all or one for each of them.

        Missing names are left out, or written as empty texts.

        `level` is 0 for the top. An unnamed leaf has the name UNSPECIFIED.
        """
        parts = []
        for level_of_part, (names, codes) in enumerate(zip(self.names, self.codes, strict=True)):
            absent = (codes[leaves] < 0) | (np.asarray(level) < level_of_part)
            part = names.take(pa.array(np.where(absent, 0, codes[leaves]), mask=absent))
            parts.append(part.fill_null("") if missing else part)
            if level_of_part == self.leaf_level and not missing:
                unnamed = pa.array((codes[leaves] < 0) & (np.asarray(level) >= level_of_part))
                parts[-1] = pc.if_else(unnamed, UNSPECIFIED, part)
        return pc.binary_join_element_wise(*parts, pa.scalar(separator, pa.large_string()), null_handling="skip")

    def labels(self, level: int) -> Labels:
        """Return the labels of the nodes of a level: the name if no other has it, else the path joined by "/".

        `places` are the positions of the nodes' names among all names of the tree, and `numbers` say which names are
        equal.
        """
        starts = self.starts[level]
        levels = self.levels[level, starts]
        places = self.places(starts, levels)
        numbers = self.name_ids[places]
        # the last text is UNSPECIFIED, the name of unnamed leaves
        repeated = (np.bincount(numbers)[numbers] > 1) | (places == len(self.texts) - 1)
        texts = self.texts.take(pa.array(places))
        if repeated.any():
            texts = pc.replace_with_mask(texts, pa.array(repeated), self.paths(starts[repeated], levels[repeated]))

        return Labels(_distinct(texts, repeated))

    @cached_property
    def keys(self) -> Any:
        """Text by which records state each leaf, of type large_string; the texts are distinct.

        With `by_path` a text has all names of the path, joined by SEPARATOR. Otherwise `last` is the deepest level with
        a name.
        """
        rows = np.arange(self.codes.shape[1])
        if self.by_path:
            return self.paths(rows, self.leaf_level, SEPARATOR, missing=True)
        # an added leaf is stated by the name of its node
        last = self.leaf_level - (self.codes >= 0)[::-1].argmax(axis=0)
        return self.texts.take(pa.array(self.places(rows, last.astype(np.int32))))


def _shared(identity: tuple[object, ...], *fields: Any) -> LevelTree:
    """Return the tree of this process with the same content, so that it is prepared once in each worker."""
    known = _known.get(identity)
    return known if known is not None else _known.setdefault(identity, LevelTree(*fields))


def _distinct(texts: Any, repeated: Flags) -> Any:
    """Return distinct texts: one that is taken gets a number. Plain names come first.

    `repeated` marks texts that are numbered last. RESERVED are labels of additional cells, which no text may equal.
    """
    distinct = texts.dictionary_encode().dictionary
    if len(distinct) == len(texts) and not pc.any(pc.is_in(distinct, pa.array(RESERVED, pa.large_string()))).as_py():
        return texts

    names, seen = texts.to_pylist(), set(RESERVED)
    taken = {*names, *RESERVED}
    for at in np.argsort(repeated, kind="stable").tolist():
        name, number = names[at], 2
        # "name (2)", "name (3)", … until a text is free
        while names[at] in seen:
            if (numbered := f"{name} ({number})") not in taken:
                names[at] = numbered
                taken.add(numbered)
            number += 1
        seen.add(names[at])

    return pa.array(names, pa.large_string())


@dataclass(frozen=True)
class TreeLevel:
    """Level of a tree.

    Parameters
    ----------
    tree : LevelTree
    level : int
        0 for the top.
    """

    tree: LevelTree
    level: int

    @property
    def is_leaf(self) -> bool:
        return self.level == self.tree.leaf_level

    def describe(self, name: str) -> dict[str, Any]:
        """Return the keys of the domain file that state the tree, for a leaf attribute of some name."""
        tree = self.tree
        leaf = {"leaf": tree.columns[-1]} if tree.columns[-1] != name else {}
        key = {"key": "path"} if tree.by_path else {}
        unspecified = {"unspecified": True} if tree.unspecified else {}
        coordinates = {"coordinates": list(tree.axes)} if tree.axes else {}
        return {"file": tree.file, "levels": list(tree.columns[:-1]), **leaf, **key, **unspecified, **coordinates,
                "cells": [len(starts) for starts in tree.starts], "sha256": tree.digest}  # fmt: skip


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
    # a level has a name other than the leaf, the attribute and the levels above it
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
    # both are written with a domain, to detect that the file has changed since
    digest, cells = table.get("sha256", tree.digest), [len(starts) for starts in tree.starts]
    if not isinstance(digest, str) or digest != tree.digest:
        raise DomainError(f"{field}.file", f"{display_path(path)}, which was changed",
                          "the file as the domain was written with",
                          "restore it, or remove cells and sha256")  # fmt: skip
    if not isinstance(table.get("cells", cells), list) or table.get("cells", cells) != cells:
        raise DomainError(f"{field}.cells", safe_repr(table["cells"]), f"{cells}, as in the file", "remove it")
    return tree


def _coordinate_columns(field: str, axes: object, others: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of latitudes and longitudes, or none.

    Two columns, or none if `axes` is empty; they must differ from each other and from `others`, the columns of the
    tree.
    """
    columns = tuple(axes) if isinstance(axes, list | tuple) and all(isinstance(axis, str) for axis in axes) else ("",)
    if len(columns) not in (0, 2) or "" in columns or len({*columns, *others}) < len(columns) + len(others):
        raise DomainError(f"{field}.coordinates", safe_repr(axes), "two other columns, of latitudes and longitudes",
                          'write coordinates = ["lat", "lon"]')  # fmt: skip
    return columns


def _path(field: str, file: object, folder: Path | None) -> Path:
    """Return the path or address of the file of a hierarchy; a relative path starts from `folder`.

    Raises DomainError for an ending that is not in SUFFIXES.
    """
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
    """Return the tree in a file; one that has not changed is not read again.

    `by_path` identifies leaves by their path and `unspecified` adds a leaf for each inner node. `axes` are the columns
    of coordinates. `file_digest` has no use but as a key of the cache.
    """
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
        present = arrow_csv.open_csv(content).schema.names
        # the reader of the header has consumed the first buffer
        content = pa.BufferReader(path.read_bytes())
    else:
        present = pq.read_schema(content).names

    if unknown := [column for column in (*columns, *axes) if column not in present]:
        where = "leaf" if unknown[0] == columns[-1] else "levels" if unknown[0] in columns else "coordinates"
        raise DomainError(f"{field}.{where}", f"no column {unknown[0]!r} in {display_path(path)}", ", ".join(present),
                          nearest(unknown[0], present))  # fmt: skip

    if csv:
        names = [*columns, *axes]
        # all columns as texts, and an empty text is no null
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
        degrees = column.cast(pa.float64()).to_numpy()
    except (pa.ArrowException, TypeError):
        raise DomainError(
            f"{field}.coordinates", f"a column {name!r} with values that are not numbers", "degrees", "fix it"
        ) from None

    if (np.abs(degrees) > most).any():
        raise DomainError(f"{field}.coordinates", f"a value of {name!r} beyond {most:g} degrees",
                          "latitudes, then longitudes, in degrees", "convert them or exchange the columns")  # fmt: skip
    return np.where(np.isnan(degrees), np.nan, degrees + 0.0)  # one representation of nan and of 0


def _text(field: str, name: str, column: Any, trimmed: bool) -> Any:
    """Return a column of a hierarchy's file as texts, with null for empty ones; refuse other types."""
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

    # names of each column in order, and the number of each row's name
    names, numbers = zip(*map(_sorted_names, texts), strict=True)
    if empty := [column for column, texts_of in zip(columns[:-1], names, strict=False) if not len(texts_of)]:
        raise DomainError(
            f"{field}.levels", f"the column {empty[0]!r} without any name", "columns with names", "leave it out"
        )

    codes = np.stack(numbers)
    _check_names(field, columns, names, codes, by_path)
    chosen = _distinct_rows(codes)
    codes, leaf_coordinates = codes[:, chosen], None if coordinates is None else coordinates[:, chosen]
    tree = LevelTree(
        columns=columns,
        names=names,
        codes=codes,
        listed=np.ones(codes.shape[1], np.bool_),
        by_path=by_path,
        coordinates=leaf_coordinates,
    )
    # names identify nodes, so each has one parent and no cycle
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
    """Return the columns of the array in their order, the first of equal ones.

    `codes` has a column for each leaf. `lexsort` sorts by the last key first, so rows are reversed; `new` marks the
    first of equal columns.
    """
    order = np.lexsort(codes[::-1])
    ordered = codes[:, order]
    new = np.append(True, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0))
    return order[new[: len(order)]]


def _check_names(field: str, columns: Sequence[str], names: Sequence[Any], codes: Integers32, by_path: bool) -> None:
    """Refuse rows of a hierarchy's file without a name, without a leaf, or with the separator of paths in a name.

    With `by_path` names may be missing, but not all of a row; SEPARATOR joins the names of a path.
    """
    if by_path:
        if (codes < 0).all(axis=0).any():
            raise DomainError(f"{field}.file", "a row without any name", "a name in every row", "remove the row")
        if any(pc.any(pc.match_substring(texts, SEPARATOR)).as_py() for texts in names):
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
        above = " and ".join(repr(path) for path in tree.paths(pair, tree.leaf_level - 1).to_pylist())
        raise DomainError(f"{field}.file", f"the leaf {name!r} below {above}", "one path for each leaf",
                          'remove one row, or set key = "path" if names repeat below different ancestors')  # fmt: skip


def _check_cycles(field: str, tree: LevelTree) -> None:
    """Raise DomainError if a name is above itself. Only names that are above others can be in a cycle.

    An edge is a pair of numbers of names, of which the first is directly above the second on some path.
    """
    numbers, edges = tree.name_ids, set[tuple[int, int]]()
    inner = np.zeros(len(numbers), np.bool_)
    inner[numbers[: tree.offsets[-1]]] = True

    for level in range(tree.leaf_level):
        rows = tree.starts[level + 1]  # of each node below, one leaf
        rows = rows[tree.codes[level, rows] >= 0]
        upper = numbers[tree.places(rows, np.full(len(rows), level, np.int32))]
        lower = numbers[tree.places(rows, tree.levels[level + 1, rows])]
        possible = inner[lower] & (upper != lower)
        edges.update(zip(upper[possible].tolist(), lower[possible].tolist(), strict=True))

    if cycle := _cycle(edges):
        texts = tree.texts.dictionary_encode().dictionary
        path = " above ".join(repr(texts[number].as_py()) for number in cycle)
        raise DomainError(f"{field}.file", f"a cycle, {path}", "names that are not above themselves",
                          'rename one, or set key = "path" if names repeat below different ancestors')  # fmt: skip


def _cycle(edges: set[tuple[int, int]]) -> list[int]:
    """Return the nodes of a cycle of a directed graph, the first one repeated; empty if there is none.

    A depth-first search: `done` has the nodes below which there is no cycle, and `path` the nodes from the root to the
    current one.

    `edges` are pairs (upper, lower) of nodes. `stack` has, for each node of the path, an iterator over the nodes below
    it.
    """
    below: dict[int, list[int]] = {}
    for upper, lower in sorted(edges):
        below.setdefault(upper, []).append(lower)
    done = set[int]()
    for root in below:
        path, stack = list[int](), [(root, iter(below[root]))] if root not in done else []
        path += [root] if stack else []
        while stack:
            node = next((lower_node for lower_node in stack[-1][1] if lower_node not in done), None)
            if node is None:
                done.add(path.pop())
                stack.pop()
            # a node above itself
            elif node in path:
                return [*path[path.index(node) :], node]
            else:
                path.append(node)
                stack.append((node, iter(below.get(node, []))))

    return []


def _with_unspecified(field: str, tree: LevelTree) -> LevelTree:
    """Return the tree with a leaf for the records of every inner node that a record can state.

    Added leaves have codes −1 below their node, no coordinates and are not `listed`. Without paths only nodes whose
    name determines them are added.
    """
    added = [_node_rows(tree, level) for level in range(tree.leaf_level)]
    codes = np.concatenate(added, axis=1)
    if not tree.by_path:
        codes = codes[:, _stated(field, tree, codes)]
    all_rows = np.concatenate([tree.codes, codes], axis=1)  # a row of the file precedes an equal one that is added
    chosen = _distinct_rows(all_rows)
    listed, coordinates = chosen < tree.codes.shape[1], tree.coordinates
    if coordinates is not None:
        coordinates = np.concatenate([coordinates, np.full((2, codes.shape[1]), np.nan)], axis=1)[:, chosen]

    return replace(tree, codes=all_rows[:, chosen], listed=listed, unspecified=True, coordinates=coordinates)


def _node_rows(tree: LevelTree, level: int) -> Integers32:
    """Return the paths of the named nodes of a level, without the names below.

    `starts` are the first leaves of the nodes of the level; `codes` is −1 where a name is missing.
    """
    starts = tree.starts[level]
    codes = tree.codes[:, starts[tree.codes[level, starts] >= 0]].copy()
    codes[level + 1 :] = -1
    return codes


def _stated(field: str, tree: LevelTree, codes: Integers32) -> Flags:
    """Return which inner nodes a name states: the highest one of that name, unless the name is that of a leaf.

    Raises DomainError if a name is that of two nodes of which neither is above the other.

    `levels` is the level of the last name of each path. Sorted by name and level, the first row of each name is its
    highest node; the others of that name must lie below it.
    """
    # code −1 is a missing name, so the last code of a path that is not negative is its last name
    columns, levels = np.arange(codes.shape[1]), (codes >= 0)[::-1].argmax(axis=0)
    levels = (tree.leaf_level - levels).astype(np.int32)
    numbers = tree.name_ids[tree.offsets[levels] + codes[levels, columns]]
    leaves = tree.name_ids[tree.offsets[-1] :][: len(tree.names[-1])]
    inner = columns[~np.isin(numbers, leaves)]
    inner = inner[np.lexsort((levels[inner], numbers[inner]))]
    # first row of each name, its highest node
    first = np.append(True, np.diff(numbers[inner]) != 0)[: len(inner)]
    highest = inner[np.maximum.accumulate(np.where(first, np.arange(len(inner)), 0))]
    # the same names down to the level of the highest node
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
        columns += [pa.array(angles, from_pandas=True) for angles in tree.coordinates[:, tree.listed]]
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns, names=[*tree.columns, *tree.axes]), buffer, compression="zstd")

    return buffer.getvalue()
