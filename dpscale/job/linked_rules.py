"""Structural zeros across tables: rules over an attribute of a child and one of its parent, which linked rows satisfy.

    [[determined]]                        [[impossible]]
    attribute = "events.year"             "patients.sex" = ["M"]
    by = "teams.year"                     "stays.ward" = ["maternity"]

The tables are those of a one-to-many or one-to-one link. Without `map`, an attribute that is determined has the value
of the other one. If several links connect the two tables, a rule holds for each. Rules are public, like domains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.domain.attribute import Attribute
from dpscale.domain.structural_zeros import DomainConstraint, read_rules
from dpscale.job.protected_unit import has_bounded_parents
from dpscale.job.sections import LinkSection, TablesOfJob

Rule = Mapping[str, Any]


@dataclass(frozen=True)
class LinkedRule:
    """Rule over attributes of the two tables of a link; its names are TABLE.ATTRIBUTE.

    Attributes
    ----------
    rule : DomainConstraint
    parent, child : tuple of str
        Attributes of either table in the rule. The last one of the child changes where no parent fits a row.
    """

    rule: DomainConstraint
    parent: tuple[str, ...]
    child: tuple[str, ...]


def linked_rules(job: TablesOfJob) -> dict[str, list[LinkedRule]]:
    """Return the rules of every link that has some.

    Raises
    ------
    JobError, DomainError
        For a rule that does not describe two linked tables or their values.
    """
    found: dict[str, list[LinkedRule]] = {}
    content = {"impossible": [dict(one) for one in job.impossible or ()],
               "determined": [_with_map(job, one) for one in job.determined or ()]}  # fmt: skip
    for rule in read_rules({name: rules for name, rules in content.items() if rules}, _Find(job)):
        tables = list(dict.fromkeys(name.partition(".")[0] for name in rule.names))
        links = [link for link in job.link if {link.parent, link.child} == set(tables) and link.via is None]
        if len(tables) != 2 or not links:
            raise JobError("impossible, determined", f"a rule over {', '.join(rule.names)}",
                           "attributes of the two tables of a one-to-many or one-to-one link",
                           "use the domain file for a rule within one table")  # fmt: skip
        for link in links:
            own = {end: tuple(name.partition(".")[2] for name in rule.names if name.startswith(f"{end}."))
                   for end in (link.parent, link.child)}  # fmt: skip
            _check_column(job, link, own[link.child][-1])
            found.setdefault(link.called, []).append(LinkedRule(rule, own[link.parent], own[link.child]))
    _check_bounds(job, found)
    return found


@dataclass(frozen=True)
class _Find:
    """Attributes by TABLE.ATTRIBUTE, under that name."""

    job: TablesOfJob

    def __call__(self, name: str) -> Attribute:
        table, _, attribute = str(name).partition(".")
        if table not in self.job.tables:
            raise JobError("impossible, determined", repr(name), "TABLE.ATTRIBUTE",
                           nearest(table, list(self.job.tables)))  # fmt: skip
        domain = self.job.declared[table]
        if attribute not in domain.names:
            raise JobError("impossible, determined", repr(name), f"an attribute of {table}: {', '.join(domain.names)}",
                           nearest(attribute, list(domain.names)))  # fmt: skip
        if domain[attribute].search is not None:
            raise JobError("impossible, determined", f"{name}, whose cells are not public", "public cells",
                           "state its cells in the domain file")  # fmt: skip
        return replace(domain[attribute], name=name)


def _with_map(job: TablesOfJob, rule: Rule) -> dict[str, Any]:
    """Return a rule with its map; by default equal values correspond."""
    if "map" in rule or not {"attribute", "by"} <= set(rule):
        return dict(rule)
    attribute, by = (_Find(job)(rule[key]) for key in ("attribute", "by"))
    equal = {str(one): one for one in attribute.labels}
    found = {one: equal[str(one)] for one in by.labels if str(one) in equal}
    if not found:
        raise JobError("determined", f"{attribute.name} and {by.name} without a common value", "a map of values",
                       "add map = { VALUE = VALUE }")  # fmt: skip
    return {**rule, "map": found}


def _check_column(job: TablesOfJob, link: LinkSection, name: str) -> None:
    """Raise JobError for an attribute of a child that shares its column: its value could not change alone."""
    domain = job.declared[link.child]
    if domain.is_shared(domain[name].column):
        raise JobError("impossible, determined", f"{link.child}.{name}, which shares its column",
                       "an attribute with a column of its own", "name another attribute")  # fmt: skip


def _check_bounds(job: TablesOfJob, rules: Mapping[str, Sequence[LinkedRule]]) -> None:
    """Raise JobError for an attribute in rules of several links, of which one bounds the children of a parent.

    Where no place is left at a parent that fits, the attribute must change alone.
    """
    for link in (one for one in job.link if one.called in rules):
        bounded = has_bounded_parents(job, link)
        own = {f"{link.child}.{one.child[-1]}" for one in rules[link.called]}
        for other in (one for one in job.link if one.called in rules and one != link and one.child == link.child):
            both = own & {f"{other.child}.{name}" for one in rules[other.called] for name in one.child}
            if bounded and both:
                raise JobError("impossible, determined", f"{min(both)} in rules of {link.called} and {other.called}",
                               "an attribute in rules of one link, or of links to public parents",
                               "state one of the rules")  # fmt: skip
