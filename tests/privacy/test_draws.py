"""Costs of noise: computed in one module only, exact, and never above the requested cost."""

import ast
from fractions import Fraction
from pathlib import Path

import pytest

import dpscale
from dpscale import PlanError
from dpscale.privacy.draws import GaussianDraw, LaplaceDraw, cost_of, gaussian_draw, laplace_draw, restored_gaussian
from tests.messages import refused

PACKAGE = Path(dpscale.__file__).parent
MAKERS = {"GaussianDraw", "LaplaceDraw", "SMOOTHING", "COST_UNIT"}
# audits compute costs on their own
AUDITS = {"audit/selftest.py", "audit/evidence/sensitivities.py"}
ALLOWED = {"privacy/draws.py", *AUDITS}


def find_cost_makers(source: str) -> set[str]:
    """Return the names of the cost formula that a module calls or computes with, except in annotations."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            found.add(getattr(node.func, "id", getattr(node.func, "attr", "")))
        if isinstance(node, ast.BinOp):
            found |= {part.id for part in (node.left, node.right) if isinstance(part, ast.Name)}
    return found & MAKERS


def test_only_one_module_computes_costs():
    elsewhere = {str(path.relative_to(PACKAGE)): find_cost_makers(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert {name for name, found in elsewhere.items() if found} <= ALLOWED
    assert elsewhere["privacy/draws.py"] == MAKERS


@pytest.mark.parametrize("line", ["GaussianDraw(1, 2, cost)", "cost = m**2 * d / (v - SMOOTHING)"])
def test_planted_second_formula_is_detected(line):
    assert find_cost_makers(f"def f(cost, m, d, v):\n    {line}\n")


@pytest.mark.parametrize("squared", [1, 6, 12**9])
@pytest.mark.parametrize("cost", [Fraction(1, 7), Fraction(3), Fraction(1, 10**9)])
def test_gaussian_draw_cost_is_just_below_requested_cost(squared, cost):
    draw = gaussian_draw(squared, cost, 3, "a")
    assert cost * (1 - Fraction(1, 10**6)) <= draw.cost <= cost
    assert draw.cost == Fraction(draw.multiplier**2 * squared * 9, draw.variance - 8)
    assert restored_gaussian(draw.multiplier, draw.variance, squared, 3) == draw


def test_laplace_draw_cost_is_just_below_requested_cost():
    draw = laplace_draw(5, Fraction(1, 3), 2, "a")
    assert Fraction(1, 3) * (1 - Fraction(1, 10**6)) <= draw.cost == Fraction(draw.multiplier * 10, draw.scale)
    assert draw.cost <= Fraction(1, 3)


def test_gaussian_and_laplace_costs_add_separately():
    laplace = LaplaceDraw(1, 5, Fraction(1, 5))
    total = cost_of([GaussianDraw(1, 20, Fraction(1, 3)), laplace, laplace])
    assert abs(total.gaussian - Fraction(1, 3)) < Fraction(1, 2**150)
    assert abs(total.pure - Fraction(2, 5)) < Fraction(1, 2**150)
    assert abs(total.pure_squares - Fraction(2, 25)) < Fraction(1, 2**150)


def test_impossible_noise_is_refused():
    with refused(PlanError):
        gaussian_draw(1, Fraction(1, 10**70), 1, "age")
    with refused(ValueError):
        restored_gaussian(1, 8, 1, 1)
