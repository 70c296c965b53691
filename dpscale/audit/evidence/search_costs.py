"""Recompute the cost of searches and of numbers of units: python search_costs.py [FOLDER]; exit code 1 if wrong.

The script uses only the standard library and is part of a bundle whose run had a stage `discover`, beside recompute.py.
searches.json has the noise of every search. The ledger's entry NAME-domain must cover their costs, for units of k rows:

    values   μ² = m²k²/(v − 8), and the additive δ of a threshold t: the largest 1 − Π (1 − P(z ≥ t − m r_j)) over all
             ways to divide k rows over values, with a bound of the tail of the discrete Gaussian
    ends     μ² = m²k²/(v − 8)
    nodes    the same for each level of the tree
    edges    the largest sum of m²k²/(v − 8) over the measured nodes of a path from the root to a node

units.json has the noise of numbers of distinct units, with the entry NAME-units: a unit counts once in at most k cells
of a set, so μ² = m²k/(v − 8) of each set, or ε = mk/s. The number of rows that the bound cuts counts at most 3k rows of
a unit: μ² = 9m²k²/(v − 8), or ε = 3mk/s. All entries together must be within ε and δ of the job.

allocation.json has the first measurement of several tables, by which their budget was divided, with the entry
NAME-allocation: of links as in draws.json, rows of tables and their attributes, with sensitivities k and k√U, and rows
by degree, with the sensitivity k.

With several tables, searches.TABLE.json and units.TABLE.json are those of one table, whose costs add under the same
entries. Where neighbours are s steps of a table apart, μ² is s² times as large, and an additive δ grows as for a group.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from dpscale.audit.evidence import shapes
    from dpscale.audit.evidence.crosscheck import SHARES, budget, cost_of as draw_costs, tomllib
    from dpscale.audit.evidence.recompute import min_epsilon
    from dpscale.audit.evidence.sensitivities import (
        SMOOTHING,
        components,
        delta_of_mu,
        feature_bounds,
        grown_delta,
        label,
        link_events,
    )
else:  # in a bundle, in which no files may be created
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).parent))
    import shapes
    from crosscheck import SHARES, budget, cost_of as draw_costs, tomllib
    from recompute import min_epsilon
    from sensitivities import (
        SMOOTHING,
        components,
        delta_of_mu,
        feature_bounds,
        grown_delta,
        label,
        link_events,
    )

Fields = dict[str, Any]
Tables = dict[str, Any]  # content of the files of a part, by table
CUT = 3  # rows of a unit beyond its bound are counted up to so many times the bound
PARTS = {"searches": ("-domain", "domain"), "units": ("-units", "units")}  # end of the entry, and folder of the run
ROUNDING, WITHIN = 1e-8, 1e-6  # relative tolerances: of tails of the noise, and of a claim
LEAST = Fraction(9, 10)  # of the charge that the noise must cost
MOST_SPLIT = 2000
OF_LINKS = ("name", "relation", "moved", "bound", "parents")  # values that are those of draws.json


def squared_mu(noise: Fields, rows: int) -> Fraction:
    """Return μ² of a histogram in whose counts a unit has `rows` rows."""
    if int(noise["variance"]) <= SMOOTHING or int(noise["multiplier"]) < 1:
        raise ValueError("invalid noise")
    return Fraction((int(noise["multiplier"]) * rows) ** 2, int(noise["variance"]) - SMOOTHING)


def tail(distance: int, variance: int) -> float:
    """Return a bound of P(z ≥ distance): the tail of a normal variable from distance − 1/2, where it is convex."""
    if distance * 2 - 1 < 2 * math.sqrt(variance):
        return 1.0
    return 0.5 * math.erfc((distance - 0.5) / math.sqrt(2 * variance))


def additive_delta(noise: Fields, rows: int) -> float:
    """Return the largest probability that a value of one unit alone passes the threshold."""
    threshold, step, variance = (int(noise[name]) for name in ("threshold", "multiplier", "variance"))
    passing = [tail(threshold - step * own, variance) for own in range(1, min(rows, MOST_SPLIT) + 1)]
    if max(passing) >= 1:
        return 1.0
    losses = [-math.log1p(-one) for one in passing]
    if rows > MOST_SPLIT:  # a lower bound of the largest δ: equal parts of any size
        whole = -math.log1p(-tail(threshold - step * rows, variance))
        return -math.expm1(-max(whole, *(loss * (rows // (at + 1)) for at, loss in enumerate(losses))))
    best = [0.0]
    for total in range(1, rows + 1):
        best.append(max(losses[own - 1] + best[total - own] for own in range(1, total + 1)))
    return -math.expm1(-best[rows])


def vote_delta(noise: Fields, values: int) -> float:
    """Return the largest probability that a value of one unit alone passes the threshold of votes."""
    threshold, step, variance, vote = (int(noise[name]) for name in ("threshold", "multiplier", "variance", "vote"))
    found = 0.0
    for own in range(1, min(values, vote**2) + 1):
        passing = tail(threshold - step * math.isqrt(vote**2 // own), variance)
        found = max(found, 1.0 if passing >= 1 else -math.expm1(own * math.log1p(-passing)))
    if values > vote**2:  # such votes have no weight
        found = max(found, -math.expm1(values * math.log1p(-tail(threshold, variance))))
    return found


def dearest_path(nodes: list[Any], rows: int) -> Fraction:
    """Return the largest sum of μ² on a path of a binary tree."""
    own: dict[tuple[int, int], Fraction] = {}
    for level, index, multiplier, variance, _ in nodes:
        place = int(level), int(index)
        cost = squared_mu({"multiplier": multiplier, "variance": variance}, rows)
        own[place] = own.get(place, Fraction(0)) + cost
    sums: dict[tuple[int, int], Fraction] = {}
    for level, index in sorted(own):
        sums[level, index] = own[level, index] + sums.get((level - 1, index >> 1), Fraction(0))
    return max(sums.values(), default=Fraction(0))


def cost_of(search: Fields, rows: int) -> tuple[Fraction, float]:
    """Return μ² and the additive δ of a search."""
    noise = search["measurement"]
    kind = noise["search"]
    if kind == "edges":
        return dearest_path(search["nodes"], rows), 0.0
    levels = int(noise["levels"]) if kind == "nodes" else 1
    if "vote" in noise:  # of a unit, with r values and floor(vote/sqrt(r)) for each, whose squares sum to vote²
        return squared_mu(noise, int(noise["vote"])), vote_delta(noise, rows)
    return squared_mu(noise, rows) * levels, additive_delta(noise, rows) if kind == "values" else 0.0


def faults(folder: str | Path) -> list[str]:
    """Return the claims about searches and numbers of units that fail; none if all are correct."""
    names = ("draws", "strategies", "ledger", "run-files")
    files = {name: json.loads((Path(folder) / f"{name}.json").read_text("utf-8")) for name in names}
    releases, found = {row["release"]: row for row in files["ledger"]["releases"]}, list[str]()
    entries, parts = [releases[files["draws"]["release"]]], dict[str, Tables]()
    for name, (end, place) in PARTS.items():
        entry, own = releases.get(files["draws"]["release"] + end), parts.setdefault(name, {})
        for table in tables_of(files):
            path = Path(folder) / file_of(name, table)
            if path.exists():
                own[table["name"]] = json.loads(path.read_text("utf-8"))
                if files["run-files"].get(f"{table['folder']}{place}/{name}.json") != digest_of(path):
                    found.append(f"{path.name} differs from the file of the run")
        if (entry is None) != (not own):
            return [*found, f"the {name} are not on the ledger" if own else f"the {name} on the ledger are in no file"]
        if entry is not None:
            entries.append(entry)
            found += _charge_faults(name, entry["cost"], [
                part_cost(name, own[table["name"]], table) for table in tables_of(files) if table["name"] in own
            ])  # fmt: skip
    found += _allocation_faults(Path(folder), files, releases, entries)
    return found + (list(_job_faults(Path(folder), files, parts, entries)) if tomllib is not None else [])


def _allocation_faults(folder: Path, files: Fields, releases: Fields, entries: list[Fields]) -> list[str]:
    """Return faults of the first measurement, and add its entry to those of the release."""
    entry, path = releases.get(files["draws"]["release"] + "-allocation"), folder / "allocation.json"
    if (entry is None) != (not path.exists()):
        return ["the first measurement is on the ledger or in allocation.json, but not in both"]
    if entry is None:
        return []
    entries.append(entry)
    content = json.loads(path.read_text("utf-8"))
    found, total = list[str](), Fraction(0)
    if files["run-files"].get("allocation/allocation.json") != content["sha256"]:
        found.append("allocation.json has another hash than the file of the run")
    for own, link in zip(content["components"], links_of(files), strict=True):
        found += [f"allocation.json has another value of {name} of {label(link)}" for name in OF_LINKS
                  if own[name] != link[name]]  # fmt: skip
        if own["clips"] != [None, None]:
            found.append(f"allocation.json has clipped features of {label(link)}")
        events, wrong = link_events(own)
        found, total = found + wrong, total + sum((cost * count for (_, cost), count in events.items()), Fraction(0))
    rows = {table["name"]: int(table["rows_per_unit"]) * int(table["steps"]) for table in tables_of(files)}
    for table in content["tables"]:
        if rows[table["name"]] != int(table["rows_per_unit"]):
            found.append(f"allocation.json has another number of rows of a unit in {table['name']}")
        total += _table_cost(table)
    parents = {link["name"]: int(link["parents"]) for link in links_of(files)}
    for one in content["degrees"]:
        if parents[one["name"]] != int(one["rows_per_unit"]):
            found.append(f"allocation.json has another number of rows of a unit among the parents of {one['name']}")
        [draw] = one["draws"]
        total += squared_mu(draw, int(one["rows_per_unit"]))
    return [*found, *_charge_faults("first measurement", entry["cost"], [(total, 0.0)])]


def links_of(files: Fields) -> list[Fields]:
    """Return the components that are links."""
    return [one for one in components(files["draws"]) if one["kind"] == "link"]


def _division_faults(folder: Path, files: Fields, job: Fields, domains: Mapping[str, Fields], known: list[Fields]
                     ) -> Iterator[str]:  # fmt: skip
    """Yield parts of the first measurement that are not those of the job: statistics, cells, shares and files."""
    path = folder / "allocation.json"
    if not path.exists():
        return
    content = json.loads(path.read_text("utf-8"))
    known = [one for one in known if not one["name"].startswith("joins.")]  # joins have equal shares of all parts
    cells = {name: _public_cells(one) for name, one in domains.items()}
    links, counted, bounded = (list(one) for one in _measured_links(job, known))
    for own, link in zip(content["components"], (one for one in known if one["kind"] == "link"), strict=True):
        ends = (link["settings"][end] for end in ("parent", "child"))
        if own["sizes"] != [cells[f"domain.{end}.toml"] for end in ends]:
            yield f"allocation.json has other cells of {label(link)}"
        wanted = [*(["links"] if link["name"] in counted else []), "u", "v", "both"]
        if [draw["statistic"] for draw in own["draws"]] != wanted:
            yield f"allocation.json has other statistics of {label(link)} than the job"
    for table in content["tables"]:
        if table["sizes"] != cells[f"domain.{table['name']}.toml"]:
            yield f"allocation.json has other cells of table {table['name']}"
    tables = [one["name"] for one in known if one["kind"] == "table" and one["name"] not in links]
    if [one["name"] for one in content["tables"]] != tables:
        yield "allocation.json has the rows of other tables than the job"
    if sorted(one["name"] for one in content["degrees"]) != sorted(bounded):
        yield "allocation.json has the degrees of other links than the job"
    shares = {name: share for name, share in content["shares"].items() if not name.startswith("joins.")}
    if shares != {f"{one['kind']}s.{one['name']}": one["share"] for one in known}:
        yield "allocation.json and job.toml have different shares"
    folders = [(f"{kind}.{one['name']}", one) for kind, name in FOLDERS.items() for one in content[name]]
    wanted = [f"allocation/{place}/{draw['file']}" for place, one in folders for draw in one["draws"]]
    if missing := next((name for name in wanted if name not in files["run-files"]), None):
        yield f"run-files.json lacks {missing}"


FOLDERS = {"links": "components", "tables": "tables", "degrees": "degrees"}  # folders of the first measurement


def _measured_links(job: Fields, known: list[Fields]) -> tuple[set[str], set[str], set[str]]:
    """Return tables below a private parent, links whose number is counted, and links of which degrees are."""
    private = {one["name"] for one in known if one["kind"] == "table"}
    replaced = any(link.get("protects") == "both" for link in job["link"])
    units = private.intersection([] if replaced else shapes.unit_rows(job)[1])
    below, counted, bounded = set[str](), set[str](), set[str]()
    for link in job["link"]:
        within = link["parent"] == link["child"]
        if link.get("via") is None and not within and {link["parent"], link["child"]} <= units:
            below.add(link["child"])
            counted.add(link["name"])
        if link.get("via") is not None and link.get("links") is None:
            counted.add(link["name"])
        if link["parent"] in units and not within:
            bounded.add(link["name"])
    return below, counted, bounded


def _public_cells(domain: Fields) -> list[int]:
    """Return the number of cells of every attribute that no search has found."""
    found = domain.get("discovered", ())
    return shapes.sizes({"attributes": {name: one for name, one in domain["attributes"].items() if name not in found}})


def _table_cost(table: Fields) -> Fraction:
    """Return μ² of the number of rows of a table and of the sums of its attributes."""
    squared = {"rows": 1, "ones": feature_bounds(table["sizes"], None)[0]}
    if [one["statistic"] for one in table["draws"]] != list(squared):
        raise ValueError("a draw of a table that is not measured")
    return sum((squared_mu(one, int(table["rows_per_unit"])) * squared[one["statistic"]] for one in table["draws"]),
               Fraction(0))  # fmt: skip


def tables_of(files: Fields) -> list[Fields]:
    """Return the components that are tables."""
    return [one for one in components(files["draws"]) if one["kind"] == "table"]


def file_of(name: str, table: Fields) -> str:
    """Return the name of the file of a table's searches or units: with the name of the table if there are several."""
    return f"{name}.{table['name']}.json" if table["folder"] else f"{name}.json"


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def part_cost(name: str, content: Any, table: Fields) -> tuple[Fraction, float]:
    """Return the cost of the searches or units of a table to a unit of the job, which is some steps of the table's."""
    rows, steps = int(table["rows_per_unit"]), int(table["steps"])
    if name == "units":
        costs = unit_costs(content, rows)
        power = 1 if any("laplace" in one for one in content) else 2
    else:
        costs, power = [cost_of(one, rows) for one in content.values()], 2
    cost, delta = sum((one for one, _ in costs), Fraction(0)), sum(one for _, one in costs)
    grown = grown_delta(Fraction(delta), math.sqrt(cost), math.inf, steps) if delta else 0.0
    return cost * steps**power, float(grown)


def unit_costs(sets: list[Fields], rows: int) -> list[tuple[Fraction, float]]:
    """Return the cost of the numbers of distinct units of each set, and of the rows that are cut.

    A unit is in at most `rows` cells, once in each, and it has at most `CUT` times as many rows that are cut.
    """
    found = []
    for one in sets:
        first = CUT * rows if one.get("count") == "cut" else rows
        if "laplace" in one:
            found.append((Fraction(int(one["multiplier"]) * first, int(one["laplace"])), 0.0))
        else:
            squared = first**2 if one.get("count") == "cut" else rows
            found.append((Fraction(int(one["multiplier"]) ** 2 * squared, int(one["variance"]) - SMOOTHING), 0.0))
    return found


def _charge_faults(name: str, cost: Fields, costs: list[tuple[Fraction, float]]) -> Iterator[str]:
    """Yield a fault if draws cost more than was charged, or if their noise is larger than the charge permits."""
    squared, delta = sum((one for one, _ in costs), Fraction(0)), sum(one for _, one in costs)
    paid, added = (
        Fraction(cost.get("gaussian") or 0) + Fraction(cost.get("pure") or 0),
        float(Fraction(cost.get("delta") or 0)),
    )
    if squared > paid * Fraction(1 + 1e-12):
        yield f"the {name} cost {float(squared):.9g}, but {float(paid):.9g} was charged"
    if squared < LEAST * paid:
        yield f"the {name} cost only {float(squared / paid):.3g} of the charge"
    if delta > added * (1 + ROUNDING):
        yield f"the {name} have an additive δ of {delta:.9g}, but {added:.9g} was charged"


def _job_faults(folder: Path, files: Fields, parts: Mapping[str, Tables], entries: list[Fields]) -> Iterator[str]:
    """Yield differences from the job and the domains."""
    job = tomllib.loads((folder / "job.toml").read_text("utf-8"))
    domains = {name: tomllib.loads((folder / name).read_text("utf-8")) for name in shapes.domain_files(job)}
    for table in tables_of(files):
        searches, section = parts["searches"].get(table["name"], {}), job.get("tables", {}).get(table["name"], job)
        if list(domains[table["domain"]].get("discovered", [])) != list(searches):
            yield f"{table['domain']} and {file_of('searches', table)} name different attributes"
        if wrong := [name for name, one in searches.items() if one["measurement"]["attribute"] != name]:
            yield f"{file_of('searches', table)} has the search of another attribute under {wrong[0]}"
        counted = any(part.get("count") == "units" for part in section.get("workload", ()))
        drawn = parts["units"].get(table["name"], ())
        kinds = {one.get("count") for one in drawn}
        if any(int(one["rows_per_unit"]) != int(table["rows_per_unit"]) for one in drawn):
            yield f"{file_of('units', table)} has another number of rows of a unit"
        if any(int(one.get("reach", 0)) != CUT + 1 for one in drawn if one.get("count") == "cut"):
            yield f"{file_of('units', table)} counts the rows that are cut up to another number"
        if counted != ("units" in kinds):
            yield f"job.toml and {file_of('units', table)} disagree on whether units are counted"
        if bool(section.get("units", {}).get("cut")) != ("cut" in kinds):
            yield f"job.toml and {file_of('units', table)} disagree on whether the rows that are cut are counted"
    known = shapes.expected(job, domains, files)
    yield from _division_faults(folder, files, job, domains, known)
    if len({(one.get("unit"), one.get("unit_table"), one.get("relation")) for one in entries}) > 1:
        yield "the entries of the release protect different units"
    privacy, costs = job["privacy"], [one["cost"] for one in entries]
    if privacy.get("epsilon") is not None and privacy.get("delta") is None:
        if sum(Fraction(one.get("pure") or 0) for one in costs) > Fraction(privacy["epsilon"]) * Fraction(1 + WITHIN):
            yield "the entries of the release cost more than the epsilon of job.toml"
        return
    squared = sum((Fraction(one.get("gaussian") or 0) for one in costs), Fraction(0))
    if squared > budget(privacy) * Fraction(1 + WITHIN):
        yield "the entries of the release cost more than the budget of job.toml"
    if privacy.get("epsilon") is not None:
        left = privacy["delta"] - float(sum(Fraction(one.get("delta") or 0) for one in costs))
        mu = math.sqrt(squared)
        if left <= 0 or min_epsilon(lambda epsilon: delta_of_mu(mu, epsilon), left) > privacy["epsilon"] * (1 + WITHIN):
            yield "the entries of the release have a larger epsilon than job.toml at its delta"
    yield from _share_faults(files, parts, known, (squared, budget(privacy)))


def _share_faults(
    files: Fields, parts: Mapping[str, Tables], known: list[Fields], whole: tuple[Fraction, Fraction]
) -> Iterator[str]:
    """Yield components whose draws, with their searches and units, do not cost their share of the charge.

    `whole` is the charge of all entries, and the budget of the job.
    """
    charged, most = whole
    for component, facts in zip(components(files["draws"]), known, strict=True):
        spent = sum((cost * count for (kind, cost), count in draw_costs(component, files).items()
                     if kind == "gaussian"), Fraction(0))  # fmt: skip
        for name, own in parts.items():
            if component["kind"] == "table" and component["name"] in own:
                spent += part_cost(name, own[component["name"]], component)[0]
        share, chosen = Fraction(facts["share"]), component["selections"] or component.get("loop")
        if spent > share * most * Fraction(1 + SHARES):
            yield f"{label(component)} costs more than its share of the budget in job.toml"
        if spent < LEAST * share * charged and not chosen:
            yield f"the draws of {label(component)} cost only {float(spent / charged / share):.3g} of its share"


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    wrong = faults(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    print(
        *(f"FAULT: {one}" for one in wrong)
        if wrong
        else ["all claims about searches and numbers of units are correct"],
        sep="\n",
    )
    sys.exit(1 if wrong else 0)
