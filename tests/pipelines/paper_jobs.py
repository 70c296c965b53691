"""The jobs in pipelines/papers with small generated tables of their schemas."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]
RELATIONAL = "relational-synthesis"
JOBS = {"query-smasher": "cps", "hdmm": "sf1", "aim-grem": "adult", "eigen-design": "cps"}


def write_paper_jobs(folder: Path) -> Path:
    """Write the jobs, the schemas and tables of 2,000 records into a folder, as in a clone, and return it."""
    shutil.copytree(ROOT / "pipelines", folder / "pipelines")
    shutil.copytree(ROOT / "data", folder / "data")
    for schema in dict.fromkeys(JOBS.values()):
        made = ["data/generate.py", f"dpscale-papers/{schema}", "--domain", f"data/schemas/{schema}.toml"]
        subprocess.run([sys.executable, *made, "--rows", "2000", "--files", "2"], cwd=folder, check=True)
    return folder


def write_relational_job(folder: Path, users: int = 300, movies: int = 200) -> Path:
    """Write the jobs and tables with the columns of MovieLens; women rate films of action more. Return the job."""
    shutil.copytree(ROOT / "pipelines", folder / "pipelines")
    place = folder / "dpscale-movielens/data"
    rng = np.random.default_rng(4)
    schema = tomllib.loads((ROOT / "pipelines/movielens/movies.domain.toml").read_text())["attributes"]
    sex = rng.choice(["F", "M"], users)
    work = rng.choice(["artist", "doctor", "student", "writer"], users)
    persons = pd.DataFrame({"user_id": np.arange(users), "age": rng.integers(10, 80, users), "sex": sex,
                            "occupation": work})  # fmt: skip
    films = pd.DataFrame({name: rng.integers(0, 2, movies) if name != "year" else rng.integers(1950, 1999, movies)
                          for name in schema}).assign(movie_id=np.arange(movies))  # fmt: skip
    fits = np.where((sex == "F")[:, None] == (films.action.to_numpy() == 1), 0.05, 0.01)
    pairs = pd.DataFrame(np.argwhere(rng.random((users, movies)) < fits), columns=["user_id", "movie_id"])
    for key in ("user_id", "movie_id"):
        pairs = pairs[pairs.groupby(key).cumcount() < 10]
    place.mkdir(parents=True)
    for name, frame in {"users": persons, "movies": films, "extract": pairs}.items():
        frame.to_parquet(place / f"{name}.parquet", index=False)
    return folder / f"pipelines/papers/{RELATIONAL}.toml"
