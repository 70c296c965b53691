"""The plot in docs/mechanisms.md: weights of the axes for all 1- and 2-way prefix queries, on 10 and on 100 cells.

python benchmarks/weights.py
"""

from pathlib import Path

import dpscale as dp
from dpscale.answers.report import weight_plot


def main() -> None:
    profiles = {}
    for size in (10, 100):
        workload = dp.Workload(dp.Domain({f"x{i}": size for i in range(40)})).add("prefix", degree=1)
        profiles[f"{size} cells"] = dp.plan(workload.add("prefix", degree=2)).accuracy.profiles["x0"]
    picture = Path(__file__).parent.parent / "docs" / "weights.svg"
    picture.write_text(weight_plot(profiles) + "\n")
    for name, profile in profiles.items():
        print(name, *(f"{len(profile) * weight:.2f}" for weight in profile[:: len(profile) // 10]))


if __name__ == "__main__":
    main()
