# Several tables: patients, their visits, and the links between them. One budget, a synthetic database with valid keys.
# Runs from top to bottom as a script, or cell by cell (`# %%`) in an editor or Jupyter. It makes its own data.

# %%
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import dpscale as dp

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dpscale-relational-example")
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## Data: 3,000 patients; older patients have more visits, and on other wards

# %%
rng = np.random.default_rng(3)
age = rng.integers(0, 95, 3000)
patients = pd.DataFrame({"patient": np.arange(3000), "age": age, "sex": rng.choice(["F", "M"], 3000)})
visitor = np.repeat(np.arange(3000), rng.poisson(0.5 + age / 40).clip(0, 8))
visits = pd.DataFrame(
    {
        "patient": visitor,
        "ward": np.where(
            rng.random(len(visitor)) < age[visitor] / 100, rng.choice(["heart", "hip"], len(visitor)), "day"
        ),
        "days": rng.poisson(1 + age[visitor] / 20).clip(0, 30),
    }
)
for name, frame in {"patients": patients, "visits": visits}.items():
    frame.to_parquet(folder / f"{name}.parquet", index=False)

# %%
(folder / "patients.domain.toml").write_text("""
attributes.age = {kind = "bins", edges = [0, 18, 40, 65, 95]}
attributes.sex = {kind = "categories", values = ["F", "M"]}
""")
(folder / "visits.domain.toml").write_text("""
attributes.ward = {kind = "categories", values = ["day", "heart", "hip"]}
attributes.days = {kind = "bins", edges = [0, 1, 2, 4, 8, 31], outside = "clip"}
""")

# %% [markdown]
# ## The job: a patient is protected with all of their visits, of which at most eight count

# %%
job = folder / "job.toml"
job.write_text("""
[tables.patients]
path = "patients.parquet"
domain = "patients.domain.toml"
key = "patient"

[tables.visits]
path = "visits.parquet"
domain = "visits.domain.toml"

[[link]]
kind = "one-to-many"
parent = "patients"
child = "visits"
child_key = "patient"
max_degree = 8

[privacy]
epsilon = 3.0
delta = 1e-6
dataset = "hospital-example"
""")
release = dp.run(job, folder / "run")

# %% [markdown]
# ## A synthetic database: every visit has its patient

# %%
made = {name: frame.compute() for name, frame in release.synthetic().items()}
assert made["visits"].patient.isin(made["patients"].patient).all()
print({name: len(frame) for name, frame in made.items()})

# %% [markdown]
# ## Links in the data and in the rows. This comparison is permitted only because the data are made up


# %%
def visits_by_age(patients: pd.DataFrame, visits: pd.DataFrame) -> pd.Series:
    """Return the mean number of visits of a patient, by age."""
    counts = visits.groupby("patient").size().reindex(patients.patient, fill_value=0).to_numpy()
    return pd.Series(counts).groupby(pd.cut(patients.age.to_numpy(), [0, 18, 40, 65, 95], right=False)).mean()


print(pd.DataFrame({"data": visits_by_age(patients, visits), "rows": visits_by_age(made["patients"], made["visits"])}))
