"""Ali-CCP as ad logs: the skeleton files joined with the common features; docs/sources.md.

No row has a time. Train rows are spread over seven days and test rows over the seven days after
them, by a hash of the common feature index: all rows that share one (what one user saw in a
session) share a moment, and so do not see each other's labels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from pipeline.mixing.hashing import splitmix64
from pipeline.mixing.sources.days import DayWriter
from pipeline.mixing.sources.delimited import Malformed, stream
from pipeline.mixing.sources.landed import TS
from pipeline.run.published import PUBLISHED
from pipeline.run.window import DAY_US, day_begin_us

SET = PUBLISHED["aliccp"]
SKELETON = ("sample_id", "click", "purchase", "common_feature_index", "feature_num", "features")
COMMON = ("common_feature_index", "feature_num", "features")
TEXTS = ("common_feature_index", "features")
SPAN_DAYS = 7
SECOND_US = 1_000_000
USER_FIELDS = ("121", "122", "124", "125", "126", "127", "128", "129")
AD_FIELDS = ("210", "216")
PAIR_FIELDS = ("508", "509", "702", "853")
NUM_SURFACES = 3


def adapt(files: dict[str, tuple[Path, ...]], folder: Path, malformed: Malformed) -> dict[str, int]:
    """Write impressions and conversions by day below `folder`; counts for the manifest."""
    counts = {"without_common_features": 0, "purchases_without_click": 0}
    places: dict[str, int] = {}
    with (
        DayWriter(folder, "impressions", SET.first_day, SET.last_day) as shown,
        DayWriter(folder, "conversions", SET.first_day, SET.last_day) as bought,
    ):
        for number, part in enumerate(("train", "test")):
            users = _users(files[f"common_features_{part}"], malformed)
            begin = day_begin_us(SET.first_day) + number * SPAN_DAYS * DAY_US
            skeleton = files[f"sample_skeleton_{part}"]
            used = {name: (name,) for name in SKELETON if name != "feature_num"}
            for frame in stream(skeleton, used, malformed, head=SKELETON, texts=TEXTS):
                rows = _rows(frame, shown.rows, begin, places)
                joined = rows.join(
                    users, on="common_feature_index", how="left", maintain_order="left"
                )
                counts["without_common_features"] += joined["user_id"].null_count()
                odd = (joined["purchase"] == 1) & (joined["click"] == 0)
                counts["purchases_without_click"] += int(odd.sum())
                bought.write(_purchases(joined))
                fields = [_name(f) for f in USER_FIELDS]
                shown.write(
                    joined.drop("common_feature_index", "purchase").with_columns(
                        pl.col(fields).fill_null(0)
                    )
                )
    surfaces = {f"raw_value_of_position_{place}": int(value) for value, place in places.items()}
    return (
        counts
        | surfaces
        | {
            "impressions": shown.rows,
            "conversions": bought.rows,
            "misdated": shown.misdated + bought.misdated,
        }
    )


def _field(number: str) -> pl.Expr:
    """A field's (first) id in a list: field \\x02 id \\x03 value, \\x01 between them."""
    pattern = rf"(?:^|\x01){number}\x02(\d+)\x03"
    return pl.col("features").str.extract(pattern, 1)


def _name(number: str) -> str:
    return f"field_{number}"


def _id(number: str) -> pl.Expr:
    return _field(number).cast(pl.Int64, strict=False).fill_null(0)


def _rows(frame: pl.DataFrame, before: int, begin: int, places: dict[str, int]) -> pl.DataFrame:
    # the last 15 hexadecimal digits: a whole number that fits
    index = pl.col("common_feature_index").str.slice(-15).str.to_integer(base=16, strict=False)
    frame = frame.with_columns(_index=index, _place=_field("301"))
    for value in frame["_place"].drop_nulls().unique(maintain_order=True):
        places.setdefault(value, len(places) + 1)
    place = pl.col("_place").replace_strict(
        list(places), list(places.values()), default=None, return_dtype=pl.Int64
    )
    known = frame["_index"].fill_null(0).to_numpy()
    second = splitmix64(known) % np.uint64(SPAN_DAYS * DAY_US // SECOND_US - 1)
    moment = begin + pl.Series(second.astype(np.int64)) * SECOND_US
    return frame.select(
        impression_id=pl.int_range(before + 1, before + 1 + pl.len()),
        request_id=pl.col("_index"),
        ts=pl.when(pl.col("_index").is_not_null()).then(moment).cast(TS),
        surface=pl.concat_str(pl.lit("position_"), place.cast(pl.String)),
        ad_id=_field("205").cast(pl.Int64, strict=False),
        campaign_id=_id("205"),
        advertiser_id=_id("207"),
        category_id=_id("206"),
        objective=pl.lit("conversion"),
        position=pl.lit(0, pl.Int16),
        click=pl.col("click"),
        purchase=pl.col("purchase"),
        common_feature_index=pl.col("common_feature_index"),
        **{_name(f): _id(f) for f in (*AD_FIELDS, *PAIR_FIELDS)},
    )


def _users(paths: tuple[Path, ...], malformed: Malformed) -> pl.DataFrame:
    """One row per common feature index: the user and the fields with one value each."""
    used = {name: (name,) for name in ("common_feature_index", "features")}
    frames = [
        frame.select(
            "common_feature_index",
            user_id=_field("101").cast(pl.Int64, strict=False),
            **{_name(f): _id(f) for f in USER_FIELDS},
        )
        for frame in stream(paths, used, malformed, head=COMMON, texts=TEXTS)
    ]
    return pl.concat(frames).unique("common_feature_index", keep="first", maintain_order=True)


def _purchases(rows: pl.DataFrame) -> pl.DataFrame:
    """Purchases that followed a click, one second after the impression."""
    real = (pl.col("purchase") == 1) & (pl.col("click") == 1) & pl.col("ts").is_not_null()
    return rows.filter(real).select(
        "impression_id",
        "user_id",
        kind=pl.lit("conversion"),
        ts=(pl.col("ts").dt.epoch("us") + SECOND_US).cast(TS),
        value=pl.lit(1.0),
    )
