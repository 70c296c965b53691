"""A matrix mechanism: every attribute of the workload by itself, cell by cell, with equal shares."""

from dpscale.base.settings import Settings, setting
from dpscale.mechanisms.matrix_mechanism import marginal_plan, matrix_mechanism
from dpscale.plans.blocks import Block
from dpscale.plans.factor import identity_factor

NAME = "one-ways"


class Options(Settings):
    """The share of the budget that is used."""

    used: float = setting(1.0, "a share above 0, up to 1", "the share of the budget that is used", gt=0, le=1)


def plan(problem, options, tools):
    """Plan one block per attribute."""
    workload = problem.workload
    names = [name for name in workload.domain.names if any(name in attributes for attributes in workload.sets)]
    share = options.used * (1 - 1e-15) / len(names)
    factors = {name: (identity_factor(workload.domain[name].size),) for name in names}
    blocks = [Block((name,), factors[name], share, True, problem.noise) for name in names]
    return marginal_plan(workload, NAME, blocks, 0.0)


MECHANISM = matrix_mechanism(NAME, Options, plan)
