"""The Croissant description of a publication: every file and column, in a form that its reference reader accepts."""

import hashlib
import json

import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner

from dpscale.__main__ import main
from dpscale.answers.publish import CONFORMS, describe
from tests.audit.small import write


@pytest.fixture(scope="module")
def publication(tmp_path_factory):
    import dpscale as dp

    place = tmp_path_factory.mktemp("croissant")
    dp.run(write(place), place / "run")
    done = CliRunner().invoke(main, ["publish", str(place / "run"), "--format", "csv", "--format", "parquet"])
    assert done.exit_code == 0, done.output
    return place / "run" / "published"


def test_every_file_and_column_is_described(publication):
    found = json.loads((publication / "croissant.json").read_text())
    assert found["conformsTo"] == CONFORMS
    listed = {one["contentUrl"]: one for one in found["distribution"]}
    on_disk = {str(path.relative_to(publication)) for path in publication.rglob("*") if path.is_file()}
    assert set(listed) == on_disk - {"croissant.json"}
    for name, one in listed.items():
        content = (publication / name).read_bytes()
        assert (one["sha256"], one["contentSize"]) == (hashlib.sha256(content).hexdigest(), f"{len(content)} B")
    assert len(found["recordSet"]) == len(list((publication / "parquet").iterdir()))
    for records in found["recordSet"]:
        columns = [own["source"]["extract"]["column"] for own in records["field"]]
        source = records["field"][0]["source"]["fileObject"]["@id"]
        assert source in listed
        assert columns == list(pd.read_parquet(publication / source).columns)
    types = {own["name"]: own["dataType"] for records in found["recordSet"] for own in records["field"]}
    assert (types["count"], types["std_error"], types["flag"]) == ("sc:Integer", "sc:Float", "sc:Text")


def test_identifiers_are_unique(publication):
    found = json.loads((publication / "croissant.json").read_text())
    every = [one["@id"] for one in (*found["distribution"], *found["recordSet"])]
    every += [own["@id"] for one in found["recordSet"] for own in one["field"]]
    assert len(every) == len(set(every))


def test_columns_of_csv_files_have_the_header_of_the_file(tmp_path):
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "001-x.csv").write_text("'=x,count\n1,2\n")
    found = describe(tmp_path, ["csv/001-x.csv"], {"001-x": pa.table({"=x": [1], "count": [2]})}, "r", "d")
    columns = [own["source"]["extract"]["column"] for own in found["recordSet"][0]["field"]]
    assert columns == ["'=x", "count"]


def test_reference_reader_accepts_the_description(publication):
    reader = pytest.importorskip("mlcroissant")
    dataset = reader.Dataset(jsonld=publication / "croissant.json")
    assert not dataset.metadata.issues.errors
    name = dataset.metadata.record_sets[0].uuid
    assert next(iter(dataset.records(record_set=name)))
