"""Joins on a cluster: workers read the other tables themselves, and the drawn bytes are those of threads."""

from __future__ import annotations

from pathlib import Path

import dpscale as dp
from tests.joins.test_bytes import digests, engine_settings, write_shop


def test_bytes_are_those_of_one_process(tmp_path: Path, client: object) -> None:
    path = write_shop(tmp_path / "shop", **engine_settings())
    dp.run(path, tmp_path / "run one")
    dp.run(path, tmp_path / "run two", client=client)
    assert digests(tmp_path / "run one") == digests(tmp_path / "run two")
