"""Run of a join: the run of its base table, whose partitions return the columns of the other tables.

There is a run for each join of the job under `joins/`. Rows are looked up while they are counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpscale.contributions.joins import (
    CACHE,
    PAIR,
    CountLookup,
    Join,
    JoinedPartition,
    Lookup,
    RowLookup,
    check_families,
    joined_table,
    new_token,
    parts_of,
)
from dpscale.contributions.links import column_name, with_key_ids
from dpscale.contributions.units import Bound
from dpscale.domain import Domain
from dpscale.engine.contribution_bounds import read_unit_lookup, rows_beyond, survey_units
from dpscale.engine.counting import partition_groups
from dpscale.job.data import Hop, key_columns
from dpscale.job.join_job import JoinJob, LookupSection, join_jobs
from dpscale.job.neighbours import public_attributes_of
from dpscale.privacy.protection import REPLACE
from dpscale.records import Table
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.table import TablePart

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

SHARE = 8  # part of the memory setting for the rows that are looked up
NO_DOMAIN = Domain({"rows": 2})


class JoinedTable(TablePart):
    """Part of a join of linked tables.

    Attributes
    ----------
    whole : LinkedTables
    """

    job: JoinJob
    checks_rows = False

    def __init__(self, whole: LinkedTables, name: str, job: JoinJob) -> None:
        self.whole, self.depends_on = whole, tuple(f"tables.{table}" for table in whole.tables)
        super().__init__(whole.run, f"joins.{name}", job, job.read_domain(), f"joins/{name}")

    @property
    def public_attributes(self) -> list[str]:
        """Attributes of side tables that the job declares public and the join uses."""
        return public_attributes_of(self.whole.job, self.path.name)

    def measure(self, engine: Engine) -> None:
        super().measure(engine)
        CACHE.clear()

    def synthesize(self, engine: Engine) -> None:
        """Do nothing: a join has answers only."""

    @property
    def contribution_bound(self) -> Bound:
        return self.job.join.bound or 1

    @property
    def replaces(self) -> bool:
        """Whether neighbours replace a row."""
        return self.job.data.privacy_unit == PAIR

    @property
    def lookup_tables(self) -> list[Table]:
        sections = self.job.join.lookups
        return [*map(_opened, sections), *(_hop(hop) for section in sections for hop in section.through or ())]

    def restrict(self, table: Table, engine: Engine) -> Table:
        """Return the join of a table (the base) with the tables that its rows refer to.

        A lookup is a table in which a row finds values by a key. Its source, the table with that key, is the base (−1)
        or the table of another lookup. Each value of the columns `owned` must have a single unit. A base with `pair`
        has pairs of keys as its rows; equal pairs count once unless neighbours replace rows.
        """
        settings, memory = self.job.join, self.job.engine.bytes // SHARE
        unit = self.job.data.unit_column
        if settings.owned is not None and unit is not None:
            owned = key_columns(settings.owned)
            read_unit_lookup(engine, [(with_key_ids(table, owned), column_name(owned), unit)])  # refuses two owners
        tables = self.lookup_tables
        base = NO_DOMAIN if not settings.attributes else Domain.read(self.job.data.domain)
        lookups = []
        for number, section in enumerate(settings.lookups):
            if section.source == -1:  # `_lookup` adds the lookups that start from its rows
                lookups.append(self._lookup(number, tables, memory, table))
        joined = joined_table(table, Join(base, settings.attributes, tuple(lookups), tuple(settings.pair or ())))
        if settings.pair is None or self.replaces:
            return joined
        return self._distinct(joined, engine)

    def _lookup(self, number: int, tables: list[Table], memory: int, source: Table) -> Lookup:
        """Return the lookup of section `number`, with the lookups that start from its rows.

        A row of the table `source` has a key in its columns `at`, which is looked up in the columns `key` of the
        section's table, `tables[number]`. Tables between both (`through`) map a key of one kind to the next. A section
        with a bound counts children instead of reading one row.
        """
        section, table = self.job.join.lookups[number], tables[number]
        at, key = tuple(section.at), tuple(section.key)
        # the next columns, on the way from the section's table to the source, whose keys must be of the same kind
        joined_by = (table, key)
        for hop in section.through or ():
            check_families(section.link, [joined_by, (_hop(hop), hop.columns[0])])
            joined_by = (_hop(hop), hop.columns[1])
        check_families(section.link, [(source, at), joined_by])

        from_here = [place for place, other in enumerate(self.job.join.lookups) if other.source == number]
        lookups = [self._lookup(place, tables, memory, table) for place in from_here]
        onward = tuple(lookup for lookup in lookups if isinstance(lookup, RowLookup))

        # a table that does not fit into memory is divided into parts by its key
        names = len(section.attributes) + sum(len(lookup.names) for lookup in onward)
        files = {part.path: part for part in table.partitions}  # a partition of each file has the rows of the file
        rows = sum(part.row_bound() for part in files.values())
        common: dict[str, Any] = {"parts": parts_of(rows, names, memory), "token": new_token(), "memory": 2 * memory}

        if section.bound is not None:
            nulls, child_nulls = section.policies
            hops = tuple((_hop(hop), *hop.columns) for hop in section.through or ())
            return CountLookup(
                link=section.link,
                at=at,
                key=key,
                table=table,
                wanted=tuple(section.attributes.items()),
                bound=section.bound,
                policies=(nulls, child_nulls),
                far=onward,
                through=hops,
                **common,
            )
        nulls, dangling, key_nulls, duplicates = section.policies
        policies = nulls, dangling, key_nulls, duplicates
        return RowLookup(
            link=section.link,
            at=at,
            key=key,
            table=table,
            source=section.attributes,
            policies=policies,
            onward=onward,
            **common,
        )

    def _distinct(self, table: Table, engine: Engine) -> Table:
        """Return the table without repeated pairs: all rows of a pair but the first are dropped.

        The rows are found as those of a privacy unit beyond its bound: here the unit is the pair, in the column PAIR,
        and its bound is 1 row.
        """
        groups, rows = partition_groups(table.partitions, engine.workers), survey_units(engine, table.partitions, PAIR)
        # the dropped rows by partition
        repeated = rows_beyond(engine, self.domain, groups, PAIR, 1, rows, self.job.engine.bytes,
                               self.domain.axis_names[:1], drop=True)  # fmt: skip
        partitions = list(table.partitions)
        for number, partition in enumerate(partitions):
            if partition in repeated and isinstance(partition, JoinedPartition):
                partitions[number] = replace(partition, without=repeated[partition])
        return replace(table, partitions=tuple(partitions))

    @property
    def protects(self) -> Any:
        found = super().protects
        return replace(found, relation=REPLACE, unit=None) if self.replaces else found


def join_parts(whole: LinkedTables) -> list[JoinedTable]:
    """Return the parts of the joins, which follow the tables: these refuse keys of two units."""
    jobs = join_jobs(whole.job, whole.neighbours)
    return [JoinedTable(whole, name, job) for name, job in jobs.items()]


def _hop(hop: Hop) -> Table:
    return hop.origin.table(hop.path, NO_DOMAIN)


def _opened(section: LookupSection) -> Table:
    domain = NO_DOMAIN if section.domain is None else Domain.read(section.domain)
    return section.origin.table(section.path, domain)
