"""Derive from job.toml and the domains what the draws must look like; only the standard library, in every bundle.

Components, the numbers by which neighbours differ and numbers of cells are computed from the files, without code of the
release. A job with `[data]` has one component, a table. Otherwise neighbours differ in a row of the root (of
`privacy.unit`, or the private table that is no child of another) with all that belongs to it, or in a row of a private
table not below it; with `protects = "both"`, in one replaced row of any table. A join has a row for each of its base.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from dpscale.audit.evidence.sensitivities import rows, unpacked
else:  # in a bundle, where recompute.py has put the folder on sys.path
    from sensitivities import rows, unpacked

Fields = dict[str, Any]
EPOCH = date(1970, 1, 1)
MOST_DEGREE, MOST_SIBLINGS, GRID = 10, 32, 22  # defaults of a job; number of degrees on the grid of unbounded rows
OF_JOB = ("statistics", "share", "settings", "bounded")  # facts that draws.json does not contain
MOST_MULTIPLIER, MOST_SPREAD = 1 << 24, 1 << 40  # of strategies on trees
AGREE = "between databases that agree on the public totals of"
TWICE = ", which differ in two records at least: twice the epsilon, or the mu, of one record is between them"
CUT = "cut"  # name of the component of the rows beyond the bounds of joins
ROUNDS = {"rounds": 15, "marginals": 3, "alpha": 0.2}


# ---- the job ---------------------------------------------------------------------------------------------------------


def protection(job: Fields) -> Fields:
    """Return the privacy unit of the job, as the ledger's entry names it."""
    if "data" in job:
        unit, bound = _own_unit(job["data"])
        periods = int(job.get("time", {}).get("max_periods_per_unit") or 1)
        return {"unit": unit, "unit_table": None, "relation": "add/remove", "bound": bound * periods}
    replaced = _is_replaced(job)
    root = None if replaced else unit_rows(job)[0]
    section: Fields = {} if root is None else job["tables"][root]
    own, bound = _own_unit(section)
    unit = own or ", ".join(_listed_key(section.get("key"))) or None
    relation = "replace" if replaced else "add/remove"
    return {"unit": unit, "unit_table": root if unit else None, "relation": relation, "bound": bound}


def _own_unit(section: Fields) -> tuple[str | None, int]:
    """Return the column of the privacy unit that a table's section names, and the bound on a unit's rows."""
    through = section.get("unit_through")
    unit = ", ".join(_listed_key(through[-1]["unit"] if through else section.get("privacy_unit")))
    return unit or None, int(section.get("max_rows_per_unit") or 1)


def expected(job: Fields, domains: Mapping[str, Fields], files: Fields) -> list[Fields]:
    """Return the facts of every component that follow from the job and from the domains, by their file names.

    The periods of a growing table are those in draws.json; period_costs.py compares them with the ledger.
    """
    if "data" in job:
        own = {"name": "data", "kind": "table", "folder": "", "domain": "domain.toml", "steps": 1,
               "rows_per_unit": int(job["data"].get("max_rows_per_unit") or 1), "share": 1.0, "settings": job,
               "bounded": bool(job["data"].get("max_rows_per_unit"))}  # fmt: skip
        if "time" not in files["draws"]:
            return [own]
        names = [one["name"] for one in files["draws"]["components"]]
        return [own | {"name": name, "folder": f"periods/{name}/"} for name in names]
    shares = _shares(job)
    links = (_link(job, link, domains, shares) for link in job.get("link", []))
    return [*_tables(job, shares), *_joins(job, shares), *links]


def period_answers(draws: Fields) -> dict[str, str]:
    """Return the answers of the checklist on the periods of a growing table; none of other runs."""
    if "time" not in draws:
        return {}
    time = draws["time"]
    cost = f"{time['factor']} times one period, to a unit in at most {time['periods_per_unit']}"
    return {"What does the horizon cost?": f"{cost} of {len(time['periods'])} periods: time.json"}


def domain_files(job: Fields) -> list[str]:
    """Return the names of the domain files of a bundle."""
    if "data" in job:
        return ["domain.toml"]
    return [f"domain.{name}.toml" for name in [*job["tables"], *(f"joins.{name}" for name in job.get("joins", {}))]]


def _tables(job: Fields, shares: Mapping[str, float]) -> Iterator[Fields]:
    replaced = _is_replaced(job)
    root, rows = ("", {}) if replaced else unit_rows(job)
    for name, one in job["tables"].items():
        if not one.get("public"):
            keyed = bool(one.get("key") or one.get("privacy_unit")) or (not replaced and name in rows and name != root)
            yield {"name": name, "kind": "table", "folder": f"tables/{name}/", "domain": f"domain.{name}.toml",
                   "rows_per_unit": rows.get(name, 1), "steps": 2 if replaced else 1, "share": shares[f"tables.{name}"],
                   "settings": one, "bounded": keyed}  # fmt: skip


def _joins(job: Fields, shares: Mapping[str, float]) -> Iterator[Fields]:
    """Yield the facts of joins, and of the rows beyond their bounds, whose base is the root, if they are counted."""
    joins = job.get("joins", {})
    parts = {name: float(one["cut"]) for name, one in joins.items() if name != CUT}
    for name, one in joins.items():
        beyond = sum(shares[f"joins.{own}"] * part for own, part in parts.items())
        keyed = one["base"] not in job["tables"] or bool(job["tables"][one["base"]].get("key"))
        folder, domain = f"joins/{name}/", f"domain.joins.{name}.toml"
        yield {"name": f"joins.{name}", "kind": "table", "folder": folder, "domain": domain,
               "rows_per_unit": _join_rows(job, one), "steps": 1, "settings": one,
               "share": beyond if name == CUT else shares[f"joins.{name}"] * (1 - parts[name]),
               "bounded": keyed or (not _is_replaced(job) and one["base"] != unit_rows(job)[0])}  # fmt: skip


def _join_rows(job: Fields, join: Fields) -> int:
    """Return the number of rows of a join that a neighbour changes: those of its base, unless the job states it."""
    if join.get("max_rows_per_unit") is not None:
        return int(join["max_rows_per_unit"])
    if join["base"] in job["tables"]:
        return unit_rows(job)[1].get(join["base"], 1)
    [link] = (one for one in job["link"] if one["name"] == join["base"])
    return 2 * link_bound(link) if _is_replaced(job) else unit_rows(job)[1][link["parent"]] * link_bound(link)


def _link(job: Fields, link: Fields, domains: Mapping[str, Fields], shares: Mapping[str, float]) -> Fields:
    """Return the facts of a link; `statistics` are those that do not depend on released values."""
    replaced, bound, many = _is_replaced(job), link_bound(link), link.get("via") is not None
    rows: Mapping[str, int] = {} if replaced else unit_rows(job)[1]
    parent, child, share = link["parent"], link["child"], shares[f"links.{link['name']}"]
    published = share > 0 and link.get("mechanism") == "published"  # without a share nothing is measured
    degrees, ordered = share > 0 and not published and (replaced or parent in rows), bound > 1 and "order_by" in link
    wanted = {
        "links": share > 0 and (link.get("links") is None if many else link.get("nulls") == "keep"),
        "degrees": degrees,
        "siblings": degrees and not many and 1 < bound <= MOST_SIBLINGS and parent != child and not ordered,
        **dict.fromkeys(("steps", "histories"), degrees and ordered),
    }
    return {
        "name": link["name"],
        "kind": "link",
        "folder": f"links/{link['name']}/",
        "relation": "replace" if replaced else "add/remove",
        "moved": _moved(link, rows, replaced),
        "bound": bound,
        "parents": rows.get(parent, 1),
        "roles": rows.get(parent, 1) * (2 if parent == child else 1),
        "histograms": [bound, *([bound if replaced else GRID] if many else [])] if degrees else [],
        "sizes": [_cells(job, link, end, domains) for end in (parent, child)],
        "loop": {name: link.get(name, default) for name, default in ROUNDS.items()} if published else None,
        "statistics": [name for name, given in wanted.items() if given],
        "share": share,
        "settings": link,
    }


def link_bound(link: Fields) -> int:
    return int(link.get("max_degree") or (1 if link["kind"] == "one-to-one" else MOST_DEGREE))


def _moved(link: Fields, rows: Mapping[str, int], replaced: bool) -> int:
    """Return the number of links that a neighbour changes."""
    if replaced:
        return link_bound(link) * (2 if link["parent"] == link["child"] else 1)
    if link["parent"] == link["child"]:
        return rows[link["parent"]] * (link_bound(link) + 2)
    return rows[link["parent"]] * link_bound(link) if link["parent"] in rows else rows.get(link["child"], 1)


def _cells(job: Fields, link: Fields, table: str, domains: Mapping[str, Fields]) -> list[int]:
    """Return the sizes of attributes of a table's rows: its own, of other parents in a history, of counted links."""
    named = link.get("parents") or () if table == link["child"] else ()
    tables = [table, *(one["parent"] for one in job["link"] if one["name"] in named)]
    counted = [one for one in job["link"] if one["name"] in (link.get("counts") or ()) and one["parent"] == table]
    own = [size for name in tables for size in sizes(domains[f"domain.{name}.toml"])]
    return own + [1 + link_bound(one).bit_length() for one in counted]


def _is_replaced(job: Fields) -> bool:
    return any(link.get("protects") == "both" for link in job.get("link", []))


def unit_rows(job: Fields) -> tuple[str, dict[str, int]]:
    """Return the root, and by table the number of rows that belong to one row of the root."""
    tables, links = job["tables"], job.get("link", [])
    private = [name for name, one in tables.items() if not one.get("public")]
    own = [link for link in links if link.get("via") is None and link["parent"] != link["child"]
           and {link["parent"], link["child"]} <= set(private)]  # fmt: skip
    tops = set(private) - {link["child"] for link in own} if private else {link["parent"] for link in links}
    [root] = [job["privacy"]["unit"]] if "unit" in job["privacy"] else tops
    rows, names = {root: _own_unit(tables[root])[1]}, [root]
    for name in names:
        below = {link["child"]: link for link in own if link["parent"] == name and link["child"] not in rows}
        rows |= {child: rows[name] * link_bound(link) for child, link in below.items()}
        names += below
    return root, rows


def _shares(job: Fields) -> dict[str, float]:
    """Return the share of the budget of every component; the remainder is divided equally."""
    given = {f"tables.{name}": one.get("share") for name, one in job["tables"].items() if not one.get("public")}
    given |= {f"links.{one['name']}": one.get("share") for one in job.get("link", [])}
    given |= {f"joins.{name}": one.get("share") for name, one in job.get("joins", {}).items() if name != CUT}
    stated = [share for share in given.values() if share is not None]
    each = (1 - sum(stated)) / max(len(given) - len(stated), 1)
    return {name: each if share is None else share for name, share in given.items()}


def _listed_key(key: str | Sequence[str] | None) -> list[str]:
    return [] if key is None else [key] if isinstance(key, str) else list(key)


# ---- cells -----------------------------------------------------------------------------------------------------------


def shape_faults(table: Fields, domain: Fields, factors: Mapping[str, Fields]) -> Iterator[str]:
    """Yield strategies of a table that do not fit the cells of the attributes in its domain or its numbers.

    A record belongs to the cells of a number in parts of 1/R, which are at least 0 and sum to 1. So columns of a
    strategy bound its effect as for attributes, and counts are multiples of 1/R, which the multiplier must be of R.
    """
    axes = axes_of(domain)
    for draw in table["draws"]:
        if unknown := sorted(set(draw["attributes"]) - set(axes)):
            yield f"draws.json measures {unknown[0]!r}, which is not in {table['domain']}"
            return
        full = [cells(axes[name]) for name in draw["attributes"]]
        if _shape(draw, factors) != full and not is_grouped(draw, factors, axes):
            yield f"the strategy of ({', '.join(draw['attributes'])}) does not have the shape of its attributes"
            return
        if int(draw["multiplier"]) % math.prod(denominator(axes[name]) for name in draw["attributes"]):
            yield f"the measurement of ({', '.join(draw['attributes'])}) rounds its numbers"
            return
        yield from total_faults(table, draw, factors, axes)


def total_faults(
    table: Fields, draw: Fields, factors: Mapping[str, Fields], axes: Mapping[str, Fields]
) -> Iterator[str]:
    """Yield faults of a draw with a number of which the total over a unit is bounded, instead of each value.

    A record is then −t/2 and t/2 beside equal parts of 1/2, with Σ|t| at most the number of rows of a unit. So columns
    bound the effect of a unit if every row of the strategy sums to zero along this axis, and no other one has totals.
    """
    own = [axis for axis, name in enumerate(draw["attributes"]) if axes[name].get("per_unit") == "total"]
    where = f"the measurement of ({', '.join(draw['attributes'])})"
    if any(axes[draw["attributes"][axis]].get("rows_per_unit") != int(table["rows_per_unit"]) for axis in own):
        yield f"{where} has a total over another number of rows of a unit"
    if len(own) > 1 or any(not is_centred(draw["factors"], factors, axis) for axis in own):
        yield f"{where} is not bounded by the total of a unit"


def is_centred(names: Sequence[str], factors: Mapping[str, Fields], axis: int) -> bool:
    """Return whether every row of a strategy sums to zero along an axis."""
    one = factors[names[0 if len(names) == 1 else axis]]
    shape, place = one["shape"], axis if len(names) == 1 else 0
    if one["kind"] == "center":
        return len(shape) == 1
    if not {"matrix", "packed"} & set(one):
        return False
    size, inner = shape[place], math.prod(shape[place + 1 :])
    return not any(
        sum(row[first : first + size * inner : inner])
        for row in rows(one)
        for block in range(0, math.prod(shape), size * inner)
        for first in range(block, block + inner)
    )


def axes_of(domain: Fields) -> dict[str, Fields]:
    """Return the attributes and the numbers of a domain."""
    return {
        **attributes_of(domain),
        **{name: {**one, "kind": "number"} for name, one in domain.get("numbers", {}).items()},
    }


def attributes_of(domain: Fields) -> dict[str, Fields]:
    """Return the attributes of a domain in order; the levels of a hierarchy follow its leaves, the top first."""
    found: dict[str, Fields] = {}
    for name, one in domain["attributes"].items():
        found[name] = one
        if one["kind"] == "hierarchy":
            *above, leaves = one["cells"]
            found[name] = {**one, "listed": leaves}
            found |= {level: {**one, "listed": count} for level, count in zip(one["levels"], above, strict=True)}
    return found


def agreed(domains: Iterable[Fields]) -> str:
    """Return the end of a sentence on neighbours: public totals from the same records, on which they agree."""
    tables = (one for domain in domains for one in domain.get("totals", ()) if one["origin"] == "same records")
    named = [" x ".join(one["attributes"]) or "all records" for one in tables]
    return f"; the guarantee holds {AGREE} {', '.join(named)}{TWICE}" if named else ""


def denominator(one: Fields) -> int:
    """Return the number of parts of a record of a number: its steps, or their square; 1 for an attribute."""
    if one["kind"] != "number":
        return 1
    low, high, step = (Fraction(str(one[key])) for key in ("low", "high", "step"))
    return int((high - low) / step) ** (2 if one.get("squares") else 1)


def sizes(domain: Fields) -> list[int]:
    """Return the number of cells of every attribute."""
    return [cells(one) for one in attributes_of(domain).values()]


def _shape(draw: Fields, factors: Mapping[str, Fields]) -> list[int]:
    return [size for name in draw["factors"] for size in factors[name]["shape"]]


def is_grouped(draw: Fields, factors: Mapping[str, Fields], attributes: Mapping[str, Fields]) -> bool:
    """Return whether a draw of a later round is over groups of cells, each cell in one: the shape is smaller."""
    shape, full = _shape(draw, factors), [cells(attributes[name]) for name in draw["attributes"]]
    smaller = len(shape) == len(full) and all(one <= most for one, most in zip(shape, full, strict=True))
    return smaller and shape != full and int(draw["round"]) > 0


def cells(one: Fields) -> int:
    """Return the number of cells of an attribute in domain.toml, with those for outside values and nulls."""
    if one["kind"] == "number":
        return (4 if one.get("squares") else 2) + (one["nulls"] == "skip")
    foreign = one.get("unparsable") or ("reject" if one["outside"] == "clip" else one["outside"])
    return _listed(one) + ("category" in (one["outside"], foreign)) + (one["nulls"] == "category")


def _listed(one: Fields) -> int:
    kind = one["kind"]
    if kind == "hierarchy":
        return int(one["listed"])
    if "values" in one or "map" in one:
        return len(one["values"] if "values" in one else one["map"])
    if kind == "date":
        return period_number(one["by"], one["high"]) - period_number(one["by"], one["low"]) + 1
    counts = {"boolean": lambda: 2, "coded": lambda: int(one["size"]), "bins": lambda: len(one["edges"]) - 1,
              "integer": lambda: (one["high"] - one["low"]) // one.get("round", 1) + 1}  # fmt: skip
    return counts[kind]()


def period_number(by: str, name: str | int) -> int:
    """Return the number of a calendar period from its name."""
    text = str(name)
    if by == "day":
        return (date.fromisoformat(text) - EPOCH).days
    if by == "week":
        year, week = text.split("-W")
        return ((date.fromisocalendar(int(year), int(week), 1) - EPOCH).days + 3) // 7
    if by == "year":
        return int(text)
    year, part = re.split("-Q?", text)
    return int(year) * (4 if by == "quarter" else 12) + int(part)


def strategy_faults(files: Fields) -> Iterator[str]:
    """Yield strategies whose entries contradict their shape."""
    for name, factor in files["strategies"]["factors"].items():
        if fault := _misshapen(factor):
            yield f"strategy {name} {fault}"


def _misshapen(factor: Fields) -> str:
    count = math.prod(factor["shape"])
    if not factor["shape"] or min(factor["shape"]) < 1:
        return "has no cells"
    if factor["kind"] == "tree":
        return _misshapen_tree(factor)
    if "columns" in factor:
        squared, absolute = (list(map(int, factor["columns"][name])) for name in ("squared", "absolute"))
        if len(squared) != count or len(absolute) != count:
            return f"has norms of {len(squared)} columns for {count} cells"
        if any(not 0 <= a <= s <= a * a for s, a in zip(squared, absolute, strict=True)):
            return "has norms that are impossible for columns of integers"
    if "matrix" in factor and any(len(row) != count for row in factor["matrix"]):
        return f"has rows that do not have {count} cells"
    if "levels" in factor:
        return next((fault for level in factor["levels"] if (fault := _misshapen(level))), "")
    known = ("matrix", "packed", "columns")
    return "" if factor["kind"] in ("identity", "center") or any(one in factor for one in known) else "has no entries"


def _misshapen_tree(factor: Fields) -> str:
    """Return the fault of a strategy on a tree whose levels do not fit together or do not end at its cells."""
    sizes = [len(unpacked(one)) for one in factor["multipliers"]]
    parents = [unpacked(one) for one in factor["parents"]]
    spread = unpacked(factor["spread"]) if factor["spread"] else [1] * sizes[-1]
    if sizes != [1, *map(len, parents)] or sizes[-1:] != factor["shape"] or len(spread) != sizes[-1] or min(spread) < 1:
        return "has levels that do not match its tree"
    if any(set(own) != set(range(size)) for size, own in zip(sizes, parents, strict=False)):
        return "has a node without children, or a child of no node"
    values = [unpacked(one) for one in factor["multipliers"]]
    if any(min(one) < 0 or max(one) >= MOST_MULTIPLIER for one in values) or min(values[-1]) < 1:
        return "has multipliers of a tree that are not whole numbers of at least 0, or 1 for leaves"
    known = factor["known"]
    if (factor["spread"] and (values[0][0] or sum(spread) >= MOST_SPREAD)) or any(map(any, values[: known + 1])):
        return "measures nodes of a tree that are known, or spreads a total by too large weights"
    return "" if -1 <= known < len(parents) and (known < 0 or not factor["spread"]) else "knows no level of its tree"
