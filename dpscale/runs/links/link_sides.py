"""Rows at both ends of the links of a run, and the links that are sampled between them.

Tables with few rows are in memory. Links of a child with many rows are drawn in blocks, from the profiles of the rows.

*Rules across tables (`job.link_rules`).*
Links are changed so that as many as possible satisfy the rules (`relational.assignment`). Where no parent fits a child,
the child's attribute gets another cell, at random by the frequency in its table, that satisfies the rules of the
domain, those of this link and those of earlier links. Changed cells are written in place of those of the table's run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Flags, Integers, Integers32, ParallelMap
from dpscale.job import Job
from dpscale.job.link_rules import LinkedRule
from dpscale.job.sections import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.relational.assignment import PossibleLinks, check_size, repair_links
from dpscale.relational.features import Side, distinct
from dpscale.runs.linked_tables import LinkedTables, public_tables
from dpscale.runs.links.link_data import sizes, with_drawn
from dpscale.runs.links.link_sampling import (
    BLOCK_ROWS,
    DRAWN,
    ParentFiles,
    TableProfiles,
    count_profiles,
    sample_blocks,
    sample_links,
    synthetic_codes,
)
from dpscale.runs.links.measuring import MeasuredLinks, piece_of
from dpscale.storage.files import present, read_text, reading, writing

MOST_CELLS = 1 << 62  # of a table whose rows are numbered by their cells
Drawn = Integers | ParentFiles


@dataclass(eq=False)
class LinkSides:
    """Rows and degree features of every table, the inputs of link sampling.

    Attributes
    ----------
    run : LinkedTables
    drawn : dict of str to ndarray
        Links whose numbers or parents are attributes in a later link, the *context* of that link.
    codes : dict of str to ndarray
        Cells of the rows of each table, once they are read.
    profiles : dict of str to TableProfiles
        Distinct rows of each table, once they are counted.
    """

    run: LinkedTables
    drawn: dict[str, Integers] = field(default_factory=dict)
    codes: dict[str, Integers32] = field(default_factory=dict, repr=False)
    profiles: dict[str, TableProfiles] = field(default_factory=dict, repr=False)

    def of(self, link: LinkSection, each: ParallelMap) -> tuple[Side, Side]:
        """Return both sides of a link. Those of a link in blocks have one row for each profile."""
        if self.in_blocks(link):
            parents, children = self._profiles(link, each)
            return parents.side, children.side
        return self._side(link, link.parent), self._side(link, link.child)

    def in_blocks(self, link: LinkSection) -> bool:
        """Return whether the links are drawn in blocks of children.

        They are for many children, unless a draw depends on other links, on an order or on rules across tables. The
        number of possible rows is limited, because a row is stored as the number of its cells.
        """
        ruled = link.called in self.run.closed_job.linked_rules
        independent = not (link.counts or link.order or ruled or self._is_context(link)) and link.parent != link.child
        if link.via is not None or not independent:
            return False
        if link.mechanism == "published" or link.child not in self.run.tables:
            return False

        domains = [self.run.closed_job.domains[name] for name in (link.parent, link.child)]
        cells = [math.prod(int(domain[name].size) for name in domain.names) for domain in domains]
        return _rows(self.run, link.child) > BLOCK_ROWS and max(cells) < MOST_CELLS

    def _profiles(self, link: LinkSection, each: ParallelMap) -> tuple[TableProfiles, TableProfiles]:
        """Return the distinct rows (profiles) of both tables and their numbers; counted once for a table."""
        for name in (link.parent, link.child):
            if name not in self.profiles:
                self.profiles[name] = count_profiles(self.run, name, each)
        return self.profiles[link.parent], self.profiles[link.child]

    def _side(self, link: LinkSection, table: str) -> Side:
        """Return one side of a link: the cells of a table's rows.

        Its attributes are those of the table, of a child's parents in other links, and its degrees in earlier links.
        """
        job, domain = self.run.job, self.run.closed_job.domains[table]
        sizes_of_axes, codes = [domain[name].size for name in domain.names], self._codes(table)
        for other in job.other_parents(link) if table == link.child else ():
            parents = self.run.closed_job.domains[other.parent]
            sizes_of_axes += [parents[name].size for name in parents.names]
            codes = np.column_stack([codes, self._codes(other.parent)[self._parents(other)]])
        return Side.made(with_drawn(job, link, table, codes, self.drawn), sizes_of_axes + sizes(job, link, table))

    def _parents(self, link: LinkSection) -> Integers:
        """Return the parent of every child, in the order of the children, in a drawn link that has all children."""
        pairs = self.drawn[link.called]
        return pairs[np.argsort(pairs[:, 1]), 0]

    @cached_property
    def ruled(self) -> RuledRows:
        """Rows whose cells change where rules across tables require it."""
        return RuledRows(self.run.closed_job, self._codes)

    def _codes(self, table: str) -> Integers32:
        """Return the cells of a table's rows, (rows, attributes): synthetic ones unless the table is public."""
        if table not in self.codes:
            private = self.run.tables.get(table)
            self.codes[table] = public_tables(self.run)[table][0] if private is None else synthetic_codes(private)
        return self.codes[table]

    def known(self, link: LinkSection, found: MeasuredLinks, each: ParallelMap, wanted: bool = False) -> Drawn:
        """Return the links of `link` as rows, (links, 2); empty unless they are wanted or the context of a later link.

        Links of a context are drawn only once and stored, because the measurement of the later link depends on them.
        Links in blocks are in files and have no rules (`in_blocks`). A context that was not drawn yet has no stored
        links, and is left out.
        """
        is_context = self._is_context(link)
        if not (is_context or wanted):
            return np.empty((0, 2), np.int64)
        # rules change rows by their links; the order must be the same in every run: links that are stored come first
        if wanted:
            for other in self.run.job.link:
                if self._is_context(other) and other.called not in self.drawn:
                    self._rule(other, self._stored_links(other))
        if link.called in self.drawn:
            return self.drawn[link.called]
        if self.in_blocks(link):
            return sample_blocks(self.run, link, self._profiles(link, each), found, each)

        pairs = self._stored_links(link) if is_context else None
        if pairs is None:
            pairs = sample_links(self.run, link, self.of(link, each), found)
        if is_context:
            self._store_links(link, pairs)
        return self._rule(link, pairs)

    def _is_context(self, link: LinkSection) -> bool:
        """Return whether a later link has the numbers or the parents of these links as attributes."""
        return any(link.called in (*(later.counts or ()), *(later.parents or ())) for later in self.run.job.link)

    def _rule(self, link: LinkSection, pairs: Integers | None) -> Integers:
        """Return links that satisfy the rules across tables; those of a context are remembered.

        Without links that were drawn (None) the result is empty.
        """
        if pairs is None:
            return np.empty((0, 2), np.int64)
        bounded = link.kind == "one-to-one" or piece_of(self.run, link).bounded
        found = self.ruled.apply(link, pairs, link.bound if bounded else None, self.run.manifest["release"])
        if self._is_context(link):
            self.drawn[link.called] = found
        return found

    def _stored_links(self, link: LinkSection) -> Integers | None:
        """Return the links that an earlier draw stored, shape (links, 2); None if there are none."""
        path = self.run.path / "links" / link.called / DRAWN
        if not present(path):
            return None
        with reading(path) as file:
            return np.asarray(np.load(file, allow_pickle=False))

    def _store_links(self, link: LinkSection, pairs: Integers) -> None:
        """Store drawn links, unless links are stored, so that every later draw sees the same ones."""
        path = self.run.path / "links" / link.called / DRAWN
        if not present(path):
            with writing(path) as file:
                np.save(file, pairs, allow_pickle=False)


def _rows(run: LinkedTables, table: str) -> int:
    """Return the number of synthetic rows of a table."""
    return int(json.loads(read_text(run.tables[table].path / "synthetic" / "_rows.json"))["rows"])


@dataclass(frozen=True)
class _ChangingRow:
    """Row of a child that changes for a link, with its parent; None stands for some parent."""

    link: LinkSection
    parent: int | None
    child: int


@dataclass(eq=False)
class RuledRows:
    """Rows of all tables, whose cells change where rules across tables require it.

    Attributes
    ----------
    job : Job
        With all cells known.
    codes : callable
        codes(table) returns the cells of a table's rows, which do not change.
    current : dict of str to ndarray
        By TABLE.ATTRIBUTE, cells of the attributes that rules read.
    changed : dict of str to dict
        By TABLE.ATTRIBUTE, new cells by row.
    parents : dict of str to ndarray
        By link with rules, the parent of every child, or −1.
    frequencies : dict of (str, str) to ndarray
        By table and attribute, numbers of rows of every cell.
    kinds : dict of tuple of str to ndarray
        By link and attributes, the distinct parents in these attributes.
    """

    job: Job
    codes: Callable[[str], Integers32] = field(repr=False)
    current: dict[str, Integers32] = field(default_factory=dict, repr=False)
    changed: dict[str, dict[int, int]] = field(default_factory=dict)
    parents: dict[str, Integers] = field(default_factory=dict)
    frequencies: dict[tuple[str, str], Integers] = field(default_factory=dict, repr=False)
    kinds: dict[tuple[str, ...], Integers32] = field(default_factory=dict, repr=False)

    def apply(self, link: LinkSection, pairs: Integers, bound: int | None, release: str) -> Integers:
        """Return the links, shape (m, 2), changed so that all satisfy the rules.

        Parameters
        ----------
        link : LinkSection
        pairs : ndarray, shape (m, 2)
        bound : int, optional
            Maximum number of children of a parent.
        release : str
            Identifies the random numbers.
        """
        rules = self.job.linked_rules.get(link.called)
        if not rules or not len(pairs):
            return pairs
        stream = PublicStream(release, f"rules of {link.called}")
        self._prepare(link.child, pairs[:, 1], stream)

        # exchange parents first; in the links where that does not help (`unsolved`), change cells of the child
        repaired, unsolved = repair_links(pairs, self._possible(link, rules, bound), stream)
        for place in unsolved.tolist():
            parent, child = repaired[place]
            self._change(link, int(child), int(parent), stream)

        parent_of = np.full(len(self.codes(link.child)), -1, np.int64)
        parent_of[repaired[:, 1]] = repaired[:, 0]
        self.parents[link.called] = parent_of
        return self._in_order(link, repaired)

    def _prepare(self, table: str, children: Integers, stream: PublicStream) -> None:
        """Change the cells of children that no parent fits in some link with rules.

        Links whose parents are fixed already (`parents`) are left out.
        """
        for link in self.job.link:
            rules = self.job.linked_rules.get(link.called, ())
            if link.child != table or not rules or link.called in self.parents:
                continue
            links = self._possible(link, list(rules), None)
            fits = np.asarray(links.possible.any(axis=0))  # for each class of children: whether some parent fits
            for child in children[~fits[links.children[children]]].tolist():
                self._change(link, child, None, stream)

    def _in_order(self, link: LinkSection, pairs: Integers) -> Integers:
        """Return links whose children are again grouped by parent and in order, if the link has one.

        link.order begins with the attribute of the order; links with equal values stay in their order.
        """
        if not link.order:
            return pairs
        order_cells = self._cells(link.child, link.order[0])[pairs[:, 1]]
        return pairs[np.lexsort((np.arange(len(pairs)), order_cells, pairs[:, 0]))]

    def _cells(self, table: str, attribute: str) -> Integers32:
        """Return the cells of an attribute with the changes so far, shape (rows,).

        `current` has a copy of each attribute that is read, in which changes are made.
        """
        name = f"{table}.{attribute}"
        if name not in self.current:
            column = list(self.job.domains[table].names).index(attribute)
            self.current[name] = self.codes(table)[:, column].copy()
        return self.current[name]

    def _possible(self, link: LinkSection, rules: list[LinkedRule], bound: int | None) -> PossibleLinks:
        """Return classes of rows by the cells in the rules, and the possible links between classes.

        `bound` is the most children of a parent, None without one. Rows with equal cells in the rules are one class.
        """

        def classes(table: str, names_of_rules: list[tuple[str, ...]]) -> tuple[list[str], Integers, Integers]:
            """Return the attributes in rules, the cells of each class, and the class of each row."""
            names = list(dict.fromkeys(name for attributes in names_of_rules for name in attributes))
            domain = self.job.domains[table]
            cells = np.stack([self._cells(table, name) for name in names], axis=1)
            return names, *distinct(cells, [domain[name].size for name in names])

        parent_names, parents, class_of_parent = classes(link.parent, [rule.parent for rule in rules])
        child_names, children, class_of_child = classes(link.child, [rule.child for rule in rules])
        check_size(len(parents), len(children))

        # one column for each attribute over all pairs of classes, parents by children
        columns = {}
        for i, name in enumerate(parent_names):
            columns[f"{link.parent}.{name}"] = np.repeat(parents[:, i], len(children))
        for i, name in enumerate(child_names):
            columns[f"{link.child}.{name}"] = np.tile(children[:, i], len(parents))
        broken = _broken(rules, columns.__getitem__).reshape(len(parents), len(children))
        return PossibleLinks(parents=class_of_parent, children=class_of_child, possible=~broken, bound=bound)

    def _change(self, link: LinkSection, child: int, parent: int | None, stream: PublicStream) -> None:
        """Change a cell of a child so that the parent fits it, or some parent if it is None.

        If no single cell satisfies all rules, further cells of the row follow.
        """
        names = tuple(dict.fromkeys(rule.child[-1] for rule in self.job.linked_rules[link.called]))
        changing = _ChangingRow(link, parent, child)
        if any(self._set_allowed(changing, name, None, stream) for name in names) or self._follow(changing, stream):
            return
        raise PlanError("rule", f"rules that exclude a row of {link.child} with every value of"
                        f" {link.parent}", "rules that allow some value", "state fewer rules")  # fmt: skip

    def _follow(self, changing: _ChangingRow, stream: PublicStream) -> bool:
        """Change one cell of a child after the other until all rules are satisfied; return whether they are.

        Each attribute changes at most once, and only one whose column no other attribute shares. The last attribute of
        the first broken rule is tried first.
        """
        domain, changed = self.job.domains[changing.link.child], set[str]()
        alone = {name for name in domain.names if not domain.is_shared(domain[name].column)}
        broken = self._broken_names(changing)
        while broken:
            free = [name for names in broken for name in reversed(names) if name in alone - changed]
            if not free:
                return False
            changed.add(free[0])
            if not self._set_allowed(changing, free[0], changed, stream):
                return False
            broken = self._broken_names(changing)
        return True

    def _broken_names(self, changing: _ChangingRow) -> list[tuple[str, ...]]:
        """Return the child's attributes of the rules that a row breaks, those across tables first.

        A row of arrays of length 1 is checked, because rules apply to arrays.
        """
        table, row = changing.link.child, changing.child
        cells = {name: self._cells(table, name)[row : row + 1].astype(np.int64)
                 for name in self.job.domains[table].names}  # fmt: skip
        linked = []
        for link, rules in self._ruled(table):
            for rule in rules:
                if not self._fits(link, [rule], cells, self._known(changing, link))[0]:
                    linked.append(rule.child)
        return linked + [rule.names for rule in self.job.domains[table].rules if rule.broken(cells.__getitem__)[0]]

    def _set_allowed(self, changing: _ChangingRow, name: str, changed: set[str] | None, stream: PublicStream) -> bool:
        """Change a cell of a child to a possible one, by the frequency of cells; return whether there is one.

        Only rules whose attributes of the child are all `changed` are applied; all rules if it is None.
        """
        table = changing.link.child
        allowed = self._allowed(changing, name, changed)
        if not allowed.any():
            return False
        weights = np.cumsum((self._frequency(table, name) + 1e-9) * allowed)  # cells that no row has are possible, too
        cell = int(np.searchsorted(weights, float(stream.uniforms(1)[0]) * weights[-1], side="right"))
        self._set(table, name, changing.child, min(cell, int(np.flatnonzero(allowed)[-1])))
        return True

    def _allowed(self, changing: _ChangingRow, name: str, changed: set[str] | None) -> Flags:
        """Return a mask of the cells of a child's attribute that satisfy the rules, also those with its parents.

        Only rules whose attributes of the child are all `changed` are applied; all rules if it is None.
        """
        table = changing.link.child
        domain = self.job.domains[table]
        size = domain[name].size
        # a possible row for each cell of the attribute, equal in all other attributes
        cells = {other: np.full(size, self._cells(table, other)[changing.child]) for other in domain.names}
        cells[name] = np.arange(size)
        allowed = np.ones(size, np.bool_)
        for rule in domain.rules:
            if changed is None or changed.issuperset(rule.names):
                allowed &= ~rule.broken(cells.__getitem__)
        for link, rules in self._ruled(table):
            applied = [rule for rule in rules if changed is None or changed.issuperset(rule.child)]
            if applied:
                allowed &= self._fits(link, applied, cells, self._known(changing, link))
        return allowed

    def _ruled(self, table: str) -> list[tuple[LinkSection, list[LinkedRule]]]:
        """Return the links of a child's table with their rules, those without any left out."""
        return [(link, rules) for link in self.job.link
                if link.child == table and (rules := self.job.linked_rules.get(link.called))]  # fmt: skip

    def _known(self, changing: _ChangingRow, link: LinkSection) -> int | None:
        """Return the parent of a row that changes in a link; None if it has none yet."""
        return changing.parent if link.called == changing.link.called else self._parent(link, changing.child)

    def _fits(self, link: LinkSection, rules: list[LinkedRule], children: Mapping[str, Integers], parent: int | None
              ) -> Flags:  # fmt: skip
        """Return which rows of a child fit its parent in a link, or some parent if it is None.

        Parameters
        ----------
        children : mapping of str to ndarray
            Cells of the possible rows of the child by attribute, all of one length.
        parent : int or None
            Row of the parent.
        """
        names = list(dict.fromkeys(name for rule in rules for name in rule.parent))
        cells = np.stack([self._cells(link.parent, name) for name in names], axis=1)
        parent_cells = cells[parent : parent + 1] if parent is not None else self._kinds((link.called, *names), cells)
        rows = len(next(iter(children.values())))
        # all pairs of a parent and a possible row, parents by rows
        columns = {f"{link.child}.{name}": np.tile(values, len(parent_cells)) for name, values in children.items()}
        columns |= {f"{link.parent}.{name}": np.repeat(parent_cells[:, i], rows) for i, name in enumerate(names)}
        return np.asarray((~_broken(rules, columns.__getitem__)).reshape(len(parent_cells), rows).any(axis=0))

    def _kinds(self, key: tuple[str, ...], cells: Integers32) -> Integers32:
        """Return the distinct rows of a parent in some attributes, which the key names after the link."""
        if key not in self.kinds:
            self.kinds[key] = np.unique(cells, axis=0)
        return self.kinds[key]

    def _parent(self, link: LinkSection, child: int) -> int | None:
        """Return the parent of a child in an earlier link with rules; None if it has none yet."""
        known = self.parents.get(link.called)
        return None if known is None or known[child] < 0 else int(known[child])

    def _frequency(self, table: str, attribute: str) -> Integers:
        """Return the number of rows of every cell before any change."""
        if (table, attribute) not in self.frequencies:
            cells, size = self._cells(table, attribute), self.job.domains[table][attribute].size
            self.frequencies[table, attribute] = np.bincount(cells, minlength=size)
        return self.frequencies[table, attribute]

    def _set(self, table: str, attribute: str, row: int, cell: int) -> None:
        self._cells(table, attribute)[row] = cell
        self.changed.setdefault(f"{table}.{attribute}", {})[row] = cell

    def changes(self, table: str) -> dict[str, Integers]:
        """Return rows and new cells, shape (k, 2), by TABLE.ATTRIBUTE of a table."""
        return {name: np.array(list(cells.items()), np.int64) for name, cells in self.changed.items()
                if name.partition(".")[0] == table}  # fmt: skip


def _broken(rules: list[LinkedRule], column: Callable[[str], Integers]) -> Flags:
    """Return which rows violate a rule; column(TABLE.ATTRIBUTE) returns their cells."""
    return np.asarray(np.any([linked.rule.broken(column) for linked in rules], axis=0))
