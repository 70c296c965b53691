"""The attack risk of a refined release is that of all draws which its answers use."""

import json

import dpscale as dp
from dpscale.audit.registry import registry_entry
from dpscale.privacy.attack_risk import AttackRisk
from dpscale.runs.opening import open_run
from tests.audit.small import write


def test_risk_of_refined_release_includes_the_earlier_one(tmp_path):
    first = dp.run(
        write(tmp_path, engine={}, privacy={"epsilon": 1.0, "delta": 1e-9, "dataset": "small"}), tmp_path / "first"
    )
    more = dp.refine(first, epsilon=0.2, run_dir=tmp_path / "more")
    run, before = open_run(more.path), open_run(first.path)
    assert run.pooled_cost == run.spent + before.spent
    alone = AttackRisk.of(run.spent, run.protects, False, run.manifest["private"])
    assert (
        run.attack_risk.bounds[0.05] > before.attack_risk.bounds[0.05] > alone.bounds[0.05]
    )  # planted: one instalment
    entry = registry_entry(run)
    assert entry["guarantee"]["mu"] ** 2 >= float(before.spent.squared_mu)
    assert json.dumps(entry)


def test_conditions_on_public_totals_are_recognised_among_notes():
    from types import SimpleNamespace

    from dpscale.domain.public_totals import SAME, condition_of, is_condition

    made = condition_of([SimpleNamespace(names=("a", "b"), origin=SAME)]).removeprefix("; ")
    assert is_condition(made)
    assert not is_condition(
        "no cap: the epsilon is an odometer's, true if every budget was fixed before the first release"
    )
