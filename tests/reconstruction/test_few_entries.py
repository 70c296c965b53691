"""Loops that Python runs over few entries give the bytes of their machine code."""

import numpy as np
import pytest

from dpscale.reconstruction import fitting_loops, set_arrays

SIZES = np.array([2, 5, 7])
AT = np.append(0, np.cumsum(SIZES))
PAIRS = np.array([[0, 1], [0, 2], [1, 2]])
STARTS = np.append(0, np.cumsum([SIZES[i] * SIZES[j] for i, j in PAIRS]))


def arguments():
    """Return random arguments of each loop by its name."""
    rng = np.random.default_rng(5)
    total, cells = 900.0, int(STARTS[-1])
    ones = np.concatenate([total * rng.dirichlet(np.ones(size)) for size in SIZES])
    places, tables = (ones, AT, total, PAIRS, STARTS), rng.gamma(1.0, 20.0, (4, cells))
    oriented, conditionals, strength = np.zeros(2 * cells), np.zeros(2 * cells), np.full((3, 3), -1.0)
    place = np.full((3, 3), -1)
    set_arrays.link.interpreted(tables[0], *places, place, strength, oriented, conditionals)
    margins = [rng.gamma(1.0, 5.0, shape) for shape in ((2, 5), (2, 7), (5, 7))]
    triple, first, second, third = rng.gamma(1.0, 2.0, (2, 5, 7)), *np.split(ones, AT[1:3])
    return {
        "products": places,
        "noisy": (tables[0] - 20, tables[1], AT, PAIRS, STARTS),
        "near_every": (tables[0], tables[1], rng.gamma(1.0, 3.0, 3), AT, PAIRS, STARTS, 1),
        "fit_every": (tables[0], ones, AT, PAIRS, STARTS, 12, 1e-6),
        "link": (tables[1], *places, place, strength, oriented, conditionals),
        "follow": (*places, place, strength, oriented, conditionals, tables[2], True, tables[3], np.zeros(3, np.bool_)),
        "fit_triple": (triple, np.ones(3, np.bool_), first, second, third, np.arange(3), *margins, 12, 1e-6),
    }


@pytest.mark.parametrize("name", arguments())
def test_few_entries_have_the_bytes_of_machine_code(name):
    loop = getattr(fitting_loops if name == "fit_triple" else set_arrays, name)
    results = []
    for function in (loop.interpreted, loop.dispatcher):
        own = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments()[name]]
        returned = function(*own)
        results.append([np.asarray(one).tobytes() for one in [*own, 0.0 if returned is None else returned]])
    assert results[0] == results[1]
