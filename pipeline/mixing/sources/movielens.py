"""MovieLens-100k as ad logs (docs/sources.md): a rating is an impression, 4 or 5 a click, 5 a
conversion one second later. The surface is the film's genre group.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipeline.mixing.sources.landed import TS, Landed

SECOND_US = 1_000_000
FILE = "MovieLens100k_{}.parquet.brotli"
FIRST_GENRE_COLUMN = "Action"
# a film belongs to the first group that names one of its genres
GROUPS = {
    "action": ("Action", "Adventure", "Crime", "Sci-Fi", "Thriller", "War", "Western"),
    "comedy": ("Comedy",),
    "drama": ("Drama", "Romance"),
}
OTHER = "other"


def adapt(folder: Path) -> Landed:
    """Impressions and conversions from the ratings, users and items files in `folder`."""
    ratings = pl.read_parquet(folder / FILE.format("data"))
    users = _users(pl.read_parquet(folder / FILE.format("users")))
    films = _films(pl.read_parquet(folder / FILE.format("items")))
    frame = (
        ratings.join(users, on="user_id", how="left")
        .join(films, on="movie_id", how="left")
        .sort("timestamp", "user_id", "movie_id")
        .with_row_index("impression_id", offset=1)
        .with_columns(
            pl.col("impression_id").cast(pl.Int64),
            ts=(pl.col("timestamp") * SECOND_US).cast(TS),
            # what a user rated within one second is one request
            request_id=pl.struct("timestamp", "user_id").rle_id().cast(pl.Int64) + 1,
        )
    )
    impressions = frame.select(
        "impression_id",
        "request_id",
        "ts",
        "surface",
        "user_id",
        ad_id=pl.col("movie_id"),
        campaign_id=pl.col("movie_id"),
        advertiser_id=pl.lit(1, pl.Int64),
        category_id=pl.col("genre"),
        objective=pl.lit("conversion"),
        position=pl.int_range(pl.len()).over("request_id").cast(pl.Int16),
        click=(pl.col("rating") >= 4).cast(pl.Int8),
        age_group=pl.col("age_group"),
        gender=pl.col("gender"),
        occupation=pl.col("occupation"),
        release_year=pl.col("release_year"),
        second_genre=pl.col("second_genre"),
    )
    conversions = frame.filter(pl.col("rating") == 5).select(
        "impression_id",
        "user_id",
        kind=pl.lit("conversion"),
        ts=(pl.col("timestamp") * SECOND_US + SECOND_US).cast(TS),
        value=pl.lit(1.0),
    )
    return Landed(
        rows=ratings.height, tables={"impressions": impressions, "conversions": conversions}
    )


def _users(users: pl.DataFrame) -> pl.DataFrame:
    """Age in decades; gender and occupation as they are."""
    return users.select("user_id", "gender", "occupation", age_group=pl.col("age") // 10)


def _films(films: pl.DataFrame) -> pl.DataFrame:
    """Genre group, first and second genre (1 = the first genre column, 0 = none), release year."""
    genres = films.columns[films.columns.index(FIRST_GENRE_COLUMN) :]
    group = pl.lit(OTHER)
    for name, members in reversed(GROUPS.items()):
        has_one = pl.sum_horizontal(pl.col(g) for g in members if g in genres) > 0
        group = pl.when(has_one).then(pl.lit(name)).otherwise(group)
    numbers = pl.concat_list(
        pl.when(pl.col(g) == 1).then(pl.lit(k + 1, pl.Int64)) for k, g in enumerate(genres)
    ).list.drop_nulls()
    return films.select(
        "movie_id",
        surface=group,
        genre=numbers.list.get(0, null_on_oob=True).fill_null(0),
        second_genre=numbers.list.get(1, null_on_oob=True).fill_null(0),
        release_year=pl.col("release_date").str.slice(-4).cast(pl.Int64, strict=False).fill_null(0),
    )
