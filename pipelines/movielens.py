"""MovieLens-100K: 943 persons, 1,682 films, 100,000 ratings.

Get `ml-100k` from GroupLens (grouplens.org/datasets; research use, no redistribution), and pass its folder:

    python pipelines/movielens.py ml-100k [--job both|catalogue|ratings|answers] [--rows N] [--compare]

both: persons and films are protected, with at most 10 links each. Data with more links are refused, so that the
protected table is an extract: the first ten ratings of each person, and of these ten per film. catalogue: films are
public, and a person is protected with up to 50 links, which the job selects. ratings: the same with each rating as a
row, with stars and month. answers: answers over joins of ratings, persons and films. Domains follow the README of the
data.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from databases import Rows, Tables, main, parse_number, read_texts, select_related

DEGREE = 10
GENRES = (
    "unknown action adventure animation children comedy crime documentary drama fantasy noir horror musical "
    "mystery romance science thriller war western"
)


def prepare(source: Path, rows: int | None = None) -> Tables:
    users = read_texts(source / "u.user", "|", "user_id age sex occupation zip")[:rows]
    movies = [_movie(row) for row in read_texts(source / "u.item", "|", f"movie_id title date video url {GENRES}")]
    ratings = select_related(read_texts(source / "u.data", "\t", "user_id movie_id stars time"), "user_id", users)
    ratings.sort(key=lambda row: (int(row["time"]), row["user_id"], row["movie_id"]))
    extract = _first(_first(ratings, "user_id"), "movie_id")
    return {
        "users": [{"user_id": int(row["user_id"]), "age": int(row["age"]), "sex": row["sex"],
                   "occupation": row["occupation"]} for row in users],
        "movies": movies,
        "extract": [{name: int(row[name]) for name in ("user_id", "movie_id")} for row in extract],
        "ratings": [{**{name: int(row[name]) for name in ("user_id", "movie_id", "stars")},
                     "month": datetime.fromtimestamp(int(row["time"]), UTC).month} for row in ratings],
    }  # fmt: skip


def _movie(row: dict[str, str]) -> dict[str, object]:
    """Return a film with its year, null if unknown, and its genres."""
    return {"movie_id": int(row["movie_id"]), "year": parse_number(row["date"][-4:]),
            **{name: int(row[name]) for name in GENRES.split()}}  # fmt: skip


def _first(ratings: Rows, column: str) -> Rows:
    """Return the first ratings of each key."""
    seen: dict[str, int] = {}
    for row in ratings:
        seen[row[column]] = row["place"] = seen.get(row[column], 0) + 1
    return [row for row in ratings if row["place"] <= DEGREE]


if __name__ == "__main__":
    main("movielens", ("both", "catalogue", "ratings", "answers"), prepare)
