"""Rules between parents and children: parents are exchanged until every link is possible.

Parents and children are in classes by the cells that the rules read. Children whose link is impossible leave their
parents; a maximum flow from classes of children to classes of parents assigns as many as possible to the places that
became free, a second one to places within the bound. The remaining children have no possible parent, and one of their
cells must change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Flags, Integers
from dpscale.privacy.streams import PublicStream

MOST_CELLS = 1 << 27  # pairs of classes at most, a byte each
UNBOUNDED = (1 << 31) - 1  # the largest 32-bit capacity of a flow


@dataclass(frozen=True, eq=False)
class PossibleLinks:
    """Classes of parents and children, and the possible links between them.

    Attributes
    ----------
    parents, children : ndarray
        Class of every row.
    possible : ndarray of bool, shape (classes of parents, classes of children)
    bound : int, optional
        Maximum number of children of a parent.
    """

    parents: Integers
    children: Integers
    possible: Flags
    bound: int | None

    def broken(self, pairs: Integers) -> Flags:
        """Return the impossible links."""
        return ~self.possible[self.parents[pairs[:, 0]], self.children[pairs[:, 1]]]

    def free(self, pairs: Integers) -> Integers:
        """Return parents that may have more children, repeated by their number of places, or once without a bound."""
        rows = np.arange(len(self.parents))
        if self.bound is None:
            return rows
        degrees = np.bincount(pairs[:, 0], minlength=len(rows))
        return np.repeat(rows, np.maximum(self.bound - degrees, 0))


def check_size(parents: int, children: int) -> None:
    """Raise PlanError for more pairs of classes than memory permits."""
    if parents * children > MOST_CELLS:
        raise PlanError("rule", f"{parents:,} × {children:,} kinds of linked rows",
                        f"at most {MOST_CELLS:,}", "state rules over attributes with fewer values")  # fmt: skip


def repair_links(pairs: Integers, links: PossibleLinks, stream: PublicStream) -> tuple[Integers, Integers]:
    """Return links of which as many as possible are possible, and the positions of the others.

    Parameters
    ----------
    pairs : ndarray, shape (m, 2)
        Rows of the parent and of the child.
    links : PossibleLinks
    stream : PublicStream

    Returns
    -------
    pairs : ndarray, shape (m, 2)
        Every child has a parent, within the bound.
    left : ndarray
        Positions of links that remain impossible.
    """
    pairs, bad = pairs.copy(), np.flatnonzero(links.broken(pairs))
    places = pairs[bad, 0]
    used, taken = _assign(pairs, bad, places, links, stream, reuse=False)
    bad, rest = bad[~used], np.delete(places, taken)

    if len(bad):
        open_pairs = np.delete(pairs, bad, axis=0)
        used, _ = _assign(pairs, bad, links.free(open_pairs), links, stream, reuse=links.bound is None)
        left = bad[~used]
        pairs[left, 0] = _any_place(len(left), rest, np.delete(pairs, left, axis=0), links)
        return pairs, left

    return pairs, bad


def _any_place(count: int, rest: Integers, pairs: Integers, links: PossibleLinks) -> Integers:
    """Return parents for children without a possible one: places that became free, then any within the bound.

    `rest` are the parents of free places, and `pairs` the links so far. If free places are too few, parents below the
    bound of links follow, each as often as it has room.
    """
    if links.bound is None:
        return rest[:count]

    degrees = np.bincount(pairs[:, 0], minlength=len(links.parents))
    found = [one for one in rest.tolist() if degrees[one] < links.bound][:count]
    kept = np.array(found, np.int64)
    degrees += np.bincount(kept, minlength=len(degrees))
    more = np.repeat(np.arange(len(degrees)), np.maximum(links.bound - degrees, 0))

    return np.concatenate([kept, more])[:count]


def _assign(
    pairs: Integers, bad: Integers, places: Integers, links: PossibleLinks, stream: PublicStream, reuse: bool
) -> tuple[Flags, Integers]:
    """Give places to the children of links, in place; return those that have one, and the places that are used.

    `reuse` permits any number of children at a place.

    `flow` has for each pair of classes how many waiting children go to vacant places; children and places of a class
    are taken in random order.

    `bad` are the links whose children wait for a place; `places` are vacant places, as rows of parents, and `links` has
    the class of each row and which pairs of classes are possible.
    """
    children, spots = links.children[pairs[bad, 1]], links.parents[places]
    flow = _flow(np.bincount(children, minlength=links.possible.shape[1]),
                 np.bincount(spots, minlength=len(links.possible)), links.possible, reuse)  # fmt: skip
    waiting = _shuffled(children, stream)
    vacant = _shuffled(spots, stream)

    used, taken = np.zeros(len(bad), np.bool_), []
    for parent, child in zip(*np.nonzero(flow), strict=True):
        number = int(flow[parent, child])
        mine = [waiting[child].pop() for _ in range(number)]
        # a place is chosen at random for each child; otherwise each place is given once
        if reuse:
            choice = vacant[parent]
            picks = [choice[int(point * len(choice))] for point in stream.uniforms(number)]
        else:
            picks = [vacant[parent].pop() for _ in range(number)]
            taken += picks
        pairs[bad[mine], 0], used[mine] = places[picks], True

    return used, np.array(taken, np.int64)


def _shuffled(classes: Integers, stream: PublicStream) -> dict[int, list[int]]:
    """Return the positions of every class, in random order."""
    order = stream.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    found = np.split(order, np.flatnonzero(np.diff(classes[order])) + 1) if len(order) else []
    return {int(classes[one[0]]): one.tolist() for one in found}


def _flow(children: Integers, places: Integers, possible: Flags, reuse: bool) -> Integers:
    """Return the maximum flow from classes of children to classes of parents, shape of `possible`.

    Nodes are classes of parents, classes of children, source and sink: source → children → parents → sink, with the
    numbers of children and of places as capacities.

    `one` and `two` are the classes of parents with places and of children that wait; `at` and `to` are the positions in
    these of each possible pair.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    one, two = np.flatnonzero(places), np.flatnonzero(children)
    at, to = np.nonzero(possible[np.ix_(one, two)])
    source, sink = len(one) + len(two), len(one) + len(two) + 1
    capacity = np.full(len(one), UNBOUNDED) if reuse else places[one]
    # edges: source to children, children to parents, parents to sink
    starts = np.concatenate([np.full(len(two), source), len(one) + to, np.arange(len(one))])
    ends = np.concatenate([len(one) + np.arange(len(two)), at, np.full(len(one), sink)])
    amounts = np.concatenate([children[two], children[two][to], capacity]).astype(np.int32)
    graph = csr_array((amounts, (starts, ends)), shape=(sink + 1, sink + 1))
    found = np.zeros(possible.shape, np.int64)
    if len(at):
        flow = maximum_flow(graph, source, sink).flow
        found[one[at], two[to]] = np.asarray(flow[len(one) + to, at]).reshape(-1)

    return found
