"""TaobaoAd (Ad Display/Click Data on Taobao.com) as ad logs; docs/sources.md has the decisions.

raw_sample is the impressions, joined with ad_feature and user_profile; behavior_log the organic
engagements. Both logs are streamed; only the two profile tables are held.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipeline.mixing.sources.days import DayWriter
from pipeline.mixing.sources.delimited import Malformed, shifted, stream
from pipeline.mixing.sources.landed import TS
from pipeline.run.published import PUBLISHED
from pipeline.run.source_specs import TAOBAO_PROFILE as PROFILE

SET = PUBLISHED["taobaoad"]
SECOND_US = 1_000_000
LOG = {
    "user": ("user", "user_id"),
    "time_stamp": ("time_stamp",),
    "adgroup_id": ("adgroup_id",),
    "pid": ("pid",),
    "nonclk": ("nonclk", "noclk"),
    "clk": ("clk",),
}
AD: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("adgroup_id", "cate_id", "campaign_id", "brand", "price")},
    "customer": ("customer", "customer_id"),
}
USER: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in PROFILE},
    "userid": ("userid", "user_id", "user"),
    "gender": ("final_gender_code",),
    "city_level": ("new_user_class_level",),
}
BEHAVIOR = {
    "user": ("user", "nick"),
    "time_stamp": ("time_stamp",),
    "btag": ("btag",),
    "cate": ("cate", "cate_id"),
    "brand": ("brand",),
}


def adapt(files: dict[str, tuple[Path, ...]], folder: Path, malformed: Malformed) -> dict[str, int]:
    """Write impressions and engagements by day below `folder`; counts for the manifest."""
    ads = _ads(files["ad_feature"], malformed)
    users = _users(files["user_profile"], malformed)
    counts = {"ads": ads.height, "profiles": users.height, "without_ad": 0, "without_profile": 0}
    with DayWriter(folder, "impressions", SET.first_day, SET.last_day) as shown:
        for frame in stream(files["raw_sample"], LOG, malformed, texts=("pid",)):
            joined = _impressions(frame, shown.rows).join(
                ads, on="ad_id", how="left", maintain_order="left"
            )
            joined = joined.join(users, on="user_id", how="left", maintain_order="left")
            counts["without_ad"] += joined["category_id"].null_count()
            counts["without_profile"] += joined["cms_segid"].null_count()
            shown.write(joined.with_columns(pl.col(*ads.columns[1:], *PROFILE).fill_null(0)))
    with DayWriter(folder, "engagements", SET.first_day, SET.last_day) as behaved:
        for frame in stream(files["behavior_log"], BEHAVIOR, malformed, texts=("btag",)):
            behaved.write(_engagements(frame))
    return counts | {
        "impressions": shown.rows,
        "engagements": behaved.rows,
        "misdated": shown.misdated + behaved.misdated,
    }


def _impressions(frame: pl.DataFrame, before: int) -> pl.DataFrame:
    """Rows of raw_sample; where nonclk and clk disagree there is no click: ingest refuses it."""
    seconds, user = pl.col("time_stamp"), pl.col("user")
    click = pl.col("clk")
    return frame.select(
        impression_id=pl.int_range(before + 1, before + 1 + pl.len()),
        # what a user saw in one second at one place is one request
        request_id=(user * 2**32 + seconds) * 2 + pl.col("pid").str.starts_with("430539"),
        ts=(seconds * SECOND_US).cast(TS),
        surface=pl.col("pid"),
        user_id=user,
        ad_id=pl.col("adgroup_id"),
        objective=pl.lit("click"),
        position=pl.lit(0, pl.Int16),
        click=pl.when(click + pl.col("nonclk") == 1).then(click),
    )


def _ads(paths: tuple[Path, ...], malformed: Malformed) -> pl.DataFrame:
    """One row per ad; ids and a price that are not there are 0."""
    frames = [
        frame.select(
            ad_id=pl.col("adgroup_id"),
            category_id=pl.col("cate_id").fill_null(0),
            campaign_id=pl.col("campaign_id").fill_null(0),
            advertiser_id=pl.col("customer").fill_null(0),
            brand=pl.col("brand").fill_null(0),
            price=pl.col("price").cast(pl.Float32, strict=False).fill_null(0.0).fill_nan(0.0),
        )
        for frame in stream(paths, AD, malformed, texts=("price",))
    ]
    return pl.concat(frames).unique("ad_id", keep="first", maintain_order=True)


def _users(paths: tuple[Path, ...], malformed: Malformed) -> pl.DataFrame:
    """One row per user: each code plus one, 0 where the table has none."""
    frames = [
        frame.select(user_id=pl.col("userid"), **{name: shifted(name) for name in PROFILE})
        for frame in stream(paths, USER, malformed)
    ]
    return pl.concat(frames).unique("user_id", keep="first", maintain_order=True)


def _engagements(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of behavior_log; it names no item, so that the brand stands for it (0: none)."""
    return frame.select(
        user_id=pl.col("user"),
        ts=(pl.col("time_stamp") * SECOND_US).cast(TS),
        kind=pl.col("btag").replace("ipv", "pv"),
        item_id=pl.col("brand").fill_null(0),
        category_id=pl.col("cate").fill_null(0),
        surface=pl.lit("taobao"),
    )
