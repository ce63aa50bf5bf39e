"""Ta Feng grocery log as ad logs (docs/sources.md): a purchase is a clicked impression.

Each purchase gets one product that the customer did not buy that day, drawn from what was sold
on the same day in the same department, as often as it was sold that day: no product is seen
before it exists, and nothing of later days enters. A conversion is the same customer buying the
same product again within 14 days. The log has dates only: a day's baskets are spread from 9 h to
21 h in the file's order, and all rows of a basket share its time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.mixing.sources.landed import TS, Landed
from pipeline.run.window import DAY_US, HOUR_US

FILE = "ta_feng_all_months_merged.csv"
OPEN_US, CLOSE_US = 9 * HOUR_US, 21 * HOUR_US
AGAIN_WITHIN_US = 14 * DAY_US
DRAWS = 20  # a customer who bought nearly all of a small department gets no negative
SEED = 20_001_101
SURFACES = {10: "dept_10", 11: "dept_11", 12: "dept_12", 13: "dept_12", 14: "dept_12"}
OTHER = "dept_other"
FIFTIES = "dept_50"


def adapt(folder: Path) -> Landed:
    """Impressions (purchases and sampled negatives) and conversions from the merged log."""
    log = _purchases(folder / FILE)
    negatives = _negatives(log)
    impressions = (
        pl.concat([log.with_columns(click=pl.lit(1, pl.Int8)), negatives], how="diagonal")
        # a random order inside the basket: the place of a row must not tell its label
        .with_columns(_order=pl.Series(_rng(1).permutation(log.height + negatives.height)))
        .sort("ts", "request_id", "_order")
        .with_row_index("impression_id", offset=1)
        .with_columns(
            pl.col("impression_id").cast(pl.Int64),
            position=pl.int_range(pl.len()).over("request_id").cast(pl.Int16),
        )
    )
    return Landed(
        rows=log.height,
        tables={"impressions": _canonical(impressions), "conversions": _again(impressions)},
        counts={
            "sampled_negatives": negatives.height,
            "purchases_without_negative": log.height - negatives.height,
        },
    )


def _purchases(path: Path) -> pl.DataFrame:
    """The log with numbers for dates, departments and baskets; the file's order is kept."""
    log = pl.read_csv(path, infer_schema=False).select(
        day=pl.col("TRANSACTION_DT").str.to_date("%m/%d/%Y").cast(pl.Int32).cast(pl.Int64),
        user_id=pl.col("CUSTOMER_ID").cast(pl.Int64),
        ad_id=pl.col("PRODUCT_ID").cast(pl.Int64),
        category_id=pl.col("PRODUCT_SUBCLASS").cast(pl.Int64),
        age_group=pl.col("AGE_GROUP").str.strip_chars().replace("", "unknown").fill_null("unknown"),
        area=pl.col("PIN_CODE").fill_null("Unknown"),
        value=pl.col("SALES_PRICE").cast(pl.Float64),
        price=pl.col("SALES_PRICE").cast(pl.Float64)
        / pl.col("AMOUNT").cast(pl.Float64).clip(lower_bound=1.0),
    )
    log = log.with_row_index("_row").with_columns(
        _row=pl.col("_row").cast(pl.Int64), department=pl.col("category_id") // 10_000
    )
    first = pl.col("_row").min().over("day", "user_id")
    basket = first.rank("dense").over("day")
    baskets = basket.max().over("day")
    log = log.with_columns(_basket=basket.cast(pl.Int64), _baskets=baskets.cast(pl.Int64))
    seconds = (CLOSE_US - OPEN_US) * (2 * pl.col("_basket") - 1) // (2 * pl.col("_baskets"))
    return (
        log.with_columns(
            ts=(pl.col("day") * DAY_US + OPEN_US + seconds).cast(TS),
            request_id=pl.struct("day", "_basket").rank("dense").cast(pl.Int64),
            # the first sale up to this day is the price that everybody knows by then
            price=pl.col("price").sort_by("day", "_row").first().over("ad_id"),
        )
        .with_columns(price_band=pl.col("price").log(2.0).floor().cast(pl.Int64) + 1)
        .drop("_basket", "_baskets", "price")
    )


def _negatives(log: pl.DataFrame) -> pl.DataFrame:
    """One row per purchase: the same customer and basket, a product that was not in it."""
    ordered = log.sort("day", "department", "_row")
    group = ordered.select(pl.struct("day", "department").rle_id()).to_series().to_numpy()
    start = np.searchsorted(group, group, side="left")
    size = np.searchsorted(group, group, side="right") - start
    product = ordered["ad_id"].rank("dense").to_numpy().astype(np.int64)
    customer = ordered.select(pl.struct("day", "user_id").rank("dense")).to_series().to_numpy()
    basket = customer.astype(np.int64) * (int(product.max()) + 1)
    chosen = _draw(start, size, product, basket)
    rows = np.flatnonzero(chosen >= 0)
    of_product = ["ad_id", "category_id", "department", "price_band"]
    return pl.concat(
        [
            ordered[rows].drop(*of_product, "value", "_row"),
            ordered[chosen[rows]].select(of_product),
        ],
        how="horizontal",
    ).with_columns(click=pl.lit(0, pl.Int8))


def _draw(
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    product: NDArray[np.int64],
    basket: NDArray[np.int64],
) -> NDArray[np.int64]:
    """For each row a row of its group whose product is not in the row's basket; -1 where none."""
    bought = np.unique(basket + product)
    chosen = np.full(len(start), -1, dtype=np.int64)
    open_rows = np.arange(len(start))
    rng = _rng(0)
    for _ in range(DRAWS):
        at = start[open_rows] + (rng.random(len(open_rows)) * size[open_rows]).astype(np.int64)
        key = basket[open_rows] + product[at]
        place = np.minimum(np.searchsorted(bought, key), len(bought) - 1)
        free = bought[place] != key
        chosen[open_rows[free]] = at[free]
        open_rows = open_rows[~free]
    return chosen


def _canonical(frame: pl.DataFrame) -> pl.DataFrame:
    surface = pl.col("department").replace_strict(SURFACES, default=OTHER, return_dtype=pl.String)
    fifties = pl.col("department").is_between(50, 59)
    return frame.select(
        "impression_id",
        "request_id",
        "ts",
        "user_id",
        "ad_id",
        "category_id",
        "position",
        "click",
        "age_group",
        "area",
        "price_band",
        surface=pl.when(fifties).then(pl.lit(FIFTIES)).otherwise(surface),
        campaign_id=pl.col("ad_id"),
        # 13-digit codes: country and company come first, the company's own number last
        advertiser_id=pl.col("ad_id") // 1_000_000,
        objective=pl.lit("conversion"),
    )


def _again(impressions: pl.DataFrame) -> pl.DataFrame:
    """Conversions: the customer's next purchase of the product, when it is near enough."""
    bought = impressions.filter(pl.col("click") == 1).sort("user_id", "ad_id", "ts")
    following = pl.col("ts", "value").shift(-1).over("user_id", "ad_id").name.prefix("next_")
    gap = pl.col("next_ts").dt.epoch("us") - pl.col("ts").dt.epoch("us")
    return (
        bought.with_columns(following)
        .filter(gap <= AGAIN_WITHIN_US)
        .select(
            "impression_id",
            "user_id",
            kind=pl.lit("conversion"),
            ts=pl.col("next_ts"),
            value=pl.col("next_value"),
        )
        .sort("ts", "impression_id")
    )


def _rng(number: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([SEED, number])))
