"""Evidence bundles of several tables and links: every component is recomputed, and falsifications are detected."""

import json
import math
import re
import shutil
from fractions import Fraction

import numpy as np
import pytest
import tomli_w

import dpscale as dp
from dpscale.audit.evidence import bundle, recompute, sensitivities
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.job import Job
from dpscale.job.allocation import LinkBudget
from dpscale.measurement.value_files import META, file_name, open_values, read_group, write_values
from dpscale.privacy.protection import ADD_REMOVE, REPLACE
from dpscale.relational.assignment import PairTables
from dpscale.relational.budget_shares import degrees_squared
from dpscale.relational.features import Features, Side, squared_distance
from dpscale.runs.links.link_facts import link_bounds, sum_bounds
from dpscale.runs.links.measuring import SUMS, LinkDraws
from dpscale.runs.opening import open_run
from dpscale.runs.run import ENTRIES
from dpscale.runs.statement import stated_parts
from tests.audit.forging import (
    forge,
    rechain,
    records_of,
    remove,
    restate,
    restate_answers,
    run_script,
    scale_noise,
    selections_of,
)
from tests.audit.leaks import leaks_under
from tests.audit.test_bundle import PASSED, recomputed, records_now, run_command
from tests.links import small as shop
from tests.links.small import table_section
from tests.messages import refused
from tests.running import begin_linked, linked

PRIVACY = {"epsilon": 3.0, "delta": 1e-6, "dataset": "shop"}
UNSEEDED = {"scheduler": "synchronous"}


def rooted_job():
    """Foreign keys, a public parent, and a published link over a table of pairs; one table is adaptive."""
    job = shop.make_job() | {"privacy": PRIVACY, "engine": UNSEEDED}
    job["tables"]["persons"] |= {"mechanism": "residual-planner"}
    job["link"][1] |= {"mechanism": "published", "rounds": 2, "marginals": 2}
    return job


def replaced_job():
    """Two private tables whose rows are replaced, with links between them and within one of them."""
    tables = {"persons": table_section("persons", "id", mechanism="residual-planner"),
              "products": table_section("products", "code", mechanism="identity")}  # fmt: skip
    link = {"kind": "many-to-many", "parent": "persons", "child": "products", "via": "data/ratings/*.parquet",
            "child_key": "code", "max_degree": 30, "protects": "both"}  # fmt: skip
    return {"tables": tables, "link": [link], "privacy": {"rho": 2.0, "dataset": "shop"}, "engine": UNSEEDED,
            "budget": {"method": "equal", "tables": {"persons": {"share": 0.3}}}}  # fmt: skip


JOBS = {"rooted": rooted_job, "replaced": replaced_job}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of both jobs, in folders with their data and ledgers."""
    places = {name: tmp_path_factory.mktemp(name) / "a place of ours" for name in JOBS}
    for name, place in places.items():
        place.mkdir()
        dp.run(shop.write_job(place, JOBS[name]()) if name == "rooted" else write_job(place), place / "run")
    return {name: place / "run" for name, place in places.items()}


def write_job(place):
    """Write the job of replaced rows, without the sections of the shop that it lacks."""
    path = shop.write_job(place)
    path.write_text(tomli_w.dumps(replaced_job()))
    return path


@pytest.fixture(scope="module")
def bundles(runs):
    return {name: bundle.write_bundle(open_run(run), PASSED) for name, run in runs.items()}


def file_of(name):
    """Value file of a draw of a link."""
    return file_name(LinkDraws.number(name), (0, 1))


def statistic(files, part, name):
    """Record of a draw of a link."""
    return next(one for one in records_of(files, part) if one["file"].endswith(file_of(name)))


# ---- bundles that agree ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", JOBS)
def test_components_cost_nearly_the_whole_charge(bundles, name):
    folder = bundles[name]
    found = check_bundle(folder)
    expected = {"rooted": ["links.homes", "links.orders", "links.ratings", "tables.orders", "tables.persons"],
                "replaced": ["links.links", "tables.persons", "tables.products"]}  # fmt: skip
    assert found["parts"] == expected[name]
    assert found["own_scripts"]
    assert found["private"]
    events, faults = recomputed(folder)
    paid, due = recompute.charged_and_due(recompute.read(folder, "ledger.json")["releases"][0]["cost"], events)
    assert not faults
    assert paid * 999 / 1000 < due <= paid


@pytest.mark.parametrize("name", JOBS)
def test_script_verifies_bundle_alone_and_with_dp_accounting(bundles, tmp_path, name):
    folder = shutil.copytree(bundles[name], tmp_path / "bundle")
    alone = run_script(folder)
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout.endswith("all claims are correct\n")
    pytest.importorskip("dp_accounting")
    files = recompute.read_files(folder)
    claim, events = files["claims"]["release"], recompute.events_of(files)["release"]
    accounted, wrong = recompute.account("release", claim, events) if claim["epsilon"] else ({}, "")
    assert not wrong
    if accounted:
        assert accounted["dp-accounting, PLD"] == pytest.approx(claim["epsilon"], rel=0.01)
    assert check_bundle(folder)["sound"], "nothing is left behind by the script"


def test_facts_without_verification_are_listed(bundles):
    unverified = " ".join(check_bundle(bundles["rooted"])["unverified"])
    assert "bounds and noise of draws of links.homes that were planned from released values" in unverified
    assert "links.ratings" not in unverified, "a published link has no such draws"
    assert "seals no hash" not in unverified


def test_bundle_matches_ledger(bundles, runs):
    for name, run in runs.items():
        code, output, _ = run_command("evidence", "--check", bundles[name], "--ledger", run.parent / "ledger.sqlite")
        assert code == 0
        assert "its ledger entries match the chain" in output


@pytest.mark.parametrize("name", JOBS)
def test_bundle_contains_no_path_tag_or_exact_number(bundles, runs, name):
    run = linked(runs[name])
    forbidden = ["a place of ours", str(runs[name]), run.manifest["snapshot"], run.manifest["secret_tag"]]
    forbidden += [one.manifest[key] for one in run.tables.values() for key in ("snapshot", "secret_tag")]
    for path in bundles[name].iterdir():
        text = path.read_text()
        assert not [one for one in forbidden if one in text], path.name
    assert leaks_under([bundles[name]]) == {}
    frames = shop.make_frames()
    numbers = {str(len(frames[table])) for table in ("persons", "orders", "ratings")}
    texts = "".join((bundles[name] / file).read_text() for file in ("parts.json", "checklist.json"))
    assert not numbers & set(re.findall(r"(?<![\w.])\d+(?![\w.])", texts)), "no number of rows or links"
    public = {(one, *path.relative_to(run.path).parts[:1]) for path in run.path.rglob("*.key") for one in [path.name]}
    assert not public, "the key is destroyed"
    assert not [one for one in recompute.read(bundles[name], "run-files.json") if one.endswith((".key", "log.jsonl"))]


def test_run_files_list_public_files_of_every_component(bundles):
    names = set(recompute.read(bundles["rooted"], "run-files.json"))
    expected = ["tables/persons/plan/plan.json", "tables/orders/measurements/round-001.json", "report.html",
                f"links/orders/{file_of('degrees')}", "links/orders/shares.json", "links/ratings/round-00.json",
                f"links/ratings/{file_of('round-01')}", "synthetic/ratings/part-00000.parquet"]  # fmt: skip
    for one in expected:
        assert one in names


# ---- files of the run that do not fit --------------------------------------------------------------------------------


@pytest.fixture
def run_copy(runs, tmp_path):
    """Copies the run next to its ledger, whose place is in the job."""
    return open_run(shutil.copytree(runs["rooted"], tmp_path / "run"))


def save(path, values):
    """Write other values with the labels of a file, or values without a draw."""
    label, head = "{}", {}
    if path.exists():
        file, _ = open_values(path)
        with file:
            label, head = read_group(file, 0).labels[0].as_py(), json.loads(file.schema_arrow.metadata[META])
    write_values(path, head, [(label, np.array(values, float))])


EDITS = {
    "stray values": lambda links: save(links / "orders" / file_of("links"), [1.0]),
    "missing values": lambda links: (links / "orders" / file_of("degrees")).unlink(),
    "other numbers": lambda links: save(links / "orders" / file_of("degrees"), np.ones(5)),
    "off the lattice": lambda links: save(links / "ratings" / file_of("links"), np.array([1 / 3])),
    "missing round": lambda links: (links / "ratings" / file_of("round-01")).unlink(),
    "missing plan of sums": lambda links: (links / "homes" / "shares.json").unlink(),
    "other file": lambda links: (links / "homes" / "more.json").write_text("{}"),
    "unknown link": lambda links: (links / "other").mkdir(),
}


@pytest.mark.parametrize("edit", EDITS)
def test_file_of_link_that_does_not_fit_is_refused(run_copy, edit):
    change = EDITS[edit]
    change(run_copy.path / "links")
    with refused(JobError):
        records_now(run_copy)


# ---- falsifications --------------------------------------------------------------------------------------------------


def edit_draw(part, name, change):
    def edited(files):
        change(statistic(files, part, name))

    return edited


def edit_part(part, change, agreeing=True):
    """Edit the facts of a part, with the costs and events that follow."""

    def edited(files):
        change(files["parts"][part])
        if agreeing:
            restate(files)

    return edited


def cheaper_claim(files):
    files["claims"]["release"]["epsilon"] *= 0.9


def smaller_charge(files):
    """Lower the charge everywhere in proportion to a smaller claim."""
    for cost in (files["ledger"]["releases"][0]["cost"], files["claims"]["release"]["cost"]):
        cost["gaussian"] = str(Fraction(cost["gaussian"]) * 9 / 10)


def without_part(part):
    """Remove a part from all files, with its events."""

    def removed(files):
        del files["parts"][part]
        without_records(part)(files)

    return removed


def without_records(part):
    """Remove the records of a part and their files, with its events."""

    def removed(files):
        gone = records_of(files, part)
        remove(files, [*gone, *selections_of(files, part)])
        for one in gone:
            files["run-files"].pop(one["file"], None)
        restate(files)

    return removed


def without_draw(part, name):
    def removed(files):
        remove(files, [statistic(files, part, name)])
        restate(files)

    return removed


def without_draw_and_file(part, name):
    """Remove also the hash of the value file."""

    def removed(files):
        del files["run-files"][statistic(files, part, name)["file"]]
        without_draw(part, name)(files)

    return removed


def without_draw_of_table(files):
    remove(files, records_of(files, "tables.persons")[-1:])
    restate(files)


def swapped_tables(files):
    swapped = {"tables.persons": "tables.orders", "tables.orders": "tables.persons"}
    for one in files["records"]["records"]:
        one["part"] = swapped.get(one["part"], one["part"])


def swapped_tables_that_agree(files):
    """State also the costs that follow."""
    axes = {name: one["axes"] for name, one in files["parts"].items() if name.startswith("tables.")}
    swapped_tables(files)
    files["parts"]["tables.persons"]["axes"] = axes["tables.orders"]
    files["parts"]["tables.orders"]["axes"] = axes["tables.persons"]
    restate(files)


def smaller_sensitivity(files):
    """Claim fewer links of a unit, and the draws that this would give."""
    for bound in files["parts"]["links.orders"]["bounds"].values():
        bound["changes"] = [[[1, 3]]]
    restate(files)


def smaller_sensitivity_at_the_same_cost(files):
    """Claim half of the sensitivity, and a fourth of the noise."""
    for bound in files["parts"]["links.orders"]["bounds"].values():
        bound["changes"] = [[[max(number // 4, 1), change] for number, change in one] for one in bound["changes"]]
    for record in records_of(files, "links.orders"):
        scale_noise(record, Fraction(int(record["squared_l2"]) // 4, int(record["squared_l2"])))
    restate(files)


def larger_bound_in_job(files):
    files["job"]["link"][0]["max_degree"] = 5


def other_share(files):
    files["job"]["link"][0]["share"] = 0.01


def other_domain(files):
    files["domain.orders"]["attributes"]["month"]["size"] = 4


def other_domain_of_link(files):
    files["domain.products"]["attributes"]["kind"]["size"] = 4


def public_table(files):
    files["job"]["tables"]["orders"]["public"] = True


def clipped_more(files):
    """State smaller bounds of the sums that were planned from released values."""
    for record in records_of(files, "links.homes"):
        if not isinstance(record["bound"], str):
            record["bound"]["changes"] = [[[1, 1]] for _ in record["bound"]["changes"]]
    restate(files)


def other_scale(files):
    selections_of(files, "links.ratings")[0]["scale"] = "1/1000000"


def fewer_selections(files):
    selections_of(files, "links.ratings")[0]["count"] = 1
    restate(files)


def cheaper_selections(files):
    """State a smaller range and scale, with the costs that follow."""
    for one in selections_of(files, "links.ratings"):
        one |= {name: str(Fraction(one[name]) / 2) for name in ("range", "scale")} | {
            "cost": str(Fraction(one["cost"]) / 4)
        }
    restate(files)


def fewer_rounds(files):
    remove(files, [statistic(files, "links.ratings", "round-01"), selections_of(files, "links.ratings")[-1]])
    restate(files)


def more_noise(files):
    """Claim more noise for a whole link, with events that agree."""
    for draw in records_of(files, "links.orders"):
        scale_noise(draw, 4)
    restate(files)


def less_noise(files):
    """State less noise for a link, with events that agree."""
    for draw in records_of(files, "links.homes"):
        scale_noise(draw, 0.5)
    restate(files)


def moved_cost(files):
    """Move cost from a link to a table, at nearly the same total."""
    for draw in records_of(files, "links.homes"):
        scale_noise(draw, 1.2)
    for draw in records_of(files, "tables.persons"):
        scale_noise(draw, 0.95)
    restate(files)


def unknown_values(files):
    files["run-files"][f"links/orders/{file_of('links')}"] = "0" * 64


def gone_values(files):
    del files["run-files"][f"links/orders/{file_of('degrees')}"]


def extra_file(files):
    files["more"] = {"all": "well"}


def other_answer(files):
    row = next(row for row in files["checklist"] if row.get("part") == "links.ratings")
    row["answer"] = "neighbours differ in at most 1 links"


def missing_answers(files):
    files["checklist"] = [row for row in files["checklist"] if row.get("part") != "links.homes"]


def other_contribution(files):
    """State another contribution in the facts and in the answers."""
    files["parts"]["links.ratings"]["contribution"] = "neighbours differ in at most 1 links"
    restate_answers(files)


FORGERIES = {
    "variance": edit_draw("links.orders", "degrees", lambda draw: scale_noise(draw, 0.5)),
    "variance of sum": edit_draw("links.homes", "u", lambda draw: scale_noise(draw, 2)),
    "variance of round": edit_draw("links.ratings", "round-01", lambda draw: scale_noise(draw, 0.5)),
    "multiplier": edit_draw("links.orders", "siblings", lambda draw: draw.update(multiplier="4096")),
    "sensitivity": edit_draw("links.orders", "degrees", lambda draw: draw.update(squared_l2="1")),
    "bound": edit_draw("links.orders", "degrees", lambda draw: draw.update(bound="siblings")),
    "file": edit_draw("links.orders", "degrees", lambda draw: draw.update(
        file=draw["file"].replace(file_of("degrees"), file_of("links")))),
    "decision": edit_draw("links.orders", "degrees", lambda draw: draw.update(decision=0)),
    "marginals": edit_draw("links.ratings", "round-00", lambda draw: draw.update(count=1)),
    "group": edit_draw("links.ratings", "links", lambda draw: draw.update(group="one")),
    "moved": smaller_sensitivity,
    "moved at the same cost": smaller_sensitivity_at_the_same_cost,
    "roles": edit_part("links.orders", lambda link: link["bounds"]["degrees"].update(changes=[[[6, 2]]])),
    "steps": edit_part("tables.orders", lambda table: table.update(steps=2)),
    "rows per unit": edit_part(
        "tables.orders", lambda table: table["bounds"]["rows"].update(changes=[[[1, 1]]])
    ),
    "part that may end early": edit_part("links.orders", lambda link: link.update(selected="round")),
    "cost of a part": edit_part("links.orders", lambda link: link["costs"][""].update(gaussian="1")),
    "mechanism": edit_part("tables.persons", lambda table: table.update(mechanism="identity")),
    "removed draw": without_draw("links.ratings", "links"),
    "removed draw with its file": without_draw_and_file("links.orders", "degrees"),
    "removed sum": without_draw("links.homes", "both"),
    "removed draw of table": without_draw_of_table,
    "removed table": without_part("tables.orders"),
    "removed link": without_part("links.homes"),
    "removed records of a table": without_records("tables.orders"),
    "removed records of a link": without_records("links.homes"),
    "swapped tables": swapped_tables,
    "swapped tables that agree": swapped_tables_that_agree,
    "cheaper claim": cheaper_claim,
    "smaller charge": smaller_charge,
    "bound in job": larger_bound_in_job,
    "share in job": other_share,
    "domain": other_domain,
    "domain of link": other_domain_of_link,
    "public table": public_table,
    "clips": clipped_more,
    "scale": other_scale,
    "selections": fewer_selections,
    "cheaper selections": cheaper_selections,
    "removed records of a loop": without_records("links.ratings"),
    "removed selections": lambda files: (remove(files, selections_of(files, "links.ratings")), restate(files)),
    "removed selections of a round": lambda files: (
        remove(files, selections_of(files, "links.ratings")[:1]), restate(files)),
    "selections of other draws": lambda files: selections_of(files, "links.ratings")[0].update(chooses=13),
    "rounds": fewer_rounds,
    "more noise": more_noise,
    "less noise": less_noise,
    "moved cost": moved_cost,
    "unknown values": unknown_values,
    "gone values": gone_values,
    "answer": other_answer,
    "missing answers": missing_answers,
    "contribution": other_contribution,
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_falsification_is_detected_by_script_and_check(bundles, tmp_path, name):
    copy = forge(bundles["rooted"], tmp_path / "forged", FORGERIES[name])
    script = run_script(copy)
    assert (script.returncode, script.stderr) == (1, "")
    assert "FAULT: " in script.stdout
    with refused(JobError):
        check_bundle(copy)


def test_extra_file_is_detected(bundles, tmp_path):
    with refused(JobError):
        check_bundle(forge(bundles["rooted"], tmp_path / "forged", extra_file))


def single_step(files):
    files["parts"]["tables.persons"]["steps"] = 1


def added_rows(files):
    """The bounds of links that are added instead of replaced."""
    bounds = files["parts"]["links.links"]["bounds"]
    bounds["degrees"]["changes"] = [[[30, 1]]]
    for record in records_of(files, "links.links"):
        if "group" in record:
            record["bound"]["changes"] = record["bound"]["changes"][:1]


def fewer_links(files):
    files["parts"]["links.links"]["bounds"]["links"]["changes"] = [[[1, 1]]]


@pytest.mark.parametrize(("change", "sealed"), [
    (single_step, True), (added_rows, True), (fewer_links, True), (single_step, False), (added_rows, False),
])  # fmt: skip
def test_weaker_neighbours_of_replaced_rows_are_detected(bundles, tmp_path, change, sealed):
    """A consistent bundle whose draws are those of added rows, or of fewer links; also if the hash chain is forged."""

    def changed(files):
        change(files)
        restate(files)
        if not sealed:
            rechain(files)  # the draws cost much less than the charge

    copy = forge(bundles["replaced"], tmp_path / "forged", changed)
    assert run_script(copy).returncode == 1
    with refused(JobError):
        check_bundle(copy)


# ---- closed forms ----------------------------------------------------------------------------------------------------


def largest(bound):
    """Squared L2 norm of a bound with one kind of changes."""
    [squared] = sensitivities.changes(bound)[0]
    return squared


def sums_at(weights, variance=10**6):
    """Records of the three sums, each with a precision in proportion to a weight."""
    noise = [{"multiplier": str(weight), "variance": str(variance + 8)} for weight in weights]
    return [{"group": "one", "part": "one", "factors": [], **one} for one in noise]


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("clips", [(None, None), (0.7, None), (1.4, 2.0), (1.0, 0.7)])
def test_bounds_of_sums_equal_brute_force_and_package(relation, clips):
    """Rows are enumerated: no two change a sum by more than the bounds, whose cost equals that of the package."""
    sizes, moved = ((2, 3), (4, 2, 5)), 3
    maps = []
    for own, clip in zip(sizes, clips, strict=True):
        rows = np.stack([one.ravel() for one in np.meshgrid(*map(np.arange, own), indexing="ij")], axis=1)
        maps.append((features := Features.of_side(Side.made(rows, own), clip), features.whole(rows).astype(object)))
    (u, phi), (v, psi) = maps
    bounds = sum_bounds(relation, u, v, moved)
    assert [bounds[name]["values"] for name in SUMS] == [len(phi[0]), len(psi[0]), len(phi[0]) * len(psi[0])]
    part = {"steps": 1, "bounds": bounds}
    for weights in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 5, 2)):
        records = [
            one | {"bound": name} for name, one in zip(SUMS, sums_at(weights), strict=True) if one["multiplier"] != "0"
        ]
        claimed = sensitivities.group_cost(records, part, {}) * 10**6 / moved**2
        squares = [Fraction(weight) ** 2 for weight in weights]
        assert claimed == squared_distance(relation, (u.squared, u.least), (v.squared, v.least), squares)
        a, b, c = squares
        ends = [(x, y) for x in phi[:: max(1, len(phi) // 6)] for y in psi[:: max(1, len(psi) // 8)]]
        sums = [(x, y, np.multiply.outer(x, y)) for x, y in ends]
        none = (phi[0] * 0, psi[0] * 0, np.multiply.outer(phi[0] * 0, psi[0]))
        for first in sums:
            for second in sums if relation == REPLACE else [none]:
                change = [((one - other) ** 2).sum() for one, other in zip(first, second, strict=True)]
                assert a * change[0] + b * change[1] + c * change[2] <= claimed


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 12, 100, 4096, 5000, 12345])
def test_norms_of_uniform_features_by_definition(relation, size):
    """A one-hot centred at 1/size, truncated to steps of 2^-12; of two values, one column."""
    features, step = Features((size,), (), None), 2**12
    if size <= 2:
        half = math.isqrt(step**2 // 2) * (size - 1)
        assert (features.squared, features.least) == (half**2, -(half**2))
    else:
        own, other = step * (size - 1) // size, step // size
        least = -2 * own * other + (size - 2) * other**2
        assert (features.squared, features.least) == (own**2 + (size - 1) * other**2, least)


def grandchildren():
    """A child of orders, whose rows belong to the persons of their orders."""
    job = rooted_job()
    job["tables"]["orders"] |= {"key": "order"}
    job["tables"]["items"] = table_section("products")
    job["budget"]["tables"] = {"items": {"share": 0.2}}
    job["link"].append({"kind": "one-to-many", "name": "items", "parent": "orders", "child": "items",
                        "child_key": "order", "max_degree": 3, "counts": []})  # fmt: skip
    return job


def counted():
    job = rooted_job()
    job["link"][1] = job["link"][1] | {"mechanism": "maxent", "counts": ["orders"]}
    del job["link"][1]["rounds"], job["link"][1]["marginals"]
    return job


def within():
    """Links within one table, as foreign keys and as pairs."""
    job = rooted_job()
    job["link"] = [{"kind": "one-to-many", "name": "managers", "parent": "persons", "child": "persons",
                    "child_key": "manager", "max_degree": 4, "nulls": "keep"},
                   {"kind": "one-to-one", "name": "orders", "parent": "persons", "child": "orders",
                    "child_key": "person"}]  # fmt: skip
    return job


def friends():
    job = replaced_job()
    del job["tables"]["products"]
    job["link"][0] |= {"name": "friends", "child": "persons", "child_key": "other", "links": 1000}
    return job


@pytest.mark.parametrize("make", [rooted_job, replaced_job, grandchildren, counted, within, friends])
def test_bounds_of_links_equal_the_sensitivities_of_their_noise(tmp_path, make):
    """The stated bounds are closed forms; the noise of a link is chosen by other code of the package."""
    shop.write_job(tmp_path)
    (tmp_path / "items.toml").write_text("")
    run = begin_linked(Job.parse(make(), tmp_path), tmp_path / "run")
    measured = 0
    for piece in run.links:
        bounds, rows = link_bounds(piece), run.neighbours.rows.get(piece.link.parent, 1)
        assert set(bounds) == {name for name, one in expected_draws(piece, rows).items() if one is not None}
        for name, squared in expected_draws(piece, rows).items():
            if squared is not None:
                assert largest(bounds[name]) == squared, name
                measured += 1
    assert measured


def expected_draws(piece: LinkBudget, rows):
    """Squared sensitivity of each draw of a link according to the package; None if it is not measured."""
    relation, child = piece.neighbours.protects.relation, piece.sizes(piece.link.child)
    history, degrees = piece.history, degrees_squared(relation, piece.link.bound, piece.roles, len(piece.places))
    return {
        "links": piece.moved**2 if piece.counted else None,
        "degrees": degrees if piece.degrees else None,
        "siblings": PairTables(child).squared(piece.link.bound, rows) if piece.siblings else None,
        "steps": history.steps_squared(rows) if history else None,
        "histories": history.parents_squared(rows) if history else None,
        "round": (2 if relation == REPLACE else 1) * piece.moved**2 if piece.loops else None,
    }


@pytest.mark.parametrize("name", JOBS)
def test_parts_have_the_costs_that_were_charged(runs, name):
    run = open_run(runs[name])
    parts = stated_parts(run, ENTRIES)
    charged = Fraction(run.manifest["privacy"]["cost"]["gaussian"])
    total = sum(Fraction(one["costs"][""]["gaussian"]) for one in parts.values())
    assert charged * (1 - Fraction(1, 10**9)) <= total <= charged
    for table in ("persons", "orders" if name == "rooted" else "products"):
        part = run.tables[table]
        assert parts[f"tables.{table}"]["steps"] == part.steps
        assert largest(parts[f"tables.{table}"]["bounds"]["rows"]) == part.planning_problem.rows_per_unit**2
