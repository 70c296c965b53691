"""Module names of earlier versions still import, with a warning that names the new module."""

import subprocess
import sys
from importlib import import_module

import pytest

from dpscale.base.old_modules import OLD_NAMES, new_name


@pytest.mark.parametrize("old", OLD_NAMES)
def test_old_module_name_gives_new_module(old):
    sys.modules.pop(f"dpscale.{old}", None)
    with pytest.warns(DeprecationWarning, match=f"dpscale.{old} is now dpscale.{OLD_NAMES[old]};"):
        found = import_module(f"dpscale.{old}")
    assert found is import_module(f"dpscale.{OLD_NAMES[old]}")


def test_submodules_of_old_packages_are_found():
    assert new_name("dpscale.stages.measure") == "dpscale.runs.stages.measure"
    assert new_name("dpscale.tables.count") == "dpscale.counting.count"
    assert new_name("dpscale.domain") is None


def test_old_import_works_in_new_process_and_unknown_one_fails():
    code = (
        "from dpscale.release import Release; import dpscale as dp; assert Release is dp.Release; import dpscale.none"
    )
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert found.stderr.endswith("ModuleNotFoundError: No module named 'dpscale.none'\n")
