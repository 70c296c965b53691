"""Model files: identical bytes after a round trip, and the format of older versions with one array per table."""

import json
from dataclasses import replace

import numpy as np

from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.model_answers import read_model, write_model
from dpscale.workload.residual import Groups, every_cell

GROUPS = {"a": every_cell(3), "b": Groups(5, (0, 2))}
RNG = np.random.default_rng(0)
ONES = {"a": RNG.random(3), "b": RNG.random(5)}
MODEL = LowOrder(ONES, GROUPS, {("a", "b"): RNG.random((3, 2))}, 7.0, frozenset({("a", "b")}))


def check_equal_models(found, model):
    assert (list(found.ones), found.groups, found.total, found.measured) == (["a", "b"], GROUPS, 7.0, model.measured)
    assert all(found.ones[name].tobytes() == one_way.tobytes() for name, one_way in model.ones.items())
    assert list(found.tables) == list(model.tables)
    assert all(np.array_equal(found.tables[names], table) for names, table in model.tables.items())


def test_model_round_trips_byte_by_byte(tmp_path):
    for model in (MODEL, LowOrder(ONES, GROUPS, {}, 7.0)):
        write_model(tmp_path / "model.npz", model)
        check_equal_models(read_model(tmp_path / "model.npz"), model)


def test_older_model_file_is_read(tmp_path):
    index = {"groups": {name: [one.size, *one.starts] for name, one in GROUPS.items()}, "ones": ["a", "b"],
             "tables": [["a", "b"]], "total": 7.0}  # fmt: skip
    np.savez(tmp_path / "old.npz", index=np.array(json.dumps(index)), one0=ONES["a"], one1=ONES["b"],
             table0=MODEL.tables["a", "b"])  # fmt: skip
    check_equal_models(read_model(tmp_path / "old.npz"), MODEL)


def test_model_with_the_sets_of_another_round_trips(tmp_path):
    """The sets are not repeated; a model with other sets is complete in its file."""
    other = replace(MODEL, ones={"a": RNG.random(3), "b": RNG.random(5)}, tables={("a", "b"): RNG.random((3, 2))})
    for model, repeated in ((other, False), (replace(other, tables={}, measured=frozenset()), True)):
        write_model(tmp_path / "model.npz", model, MODEL)
        with np.load(tmp_path / "model.npz") as file:
            assert ("tables" in json.loads(str(file["index"]))) is repeated
        check_equal_models(read_model(tmp_path / "model.npz", MODEL), model)
