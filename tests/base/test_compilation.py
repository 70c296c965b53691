"""Kernels are compiled at their first call, with those that they name; importing the package loads no compiler."""

import os
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.base import compilation
from dpscale.base.compilation import Announcer, Kernel, cache_folder, compiled, njit
from dpscale.reconstruction import fitting_loops


@njit(nogil=True)
def doubled(value):
    """Return twice the value."""
    return 2 * value


@njit(nogil=True)
def doubled_twice(value):
    return doubled(doubled(value))


def test_public_names_load_no_compiler_and_no_frames():
    script = (
        "import sys, dpscale as dp; dp.run; dp.Release; dp.plan; "
        "print([name for name in ('numba', 'pandas', 'scipy', 'distributed', 'matplotlib') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_opened_release_loads_no_cluster(tmp_path):
    workload = dp.Workload(dp.Domain(a=3)).add("marginal", degree=1)
    planned = dp.plan(workload, epsilon=1, ledger=tmp_path / "ledger.sqlite")
    release = dp.run(planned, data=pd.DataFrame({"a": [0, 1, 2, 2]}))
    script = (
        f"import sys, dpscale as dp; dp.Release.open({str(release.path)!r}).marginal(['a']); "
        "print([name for name in ('dask', 'asyncio', 'numba', 'distributed') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_kernel_compiles_the_kernels_that_it_names():
    assert isinstance(doubled_twice, Kernel)
    assert doubled_twice(3) == 12
    assert not isinstance(doubled, Kernel)
    assert doubled(4) == 8
    assert doubled_twice.signatures


def test_kernel_of_a_closure_is_compiled():
    @njit()
    def inner(value):
        return value + 1

    @njit()
    def outer(value):
        return inner(value) * 2

    assert outer(1) == 4


def test_threads_compile_once():
    @njit()
    def tripled(value):
        return 3 * value

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tripled, range(100))) == [3 * i for i in range(100)]
    assert len(tripled.signatures) == 1


def test_signature_is_compiled_and_others_are_refused():
    @compiled("float64(float64)")
    def half(value):
        return value / 2

    assert half(3) == 1.5
    assert len(half.signatures) == 1
    with pytest.raises(TypeError):
        half("3")


def test_kernel_is_pickled_by_name_and_documented():
    kernel = fitting_loops.fit_pair
    assert pickle.loads(pickle.dumps(kernel)) is kernel
    assert kernel.__doc__ == kernel.py_func.__doc__
    assert doubled.__doc__ == "Return twice the value."


def test_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError):
        fitting_loops.fit_pair.no_such_attribute  # noqa: B018


def test_cache_folder_is_that_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "code"))
    assert cache_folder() == tmp_path / "code"
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/none")
    assert cache_folder() is None

    @njit(cache=True)
    def squared(value):
        return value * value

    assert squared(np.int64(3)) == 9


def test_long_compilations_are_announced(capsys, monkeypatch):
    """Parts of Numba and a second form of a loop are no loops of their own, but take their time."""
    monkeypatch.setattr(compilation, "announced", True)
    times = iter([0.0, 0.5, 0.5, 1.5, 1.5, 12.5, 13.0, 13.5, 13.5, 14.0])
    announcer = Announcer(lambda: next(times))
    loops, part = [fitting_loops.fit_pair, fitting_loops.fit_triple, fitting_loops.scale_axis], np.empty
    for place, loop in enumerate([*loops, loops[0]]):
        announcer.begin()
        if place == 1:
            announcer.begin()
            announcer.end(part)
        announcer.end(loop)
    announcer.begin()
    assert (len(announcer.loops), announcer.seconds) == (3, 13.0)
    assert capsys.readouterr().err.splitlines() == [
        "dpscale: compiling loops once for this user, 2 in 2 s so far",
        "dpscale: compiled loops, 3 in 12 s so far"]  # fmt: skip
    monkeypatch.setattr(compilation, "announced", False)
    announcer._next = 0.0
    announcer.begin()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("told", [True, False])
def test_first_call_with_an_empty_cache_says_that_it_compiles(tmp_path, told):
    script = (
        "from dpscale.base import compilation; compilation.LEAST_SECONDS = 1e-9; "
        f"compilation.announced = {told}; from dpscale.reconstruction import fitting_loops as loops; "
        "loops.scale_axis.dispatcher; loops.fit_pair.dispatcher"
    )
    command, cache = [sys.executable, "-c", script], {"NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | cache)
                     for _ in range(2))  # fmt: skip
    assert bool(re.search(r"dpscale: compiling loops once for this user, \d+ in \d+ s so far", first.stderr)) is told
    assert second.stderr == ""


def test_few_entries_are_computed_by_python_and_more_by_machine_code():
    @compiled("float64(float64[::1])", few=10)
    def total(values):
        last = 0.0
        for value in values:
            last += value
        return last

    @compiled("float64(float64[::1], float64)", few=10)
    def mean(values, scale):
        return total(values) / scale

    values = np.arange(4.0)
    assert [mean(values, 3.0), mean(values, 3.0)] == [2.0, 2.0]
    assert mean._dispatcher is None
    assert mean(values, 3.0) == 2.0
    assert len(mean.signatures) == 1


def test_few_entries_are_not_divided_by_zero_either():
    @compiled("float64(float64[::1])", few=10)
    def inverse(values):
        return 1.0 / values[0]

    for _ in range(2):  # by Python, then by machine code
        with pytest.raises(ArithmeticError):
            inverse(np.zeros(6))
    assert inverse._dispatcher is not None


@compiled("float64(float64)", inline="always")
def squared(value):
    return value * value


@compiled("float64(float64)")
def fourth_power(value):
    return squared(value) * squared(value)


def test_inlined_kernel_is_compiled_only_where_it_is_named():
    assert fourth_power.interpreted(2.0) == fourth_power(2.0) == 16.0
    assert squared.signatures == []
