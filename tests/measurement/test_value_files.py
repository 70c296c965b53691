"""Layout of value files: every value has one place, the number of files is bounded, and interrupted runs resume."""

import os
from itertools import pairwise

import numpy as np
import pytest

from dpscale import Domain, JobError, Workload, plan
from dpscale.counting.count import Layout
from dpscale.measurement import MeasurementStore, value_files
from dpscale.measurement.measurement import measure_layouts
from dpscale.measurement.value_files import FileLayout, ValueReader, file_name, records, runs, spans, write_values
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.mechanisms.matrix_mechanism import FixedPlan
from dpscale.privacy.accounting import Budget
from dpscale.privacy.secret import SecretFile, make_secret, read_secret, secret_tag
from tests.messages import refused

DOMAIN = Domain({name: 2 + i % 3 for i, name in enumerate("abcdefghijkl")})


class Requests:
    """The sources and sizes of requests, as the file layout reads them."""

    def __init__(self, source, sizes):
        self.source, self.sizes = np.array(source), np.array(sizes)


def make_fixed_plan(domain=DOMAIN, degree=2):
    workload = Workload(domain).add("marginal", degree=degree)
    built = plan(workload, mechanism="residual-planner")
    return FixedPlan(built, PlanningProblem(workload, Budget("gaussian", 0.5)))


@pytest.mark.parametrize("seed", range(20))
def test_layout_places_values_once_and_cuts_at_sources(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 400))
    requests = Requests(rng.integers(0, rng.integers(1, count + 1), count), rng.integers(1, 50, count))
    filed = FileLayout.of(requests)
    assert sorted(filed.sequence) == list(range(count))
    assert (filed.place[filed.sequence] == np.arange(count)).all()
    assert filed.starts.tolist() == [0, *np.cumsum(requests.sizes[filed.sequence])]
    assert filed.cuts[0] == 0
    assert filed.cuts[-1] == count
    source = requests.source[filed.sequence]
    assert (np.diff(source) >= 0).all()
    assert all(source[cut - 1] != source[cut] for cut in filed.cuts[1:-1])
    assert len(filed.cuts) - 1 <= value_files.FILES + 1


@pytest.mark.parametrize("seed", range(20))
def test_unfilled_spans_are_places_missing_from_pieces(seed):
    """Against a list of places; pieces may overlap, for instance when a task of an older layout ends late."""
    rng = np.random.default_rng(seed)
    filed = FileLayout.of(Requests(np.arange(300), rng.integers(1, 9, 300)))
    pieces = [tuple(sorted(rng.choice(301, 2, replace=False).tolist())) for _ in range(rng.integers(0, 6))]
    covered = {place for first, end in pieces for place in range(first, end)}
    left = list(filed.unfilled(pieces))
    assert [place for first, end in left for place in range(first, end)] == sorted(set(range(300)) - covered)
    cuts = set(filed.cuts.tolist())
    assert all(not cuts & set(range(first + 1, end)) for first, end in left)


def test_file_names_encode_round_and_span():
    given = [(0, 70000), (70000, 123456789)]
    names = [*(file_name(2, one) for one in given), file_name(1, (3, 4)), "round-002.json", ".x.partial", "0.parquet"]
    assert spans(2, names) == given
    assert spans(1, names) == [(3, 4)]
    assert list(runs(np.array([True, True, False, True]))) == [(0, 2), (3, 4)]


def make_store(folder, measurement_plan):
    folder.mkdir()
    built = MeasurementStore(folder / "measurements", "r", "snapshot", measurement_plan)
    make_secret(folder / "secret.key", 7)
    return built, SecretFile(folder / "secret.key", secret_tag(read_secret(folder / "secret.key")))


def measure_missing(released, place, sets=None, wanted=None):
    """Measure the missing values from counts of the given sets only."""
    rng, domain = np.random.default_rng(3), released.measurement_plan.workload.domain
    everything = rng.integers(0, 9, domain.shape(domain.names))
    sets = released.measurement_plan.counted_sets if sets is None else sets
    away = {one: tuple(i for i, name in enumerate(domain.names) if name not in one) for one in sets}
    flat = np.concatenate([everything.sum(axis=away[one]).reshape(-1) for one in sets])
    for one in wanted or released.missing(released.measurement_plan.first_decision()):
        for piece in one.within(frozenset(sets)):
            measure_layouts([Layout(domain, tuple(sets))], piece, place, flat)


SMALL = Domain({name: 2 + i % 3 for i, name in enumerate("abcde")})


def value_bytes(released):
    return [one.tobytes() for one in released.values(released.measurement_plan.first_decision())]


@pytest.mark.parametrize("files", [1, 3, 64])
def test_passes_and_file_count_do_not_change_values(tmp_path, monkeypatch, files):
    """One pass or one set after the other, into few files or many."""
    measurement_plan = make_fixed_plan(SMALL)
    whole, place = make_store(tmp_path / "whole", measurement_plan)
    measure_missing(whole, place)
    monkeypatch.setattr(value_files, "FILES", files)
    cut, place = make_store(tmp_path / "cut", measurement_plan)
    for number, names in enumerate(measurement_plan.counted_sets):
        measure_missing(cut, place, [names])
        assert (number + 1 == len(measurement_plan.counted_sets)) == (
            not cut.missing(measurement_plan.first_decision())
        )
    assert value_bytes(cut) == value_bytes(whole)
    covered = [one for path in cut.folder.iterdir() for one in records(path)]
    assert len(covered) == len(measurement_plan.plan.blocks)


def test_interrupted_file_leaves_nothing_and_run_resumes(tmp_path, monkeypatch):
    """The resumed run may lay out files otherwise: existing files stay, and missing values are drawn with the same
    keys.
    """
    measurement_plan = make_fixed_plan(SMALL)
    whole, place = make_store(tmp_path / "whole", measurement_plan)
    measure_missing(whole, place)
    monkeypatch.setattr(value_files, "FILES", 4)
    monkeypatch.setattr(value_files, "GROUP_VALUES", 8)
    stopped, place = make_store(tmp_path / "stopped", measurement_plan)
    first = stopped.missing(measurement_plan.first_decision())
    measure_missing(stopped, place, wanted=first[:1])
    contents = {path.name: path.read_bytes() for path in stopped.folder.iterdir()}
    left = [len(first[1].requests)]

    def measure_or_interrupt(*arguments):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return real(*arguments)

    from dpscale.measurement import measurement

    real = measurement.measure_block
    with monkeypatch.context() as patch:
        patch.setattr(measurement, "measure_block", measure_or_interrupt)
        with pytest.raises(KeyboardInterrupt):
            measure_missing(stopped, place, wanted=first[1:])
    assert {path.name: path.read_bytes() for path in stopped.folder.iterdir()} == contents
    monkeypatch.setattr(value_files, "FILES", 64)
    vars(stopped).pop("_first")
    measure_missing(stopped, place)
    assert value_bytes(stopped) == value_bytes(whole)
    assert contents.items() <= {path.name: path.read_bytes() for path in stopped.folder.iterdir()}.items()


def test_source_without_needed_attributes_is_refused(tmp_path):
    """The planted fault is an edited column of sources. The ledger does not record it, and no noise is drawn."""
    measurement_plan = make_fixed_plan(SMALL)
    released, place = make_store(tmp_path / "run", measurement_plan)
    source = measurement_plan.plan.sources.source
    source[:] = source[::-1].copy()
    with refused(JobError):
        measure_missing(released, place)
    assert not released.folder.exists() or not list(released.folder.iterdir())


def test_exchanged_or_foreign_file_is_refused(tmp_path):
    measurement_plan = make_fixed_plan(SMALL)
    ours, place = make_store(tmp_path / "ours", measurement_plan)
    measure_missing(ours, place)
    expected = value_bytes(MeasurementStore(ours.folder, "r", "snapshot", measurement_plan))
    one, other, *_ = sorted(ours.folder.iterdir())
    contents = one.read_bytes()
    one.write_bytes(other.read_bytes())
    with refused(JobError):
        list(ours.values(measurement_plan.first_decision()))
    one.write_bytes(contents)
    with refused(JobError):
        ValueReader({**ours.head, "release": "q"}).read(one, 0, 1, "{}")
    fresh = MeasurementStore(ours.folder, "r", "snapshot", measurement_plan)
    assert value_bytes(fresh) == expected
    os.unlink(one)
    fresh = MeasurementStore(ours.folder, "r", "snapshot", measurement_plan)
    with refused(JobError):
        list(fresh.values(measurement_plan.first_decision()))


def test_reader_finds_values_in_every_row_group(tmp_path, monkeypatch):
    monkeypatch.setattr(value_files, "GROUP_VALUES", 10)
    rng = np.random.default_rng(0)
    rows = [(f'{{"n":{i}}}', rng.normal(size=size)) for i, size in enumerate([3, 4, 4, 30, 1, 9, 1])]
    write_values(tmp_path / "x.parquet", {"release": "r"}, rows)
    starts = np.cumsum([0, *(len(values) for _, values in rows)])
    value_reader = ValueReader({"release": "r"})
    for (label, values), start in zip(rows, starts[:-1], strict=True):
        np.testing.assert_array_equal(value_reader.read(tmp_path / "x.parquet", int(start), len(values), label), values)
    for start, size, label in ((0, 4, '{"n":0}'), (0, 3, '{"n":1}'), (1, 3, '{"n":0}'), (52, 1, '{"n":6}')):
        with refused(JobError):
            value_reader.read(tmp_path / "x.parquet", start, size, label)
    assert [one["n"] for one in records(tmp_path / "x.parquet")] == list(range(7))
    assert all(first < end for first, end in pairwise(starts.tolist()))
