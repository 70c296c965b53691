"""Values of linked rows, so that rules across tables hold inside cells too.

Cells of linked rows satisfy the rules (`rules`), but values inside them are drawn for each table alone. Tables are
visited from parents to children. A parent's value is drawn again between the ends that the cells of its children leave;
then a child's values are fitted to its own rules and to the values of its parents (`synthesis.rule_values`). Where a
child's cell has no such value, the value leaves its cell, as little as possible. Rules across tables name attributes
TABLE.ATTRIBUTE, and so do the functions here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrow import pa, pq
from dpscale.base.numerics import Flags, Floats, Integers, NDArray
from dpscale.domain.attribute import Attribute
from dpscale.domain.number import Number
from dpscale.domain.rule_text import kind_of_values
from dpscale.domain.rules import ValueRule
from dpscale.job.sections import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.records.column_values import days, numbers
from dpscale.records.encode import encode
from dpscale.runs.linked_tables import LinkedTables, public_tables
from dpscale.runs.stages.row_rules import with_row_ranges
from dpscale.storage.files import write_whole, writing
from dpscale.synthesis.dates import date_column
from dpscale.synthesis.rule_values import RowCells, RuleValues

CHECKED = "_rules.json"


@dataclass(eq=False)
class LinkedValues:
    """Written tables of a run, whose values are changed where rules across tables require it.

    Attributes
    ----------
    run : LinkedTables
    files : mapping of str to sequence of str
        Files of each table in the database.
    pairs : mapping of str to ndarray, shape (links, 2)
        Rows of the parent and of the child by link, numbered as they are written.
    """

    run: LinkedTables
    files: Mapping[str, Sequence[str]]
    pairs: Mapping[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        """Prepare the tables that are read."""
        self._tables: dict[str, pa.Table] = {}

    @property
    def links(self) -> list[LinkSection]:
        """Links with rules that compare values, from parents to children.

        A link follows all links to its parent's table, so that values of parents are final before those of children.
        Links of a circle are added together.
        """
        waiting = [link for link in self.run.job.link if self._rules(link)]
        ordered = list[LinkSection]()
        while waiting:
            children = {link.child for link in waiting}
            free = [link for link in waiting if link.parent not in children] or waiting  # all of a circle at once
            ordered += free
            waiting = [link for link in waiting if link not in free]
        return ordered

    def fit(self, changed: Sequence[str]) -> None:
        """Change the values of tables so that rules across tables hold, and write these tables again.

        Parents are narrowed first, then the values of their children are fitted. `changed` names tables of which rules
        changed cells; their values must be in the new cells.
        """
        links = self.links
        for link in links:
            if link.parent in self.run.tables:
                self._narrow(link.parent, [other for other in links if other.parent == link.parent])
        for name in dict.fromkeys([*(link.child for link in links), *changed]):
            rules, rows = self._of_child(name, [link for link in links if link.child == name])
            self._change(name, rules, rows)
        for name in self._tables:
            self._write(name)

    def broken(self, name: str, table: pa.Table, order: Integers) -> Flags:
        """Return the rows of a child's table that break a rule that compares values, shape (n,).

        `order` has the numbers of the rows in the order of the table.
        """
        # rules read tables from this cache, so the given table is in it for the time of the call
        before, self._tables[name] = self._table(name), table
        rules, rows = self._of_child(name, [link for link in self.links if link.child == name], order)
        flags = rules.broken(rows, self._values(rules, rows))
        self._tables[name] = before
        return flags

    def may_not_exchange(self, name: str, table: pa.Table, order: Integers) -> Flags:
        """Return the rows whose dates must stay, given a table in which the dates of each parent's rows are exchanged.

        They are the rows that break a rule with their parents, or all rows if a rule compares the table with its
        children. `order` has the numbers that the rows of `table` had before.
        """
        if any(link.parent == name for link in self.links):  # values of children were fitted to these dates
            return np.ones(table.num_rows, np.bool_)
        return self.broken(name, table, order)

    def count_broken(self, ordered: Mapping[str, tuple[pa.Table, Integers] | None]) -> dict[str, int]:
        """Return the number of rows of each child's table that break a rule.

        `ordered` maps a table's name to its rows in another order and the numbers that they had before, or to None for
        a table whose order stays.
        """
        found = {}
        for name in dict.fromkeys(link.child for link in self.links):
            table = self._table(name)
            given = ordered.get(name) or (table, np.arange(table.num_rows))
            found[name] = int(self.broken(name, *given).sum())
        return found

    def _rules(self, link: LinkSection) -> list[ValueRule]:
        """Return the rules of a link that compare values, for the ranges of values that rows have."""
        rules = [linked.rule for linked in self.run.closed_job.linked_rules.get(link.called, ())]
        rules_of_values = [rule for rule in rules if isinstance(rule, ValueRule)]
        for table in (link.parent, link.child):
            if (part := self.run.tables.get(table)) is not None:
                rules_of_values = with_row_ranges(part, rules_of_values, f"{table}.")
        return rules_of_values

    def _own_rules(self, name: str) -> list[ValueRule]:
        """Return the value rules of a table alone, with its attributes named TABLE.ATTRIBUTE.

        Only rules whose attributes are all columns of the rows are returned.
        """
        part = self.run.tables[name]
        known = set(self._table(name).column_names)
        rules = [rule for rule in part.domain.value_rules if known.issuperset(rule.clause.names)]
        return [
            rule.renamed({name_in_rule: f"{name}.{name_in_rule}" for name_in_rule in rule.clause.names})
            for rule in with_row_ranges(part, rules)
        ]

    def _table(self, name: str) -> pa.Table:
        """Return the rows of a table, synthetic unless it is public; read once, later with the changed values."""
        if name not in self._tables:
            self._tables[name] = (
                pa.concat_tables([pq.read_table(self.run.path / "synthetic" / file) for file in self.files[name]])
                if name in self.run.tables else public_tables(self.run)[name][1]
            )  # fmt: skip
        return self._tables[name]

    def _column(self, name: str) -> tuple[Attribute, pa.Array]:
        """Return an attribute TABLE.ATTRIBUTE and its column.

        A column of rows has the name of the attribute, or of the attribute's source.
        """
        table, _, attribute = name.partition(".")
        declared, rows = self.run.closed_job.domains[table][attribute], self._table(table)
        column = attribute if attribute in rows.column_names else declared.column
        return declared, rows.column(column).combine_chunks()

    def _cells(self, name: str) -> tuple[NDArray[np.integer], Flags]:
        """Return the cells of an attribute by row, and the rows whose value is unknown without a cell that states it.

        A number has no cells, so its cells are 0. Unknown values are in the cell of nulls or of outside values, if the
        attribute has either, otherwise in cell 0 and marked.
        """
        attribute, column = self._column(name)
        if isinstance(attribute, Number):
            return np.zeros(len(column), np.int64), np.isnan(self._numbers(name))
        null = np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
        # a value that the domain would refuse gets a cell here, because the rows are written already
        plain = replace(attribute, nulls="category", outside="category", unparsable="category")
        cells = encode(plain, column).astype(np.int64)
        unknown = null | (cells >= attribute.listed)
        cell_of_unknown = attribute.null_cell if attribute.null_cell >= 0 else attribute.outside_cell  # −1 if neither
        cells = np.where(unknown, max(cell_of_unknown, 0), cells)
        return cells, unknown & (cell_of_unknown < 0)

    def _numbers(self, name: str) -> Floats:
        """Return the values of a column as numbers, dates as days since 1970; nan where there is none."""
        attribute, column = self._column(name)
        is_date = kind_of_values(attribute) == "date"
        found = days(column, attribute.zone, attribute.format) if is_date else numbers(column)
        if found is None:
            return np.full(len(column), np.nan)
        return np.where(found.missing | found.foreign, np.nan, found.values.astype(np.float64))

    def _narrow(self, name: str, links: Sequence[LinkSection]) -> None:
        """Draw the values of parents again between the ends that the cells of their children leave.

        A value is drawn only if it is outside these ends; then the rules of the parents' table are fitted. Where no
        value of the lattice lies between the ends, the value stays.
        """
        bounds = dict[str, tuple[Floats, Floats]]()  # by attribute, the ends that all children of each parent permit
        for link in links:
            parents, children = np.asarray(self.pairs[link.called]).T
            rules = RuleValues(self._rules(link))
            cells, nulls = self._linked_cells(rules, link, parents, children)
            low, high = rules.narrowed(RowCells(cells, nulls, len(parents)))  # ends of each link
            for attribute in (attribute for attribute in rules.names if attribute.startswith(f"{name}.")):
                least, most = bounds.setdefault(attribute, self._own_ends(attribute))
                np.maximum.at(least, parents, low[attribute])
                np.minimum.at(most, parents, high[attribute])

        own_rules = RuleValues(self._own_rules(name))
        for attribute, (least, most) in bounds.items():
            values, stream = self._numbers(attribute), self._stream(f"values of {attribute}")
            outside = (values < least) | (values > most)
            drawn = self._lattice(attribute)._between(attribute, least, most, stream.uniforms(len(values)))
            self._set(attribute, np.where(outside & ~np.isnan(drawn), drawn, values))

        used = {attribute: ends for attribute, ends in bounds.items() if attribute in own_rules.names}
        self._change(name, own_rules, self._rows(own_rules, name, used))

    def _lattice(self, attribute: str) -> RuleValues:
        """Return the rules that compare an attribute TABLE.ATTRIBUTE, which know the lattice of its values."""
        table = attribute.partition(".")[0]
        links = [link for link in self.links if table in (link.parent, link.child)]
        return RuleValues([rule for link in links for rule in self._rules(link) if attribute in rule.clause.names])

    def _own_ends(self, attribute: str) -> tuple[Floats, Floats]:
        """Return copies of the ends of an attribute's values in the cells of all rows."""
        ranges = self._lattice(attribute).rules[0].ranges[attribute]
        cells, _ = self._cells(attribute)
        return ranges.low[cells], ranges.high[cells]

    def _linked_cells(self, rules: RuleValues, link: LinkSection, parents: Integers, children: Integers
                      ) -> tuple[dict[str, NDArray[np.integer]], dict[str, Flags]]:  # fmt: skip
        """Return the cells of the rows at the ends of links, and which values are unknown, by TABLE.ATTRIBUTE.

        `parents` and `children` are the rows of the links, shape (links,).
        """
        cells, nulls = {}, {}
        for name in dict.fromkeys(attribute for rule in rules.rules for attribute in rule.clause.names):
            rows = parents if name.startswith(f"{link.parent}.") else children
            cells_of_table, unknown = self._cells(name)
            cells[name], nulls[name] = cells_of_table[rows], unknown[rows]
        return cells, nulls

    def _rows(self, rules: RuleValues, name: str, bounds: Mapping[str, tuple[Floats, Floats]]) -> RowCells:
        """Return the cells of a table's rows for its rules; `bounds` are narrower ends of values by attribute."""
        cells, nulls = {}, {}
        for attribute in dict.fromkeys(name for rule in rules.rules for name in rule.clause.names):
            cells[attribute], nulls[attribute] = self._cells(attribute)
        return RowCells(cells=cells, nulls=nulls, count=self._table(name).num_rows, bounds=bounds)

    def _of_child(self, name: str, links: Sequence[LinkSection], order: Integers | None = None
                  ) -> tuple[RuleValues, RowCells]:  # fmt: skip
        """Return the rules of a child's table with its parents, and its rows with the values of their parents.

        The attributes of the parent in a link are named LINK:TABLE.ATTRIBUTE. Their values, and exact numbers of the
        child, are fixed: both ends of their range are the value. An unknown value, or a row without a parent, is null;
        comparisons with nulls are not broken. `order` has the former numbers of the table's rows; None if they stay.
        """
        rules, own_rules = self._own_rules(name), RuleValues(self._own_rules(name))
        rows = self._rows(own_rules, name, {})
        cells, nulls, bounds = dict(rows.cells), dict(rows.nulls), dict[str, tuple[Floats, Floats]]()
        for link in links:
            parents, children = np.asarray(self.pairs[link.called]).T
            parent_of = np.full(rows.count, -1, np.int64)  # row of the parent of each row; -1: none
            parent_of[children] = parents
            parent_of = parent_of if order is None else parent_of[order]
            for rule in self._rules(link):
                of_parent = [attribute for attribute in rule.clause.names if attribute.startswith(f"{link.parent}.")]
                renamed = {attribute: f"{link.called}:{attribute}" for attribute in of_parent}
                rules.append(rule.renamed(renamed))
                for attribute in rule.clause.names:
                    cells_of_table, unknown = self._cells(attribute)
                    if attribute not in renamed:
                        cells[attribute], nulls[attribute] = cells_of_table, unknown
                        continue
                    key = renamed[attribute]
                    values = self._numbers(attribute)[parent_of] if rule.compares(attribute) else np.zeros(rows.count)
                    cells[key] = np.where(parent_of >= 0, cells_of_table[parent_of], 0)
                    nulls[key] = (parent_of < 0) | unknown[parent_of] | np.isnan(values)
                    bounds[key] = values, values

        for number in [number for rule in rules for number in rule.numbers]:
            bounds[number] = self._numbers(number), self._numbers(number)
        return RuleValues(rules), RowCells(cells=cells, nulls=nulls, count=rows.count, bounds=bounds)

    def _values(self, rules: RuleValues, rows: RowCells) -> dict[str, Floats]:
        return {name: rows.bounds[name][0] if name in rows.bounds and ":" in name else self._numbers(name)
                for name in rules.names}  # fmt: skip

    def _change(self, name: str, rules: RuleValues, rows: RowCells) -> None:
        """Fit the values of a table's attributes to rules, and replace them; exact numbers and other tables stay."""
        if not rules.rules:
            return
        before = self._values(rules, rows)
        free = [attribute for attribute in rules.names
                if attribute.startswith(f"{name}.") and attribute not in rules.numbers]  # fmt: skip
        wider = {}  # whole ranges, for rows that have no values within their cells
        for attribute in free:
            wider[attribute] = next(rule.ranges[attribute].ends for rule in rules.rules if attribute in rule.ranges)

        after = rules.fitted(rows, before, self._stream(f"values of {name}"), wider)
        for attribute in free:
            self._set(attribute, after[attribute])

    def _stream(self, purpose: str) -> PublicStream:
        return PublicStream(self.run.manifest["release"], purpose)

    def _set(self, name: str, values: Floats) -> None:
        """Replace the values of a column, where they changed.

        The column keeps its type and its nulls.
        """
        attribute, column = self._column(name)
        before = self._numbers(name)
        null = np.isnan(before)
        if (null | (before == values)).all():
            return
        filled = np.where(null, 0.0, values)
        if kind_of_values(attribute) == "date":
            new_column = date_column(attribute, filled.astype(np.int64), null, column.type)
        elif pa.types.is_integer(column.type):
            new_column = pa.array(filled.astype(np.int64), mask=null)
        else:
            new_column = pa.array(filled, mask=null)
        # synthetic rows have the column by the name of the attribute, public ones by that of its source
        table, _, attribute_name = name.partition(".")
        rows = self._table(table)
        place = rows.column_names.index(attribute_name if attribute_name in rows.column_names else attribute.column)
        cast = new_column.cast(column.type, safe=not pa.types.is_decimal(column.type))
        self._tables[table] = rows.set_column(place, rows.column_names[place], cast)

    def _write(self, name: str) -> None:
        """Write the files of a synthetic table again, each with as many rows as before."""
        if name not in self.run.tables:
            return
        start = 0
        for file in self.files[name]:
            path = self.run.path / "synthetic" / file
            count = pq.read_metadata(path).num_rows
            with writing(path, durable=False) as written:
                pq.write_table(self._tables[name].slice(start, count), written, store_schema=False)
            start += count


def write_check(folder: Path, broken: Mapping[str, int]) -> None:
    """Write the number of rows of each child's table that break a rule across tables, after checking that none does."""
    if any(broken.values()):
        raise RuntimeError(f"linked rows break a rule: {', '.join(name for name, count in broken.items() if count)}")
    write_whole(folder / CHECKED, json.dumps({"broken": dict(broken)}, indent=1).encode())
