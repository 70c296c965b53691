"""Evidence bundles of several tables and links: every component is recomputed, and falsifications are detected."""

import json
import re
import shutil
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

import dpscale as dp
from dpscale.audit.evidence import bundle, crosscheck, draws, recompute, sensitivities, shapes
from dpscale.audit.evidence.check import check_bundle
from dpscale.audit.evidence.sensitivities import file_of
from dpscale.base.errors import JobError
from dpscale.job.job import CompositeJob
from dpscale.measurement.value_files import META, open_values, read_group, write_values
from dpscale.privacy.protection import ADD_REMOVE, REPLACE
from dpscale.relational.assignment import PairTables
from dpscale.relational.budget_shares import degrees_squared
from dpscale.relational.features import Features, Side, squared_distance
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.opening import open_run
from tests.audit.leaks import leaks_under
from tests.audit.test_bundle import PASSED, run_command
from tests.links import small as shop
from tests.links.small import table_section
from tests.running import begin_linked, linked

FILES = ("draws", "strategies", "events", "ledger", "selftest", "checklist", "run-files", "versions")
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
    tables = {"persons": table_section("persons", "id", mechanism="residual-planner", share=0.3),
              "products": table_section("products", "code", mechanism="identity")}  # fmt: skip
    link = {"kind": "many-to-many", "parent": "persons", "child": "products", "via": "data/ratings/*.parquet",
            "child_key": "code", "max_degree": 30, "protects": "both"}  # fmt: skip
    return {"tables": tables, "link": [link], "privacy": {"rho": 2.0, "dataset": "shop"}, "engine": UNSEEDED,
            "allocation": {"method": "equal"}}  # fmt: skip


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
    path.write_text(bundle.tomli_w.dumps(replaced_job()))
    return path


@pytest.fixture(scope="module")
def bundles(runs):
    return {name: bundle.write_bundle(open_run(run), PASSED) for name, run in runs.items()}


def forge(folder, place, change):
    """Return a copy with edited files and recomputed hashes; `change` edits a dict of the parsed files by name."""
    copy = shutil.copytree(folder, place)
    files = {name: json.loads((copy / f"{name}.json").read_text()) for name in FILES}
    tables = [path.name.removesuffix(".toml") for path in copy.glob("*.toml")]
    files |= {name: shapes_toml(copy / f"{name}.toml") for name in tables}
    before = json.dumps(files)
    change(files)
    assert json.dumps(files) != before, "a forgery that forges nothing"
    for name, content in files.items():
        json_file = name in FILES or name == "more"
        text = bundle.canonical(content) if json_file else bundle.tomli_w.dumps(content).encode()
        (copy / f"{name}{'.json' if json_file else '.toml'}").write_bytes(text)
    (copy / "hashes.json").unlink()
    contents = {path.name: path.read_bytes() for path in copy.iterdir()}
    for name, content in bundle._sealed(contents, None).items():
        (copy / name).write_bytes(content)
    return copy


def shapes_toml(path):
    return crosscheck.tomllib.loads(path.read_text())


def run_script(folder):
    return subprocess.run(
        [sys.executable, "-I", "-S", folder / "recompute.py"], capture_output=True, text=True, cwd="/"
    )


def part(files, label):
    return next(one for one in files["draws"]["components"] if sensitivities.label(one) == label)


def statistic(files, label, name):
    return next(one for one in part(files, label)["draws"] if one["statistic"] == name)


# ---- bundles that agree ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", JOBS)
def test_components_cost_nearly_the_whole_charge(bundles, name):
    folder = bundles[name]
    found, listed = check_bundle(folder), recompute.read(folder, "draws.json")
    expected = {"rooted": ["table persons", "table orders", "link orders", "link ratings", "link homes"],
                "replaced": ["table persons", "table products", "link links"]}  # fmt: skip
    assert found["components"] == expected[name]
    assert found["own_scripts"]
    assert found["private"]
    events, faults = recompute.check_draws(listed, recompute.read(folder, "strategies.json")["factors"])
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
    events = recompute.read(folder, "events.json")
    accounted, wrong = recompute.account("release", events["release"]) if events["release"]["epsilon"] else ({}, "")
    assert not wrong
    if accounted:
        assert accounted["dp-accounting, PLD"] == pytest.approx(events["release"]["epsilon"], rel=0.01)
    assert check_bundle(folder)["sound"], "nothing is left behind by the script"


def test_facts_without_verification_are_listed(bundles):
    unverified = " ".join(check_bundle(bundles["rooted"])["unverified"])
    for text in ("draws of link orders", "clipping bounds and precisions of the feature sums of link homes",
                 "domains and plans: the ledger's entry of this release seals no hash"):  # fmt: skip
        assert text in unverified
    assert "feature sums of link ratings" not in unverified, "a published link has none"


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
    texts = (bundles[name] / "draws.json").read_text() + (bundles[name] / "checklist.json").read_text()
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
    "stray values": (
        lambda links: save(links / "orders" / file_of("links"), [1.0]),
        f"{file_of('links')} of link orders belongs to",
    ),
    "missing values": (
        lambda links: (links / "orders" / file_of("degrees")).unlink(),
        f"{file_of('degrees')} of link orders is miss",
    ),
    "other numbers": (
        lambda links: save(links / "orders" / file_of("degrees"), np.ones(5)),
        "differ from its draw",
    ),
    "off the lattice": (
        lambda links: save(links / "ratings" / file_of("links"), np.array([1 / 3])),
        "differ from its draw",
    ),
    "missing round": (
        lambda links: (links / "ratings" / file_of("round-01")).unlink(),
        f"{file_of('round-01')} of link ratings is m",
    ),
    "unknown link": (lambda links: (links / "other").mkdir(), "links/other belongs to no link"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_file_of_link_that_does_not_fit_is_refused(run_copy, edit):
    change, message = EDITS[edit]
    change(run_copy.path / "links")
    with pytest.raises(JobError, match=message):
        draws.draws_and_factors(run_copy)


# ---- falsifications --------------------------------------------------------------------------------------------------


def scale_noise(draw, factor):
    draw["variance"] = str(int((int(draw["variance"]) - 8) * factor) + 8)


def edit_draw(label, name, change):
    def edited(files):
        change(statistic(files, label, name))

    return edited


def edit_part(label, change):
    def edited(files):
        change(part(files, label))

    return edited


def cheaper_claim(files):
    files["events"]["release"]["epsilon"] *= 0.9


def smaller_charge(files):
    """Lower the charge everywhere in proportion to a smaller claim."""
    for cost in (files["ledger"]["releases"][0]["cost"], files["events"]["release"]["cost"]):
        cost["gaussian"] = str(Fraction(cost["gaussian"]) * 9 / 10)
    event = files["events"]["dataset"]["events"][0]
    event |= {"cost": files["ledger"]["releases"][0]["cost"]["gaussian"], "noise_multiplier": 1.0}


def without_component(label):
    """Remove a component from all files, with its events."""

    def removed(files):
        gone = part(files, label)
        files["draws"]["components"].remove(gone)
        files["run-files"] = {name: one for name, one in files["run-files"].items()
                              if not name.startswith(gone["folder"])}  # fmt: skip
        files["checklist"] = [row for row in files["checklist"] if row.get("component") != label]
        restate_events(files)

    return removed


def restate_events(files):
    """State the events of the draws as they are listed now."""
    events, _ = sensitivities.check_draws(files["draws"], files["strategies"]["factors"])
    files["events"]["release"]["events"] = bundle._listed(events)


def without_draw(label, name):
    def removed(files):
        part(files, label)["draws"].remove(statistic(files, label, name))
        restate_events(files)

    return removed


def without_draw_of_table(files):
    part(files, "table persons")["draws"].pop()
    restate_events(files)


def swapped_tables(files):
    one, other = part(files, "table persons"), part(files, "table orders")
    for name in ("draws", "selections"):
        one[name], other[name] = other[name], one[name]


def smaller_sensitivity(files):
    """Claim fewer links of a unit, and the draws that this would give."""
    link = part(files, "link orders")
    link["moved"], link["bound"] = 3, 3
    for draw in link["draws"]:
        draw["squared_l2"] = str(sensitivities.squared_of(link, draw["statistic"]))
    restate_events(files)


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
    link = part(files, "link homes")
    link["clips"] = [0.1, 0.1]
    for draw in link["draws"]:
        draw["squared_l2"] = str(sensitivities.squared_of(link, draw["statistic"]))


def other_scale(files):
    part(files, "link ratings")["selections"][0]["scale"] = "1/1000000"


def fewer_selections(files):
    part(files, "link ratings")["selections"][0]["count"] = 1
    restate_events(files)


def fewer_rounds(files):
    link = part(files, "link ratings")
    link["draws"].pop()
    link["selections"].pop()
    restate_events(files)


def more_noise(files):
    """Claim more noise for a whole link, with events that agree."""
    for draw in part(files, "link orders")["draws"]:
        scale_noise(draw, 4)
    restate_events(files)


def less_noise(files):
    """State less noise for a link and more for a table, at the same total cost."""
    for draw in part(files, "link homes")["draws"]:
        scale_noise(draw, 0.5)
    restate_events(files)


def unknown_values(files):
    files["run-files"][f"links/orders/{file_of('links')}"] = "0" * 64


def gone_values(files):
    del files["run-files"][f"links/orders/{file_of('degrees')}"]


def extra_file(files):
    files["more"] = {"all": "well"}


def other_answer(files):
    row = next(row for row in files["checklist"] if row.get("component") == "link ratings")
    row["answer"] = "neighbours differ in at most 1 links"


def missing_answers(files):
    files["checklist"] = [row for row in files["checklist"] if row.get("component") != "link homes"]


FORGERIES = {
    "variance": edit_draw("link orders", "degrees", lambda draw: scale_noise(draw, 0.5)),
    "variance of sum": edit_draw("link homes", "u", lambda draw: scale_noise(draw, 2)),
    "variance of round": edit_draw("link ratings", "round-01", lambda draw: scale_noise(draw, 0.5)),
    "multiplier": edit_draw("link orders", "siblings", lambda draw: draw.update(multiplier="4096")),
    "sensitivity": edit_draw("link orders", "degrees", lambda draw: draw.update(squared_l2="1")),
    "statistic": edit_draw(
        "link orders", "degrees", lambda draw: draw.update(statistic="links", file=file_of("links"))
    ),
    "marginals": edit_draw("link ratings", "round-00", lambda draw: draw.update(count=1)),
    "moved": smaller_sensitivity,
    "relation": edit_part("link homes", lambda link: link.update(relation="replace")),
    "roles": edit_part("link orders", lambda link: link.update(roles=2)),
    "steps": edit_part("table orders", lambda table: table.update(steps=2)),
    "rows per unit": edit_part("table orders", lambda table: table.update(rows_per_unit=1)),
    "removed draw": without_draw("link ratings", "links"),
    "removed sum": without_draw("link homes", "both"),
    "removed draw of table": without_draw_of_table,
    "removed table": without_component("table orders"),
    "removed link": without_component("link homes"),
    "swapped tables": swapped_tables,
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
    "rounds": fewer_rounds,
    "more noise": more_noise,
    "less noise": less_noise,
    "unknown values": unknown_values,
    "gone values": gone_values,
    "answer": other_answer,
    "missing answers": missing_answers,
}


@pytest.mark.parametrize("name", FORGERIES)
def test_falsification_is_detected_by_script_and_check(bundles, tmp_path, name):
    copy = forge(bundles["rooted"], tmp_path / "forged", FORGERIES[name])
    script = run_script(copy)
    assert (script.returncode, script.stderr) == (1, "")
    assert "FAULT: " in script.stdout
    with pytest.raises(JobError, match=r"evidence: .* is inconsistent: "):
        check_bundle(copy)


def test_extra_file_is_detected(bundles, tmp_path):
    with pytest.raises(JobError, match=r"'more\.json', which is no file of a bundle"):
        check_bundle(forge(bundles["rooted"], tmp_path / "forged", extra_file))


@pytest.mark.parametrize(("label", "key", "value"), [
    ("table persons", "steps", 1), ("link links", "relation", "add/remove"), ("link links", "moved", 1),
    ("link links", "histograms", [30]),
])  # fmt: skip
def test_weaker_neighbours_of_replaced_rows_are_detected(bundles, tmp_path, label, key, value):
    """A consistent bundle whose draws are those of added rows, or of fewer links."""

    def change(files):
        component = part(files, label)
        component[key] = value
        for draw in component["draws"]:
            if component["kind"] == "link":
                draw["squared_l2"] = str(sensitivities.squared_of(component, draw["statistic"]))
        restate_events(files)

    copy = forge(bundles["replaced"], tmp_path / "forged", change)
    assert run_script(copy).returncode == 1
    with pytest.raises(JobError, match="is inconsistent: "):
        check_bundle(copy)


# ---- closed forms ----------------------------------------------------------------------------------------------------


def link_facts(relation, moved=3, bound=4, sizes=((2, 3), (4, 2, 5)), clips=(None, None)):
    return {"name": "one", "relation": relation, "moved": moved, "bound": bound, "parents": 2, "roles": 2,
            "histograms": [bound, bound], "sizes": [list(own) for own in sizes], "clips": list(clips)}  # fmt: skip


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("clips", [(None, None), (0.7, None), (1.4, 2.0), (1.0, 0.7)])
def test_feature_bounds_equal_brute_force_and_package(relation, clips):
    """Rows are enumerated: no two change a sum by more than the closed form, and it equals that of the package."""
    link = link_facts(relation, clips=clips)
    maps = []
    for own, clip in zip(link["sizes"], clips, strict=True):
        rows = np.stack([one.ravel() for one in np.meshgrid(*map(np.arange, own), indexing="ij")], axis=1)
        maps.append((features := Features.of_side(Side.made(rows, own), clip), features.whole(rows).astype(object)))
    (u, phi), (v, psi) = maps
    for one, clip, size in ((u, clips[0], link["sizes"][0]), (v, clips[1], link["sizes"][1])):
        assert sensitivities.feature_bounds(size, clip) == (one.squared, one.least)
    for weights in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 5, 2)):
        precisions = dict(zip(sensitivities.SUMS, map(Fraction, weights), strict=True))
        claimed = sensitivities.moved_features(link, precisions)
        bounds = (u.squared, u.least), (v.squared, v.least)
        assert claimed == squared_distance(relation, *bounds, [Fraction(one) for one in weights])
        a, b, c = weights
        ends = [(x, y) for x in phi[:: max(1, len(phi) // 6)] for y in psi[:: max(1, len(psi) // 8)]]
        sums = [(x, y, np.multiply.outer(x, y)) for x, y in ends]
        none = (phi[0] * 0, psi[0] * 0, np.multiply.outer(phi[0] * 0, psi[0]))
        for first in sums:
            for second in sums if relation == REPLACE else [none]:
                moved = [((one - other) ** 2).sum() for one, other in zip(first, second, strict=True)]
                assert a * moved[0] + b * moved[1] + c * moved[2] <= claimed


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("bound", [1, 2, 7])
def test_histogram_and_sibling_sensitivities_equal_those_of_package(relation, bound):
    link = link_facts(relation, bound=bound)
    assert sensitivities.squared_of(link, "degrees") == degrees_squared(relation, bound, 2, 2)
    assert sensitivities.squared_of(link, "siblings") == PairTables(tuple(link["sizes"][1])).squared(bound, 2)
    assert sensitivities.squared_of(link, "links") == 9
    if relation == ADD_REMOVE:
        alone = link | {"histograms": [bound]}
        assert sensitivities.squared_of(alone, "degrees") == degrees_squared(relation, bound, 2, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 12, 100, 4096, 5000, 12345])
def test_one_hot_bounds_equal_those_of_package(size):
    features = Features((size,), (), None)
    assert sensitivities.one_hot_bounds(size) == (features.squared, features.least)


def grandchildren():
    """A child of orders, whose rows belong to the persons of their orders."""
    job = rooted_job()
    job["tables"]["orders"] |= {"key": "order"}
    job["tables"]["items"] = table_section("products") | {"share": 0.2}
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
def test_facts_of_components_equal_those_of_package(tmp_path, make):
    """The scripts derive neighbours, shares and sensitivities from the job; the package computes them by other code."""
    shop.write_job(tmp_path)
    (tmp_path / "items.toml").write_text("")
    job = CompositeJob.parse(make(), tmp_path)
    path = tmp_path / "other.toml"
    path.write_text(bundle.tomli_w.dumps(make()))
    run = begin_linked(job, tmp_path / "run")
    domains = {f"domain.{name}.toml": domain.to_dict() for name, domain in job.domains.items()}
    found = {sensitivities.label(one): one for one in shapes.expected(bundle._job(run), domains, {"draws": {}})}
    protects, neighbours = shapes.protection(bundle._job(run)), run.neighbours
    assert (protects["unit"], protects["unit_table"], protects["relation"]) == (
        neighbours.protects.unit, neighbours.protects.table, neighbours.protects.relation)  # fmt: skip
    assert len(found) == len(job.shares)
    for name, table in LinkedTables.table_jobs(job).items():
        facts = found[f"table {name}"]
        assert facts["rows_per_unit"] == (table.data.max_rows_per_unit or 1)
        assert facts["bounded"] == bool(table.data.max_rows_per_unit)
        assert facts["steps"] == run.steps[name]
        assert facts["share"] == pytest.approx(job.shares[f"tables.{name}"], rel=1e-12)
    for piece in run.links:
        facts = found[f"link {piece.link.called}"]
        histograms = [len(one) for one in piece.places] if piece.degrees else []
        assert (facts["moved"], facts["roles"], facts["histograms"]) == (piece.moved, piece.roles, histograms)
        assert facts["sizes"] == [list(piece.sizes(end)) for end in (piece.link.parent, piece.link.child)]
        wanted = {"links": piece.counted, "degrees": piece.degrees, "siblings": piece.siblings}
        assert facts["statistics"] == [name for name, measured in wanted.items() if measured]
        assert facts["share"] == pytest.approx(job.shares[f"links.{piece.link.called}"], rel=1e-12)
