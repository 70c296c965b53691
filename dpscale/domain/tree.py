"""Public tree of names with the same number of levels on every path, for attributes of kind "hierarchy".

A leaf is a row of names, the top first and its own name last; a name above it may be missing. A missing name stands for
the next one below it on the path, so every leaf has a node at every level. A node is identified by the names down to
its own and by the places of the missing ones, so a name may occur below different ancestors.

Leaves are sorted by their names as bytes, level by level, a missing name first. The leaves of a node are then an
interval at every level, cells do not depend on the order of the rows of a file, and texts are stored once in Arrow
arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from dpscale.base.arrow import buffers_of, pa, pc
from dpscale.base.numerics import Flags, Floats, Integers, Integers32

UNSPECIFIED = "(unspecified)"  # name of the leaf of records that are coded at an inner node
SEPARATOR = "\x1f"  # between the names of a path in a key
RESERVED = ("(outside)", "(null)")  # labels of the cells that every attribute may have

_known: WeakValueDictionary[tuple[object, ...], LevelTree] = WeakValueDictionary()


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
        found = self.texts[place]
        return tuple(found.to_pylist()) if isinstance(place, slice) else found.as_py()

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
    """Return the SHA-256 of an array of texts, which does not depend on how they are stored."""
    data, offsets = buffers_of(texts)
    found = hashlib.sha256(np.diff(offsets).astype("<i8").tobytes())
    found.update(data[offsets[0] : offsets[-1]].tobytes())
    return found.digest()


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
    def leaf(self) -> int:
        """Level of the leaves."""
        return len(self.columns) - 1

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the names and the leaves of the file, and of coordinates if it has them, in hexadecimal."""
        found = hashlib.sha256(b"".join(map(texts_digest, self.names)))
        found.update(np.ascontiguousarray(self.codes[:, self.listed], "<i4").tobytes())
        if self.coordinates is not None:
            found.update(np.ascontiguousarray(self.coordinates[:, self.listed], "<f8").tobytes())
        return found.hexdigest()

    @cached_property
    def _identity(self) -> tuple[object, ...]:
        return self.digest, self.columns, self.axes, self.by_path, self.unspecified, self.file

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LevelTree) and self._identity[:-1] == other._identity[:-1]

    def __hash__(self) -> int:
        return hash(self._identity[:-1])

    def __reduce__(self) -> tuple[Any, ...]:
        own = self.columns, self.names, self.codes, self.listed, self.by_path, self.unspecified, self.file
        return _shared, (self._identity, *own, self.coordinates, self.axes)

    @cached_property
    def levels(self) -> Integers32:
        """Level of the name that stands for each leaf's node at each level, shape (levels, leaves)."""
        found = np.empty(self.codes.shape, np.int32)
        found[self.leaf] = self.leaf
        for level in reversed(range(self.leaf)):
            found[level] = np.where(self.codes[level] >= 0, level, found[level + 1])
        return found

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
        """
        parts = []
        for own, (names, codes) in enumerate(zip(self.names, self.codes, strict=True)):
            absent = (codes[leaves] < 0) | (np.asarray(level) < own)
            part = names.take(pa.array(np.where(absent, 0, codes[leaves]), mask=absent))
            parts.append(part.fill_null("") if missing else part)
            if own == self.leaf and not missing:
                unnamed = pa.array((codes[leaves] < 0) & (np.asarray(level) >= own))
                parts[-1] = pc.if_else(unnamed, UNSPECIFIED, part)
        return pc.binary_join_element_wise(*parts, pa.scalar(separator, pa.large_string()), null_handling="skip")

    def labels(self, level: int) -> Labels:
        """Return the labels of the nodes of a level: the name if no other has it, else the path joined by "/"."""
        starts = self.starts[level]
        levels = self.levels[level, starts]
        places = self.places(starts, levels)
        numbers = self.name_ids[places]
        repeated = (np.bincount(numbers)[numbers] > 1) | (places == len(self.texts) - 1)
        texts = self.texts.take(pa.array(places))
        if repeated.any():
            texts = pc.replace_with_mask(texts, pa.array(repeated), self.paths(starts[repeated], levels[repeated]))

        return Labels(_distinct(texts, repeated))

    @cached_property
    def keys(self) -> Any:
        """Text by which records state each leaf, of type large_string; the texts are distinct."""
        rows = np.arange(self.codes.shape[1])
        if self.by_path:
            return self.paths(rows, self.leaf, SEPARATOR, missing=True)
        last = self.leaf - (self.codes >= 0)[::-1].argmax(axis=0)  # an added leaf is stated by the name of its node
        return self.texts.take(pa.array(self.places(rows, last.astype(np.int32))))


def _shared(identity: tuple[object, ...], *own: Any) -> LevelTree:
    """Return the tree of this process with the same content, so that it is prepared once in each worker."""
    found = _known.get(identity)
    return found if found is not None else _known.setdefault(identity, LevelTree(*own))


def _distinct(texts: Any, repeated: Flags) -> Any:
    """Return distinct texts: one that is taken gets a number. Plain names come first."""
    distinct = texts.dictionary_encode().dictionary
    if len(distinct) == len(texts) and not pc.any(pc.is_in(distinct, pa.array(RESERVED, pa.large_string()))).as_py():
        return texts

    found, seen = texts.to_pylist(), set(RESERVED)
    taken = {*found, *RESERVED}
    for at in np.argsort(repeated, kind="stable").tolist():
        own, number = found[at], 2
        while found[at] in seen:
            if (numbered := f"{own} ({number})") not in taken:
                found[at] = numbered
                taken.add(numbered)
            number += 1
        seen.add(found[at])

    return pa.array(found, pa.large_string())


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
        return self.level == self.tree.leaf

    @property
    def parents(self) -> Integers:
        """Cell of the level above that contains each cell of this one."""
        return self.tree.cells(self.level - 1)[self.tree.starts[self.level]]

    def describe(self, name: str) -> dict[str, Any]:
        """Return the keys of the domain file that state the tree, for a leaf attribute of some name."""
        tree = self.tree
        leaf = {"leaf": tree.columns[-1]} if tree.columns[-1] != name else {}
        key = {"key": "path"} if tree.by_path else {}
        unspecified = {"unspecified": True} if tree.unspecified else {}
        coordinates = {"coordinates": list(tree.axes)} if tree.axes else {}
        return {"file": tree.file, "levels": list(tree.columns[:-1]), **leaf, **key, **unspecified, **coordinates,
                "cells": [len(starts) for starts in tree.starts], "sha256": tree.digest}  # fmt: skip
