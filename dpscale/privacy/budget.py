"""What a release may spend: the kind of its noise, and how much of that kind's currency.

Under Gaussian noise the amount is β, squared Gaussian-DP μ, and errors fall with β; under Laplace noise it is ε of pure
differential privacy, and errors fall with ε². Selections are paid in β too.
"""

from __future__ import annotations

from dataclasses import dataclass

GAUSSIAN, LAPLACE = "gaussian", "laplace"


@dataclass(frozen=True)
class Budget:
    """`amount`: β for Gaussian noise, ε for Laplace."""

    noise: str
    amount: float

    @property
    def privacy_cost(self) -> float:
        """What a plan's squared errors at privacy cost 1 are divided by: β, or ε²."""
        return self.amount**2 if self.noise == LAPLACE else self.amount
