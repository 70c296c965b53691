"""Privacy accounting, budgets, exact noise and keyed random streams.

The package uses neither Dask nor records. `noise` draws, `streams` and `secret` provide its random bits, `accounting`
composes costs, and `dpscale.ledger` records them. The conversions are available by name, for example
`dpscale.privacy.gdp_mu(epsilon, delta)`.

>>> mu = dp.privacy.gdp_mu(1.0, 1e-9)
>>> 1 - 1e-9 < dp.privacy.epsilon_of_mu(mu, 1e-9) <= 1
True
>>> 1 - 1e-9 < dp.privacy.epsilon_of_rho(dp.privacy.zcdp_rho(1.0, 1e-9), 1e-9) <= 1
True
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_ACCOUNTING = (
    "Cost",
    "delta_of_mu",
    "delta_of_rho",
    "epsilon_of_mu",
    "epsilon_of_rho",
    "gdp_mu",
    "mu_of_exponential",
    "mu_of_pure",
    "rho_of_exponential",
    "rho_of_pure",
    "zcdp_rho",
)

__all__ = list(_ACCOUNTING)


def __getattr__(name: str) -> Any:
    if name not in _ACCOUNTING:
        raise AttributeError(f"module 'dpscale.privacy' has no attribute {name!r}")
    return getattr(import_module("dpscale.privacy.accounting"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
