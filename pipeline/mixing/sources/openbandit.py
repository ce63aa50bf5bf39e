"""Open Bandit Dataset, sample of 60,000 fashion-ad impressions (docs/sources.md).

Campaigns are surfaces. The set has no user id: users with the same four (hashed) features are
taken as one user. Both logging policies are kept; what they say of their probabilities is not
a feature.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from pipeline.mixing.sources.landed import TS, Landed, id_of

CAMPAIGNS = ("all", "men", "women")
POLICIES = ("bts", "random")
USER_FEATURES = tuple(f"user_feature_{i}" for i in range(4))
ITEM_FEATURES = tuple(f"item_feature_{i}" for i in range(4))
ADS_PER_CAMPAIGN = 1_000
AFFINITY = "user-item_affinity_"


def adapt(folder: Path) -> Landed:
    """Impressions from `folder/<policy>/<campaign>/{<campaign>,item_context}.csv`."""
    parts = [
        _campaign(folder, policy, number) for policy in POLICIES for number in range(len(CAMPAIGNS))
    ]
    frame = pl.concat(parts)
    rows = frame.height
    users = frame.select("_user").unique()
    ids = users.with_columns(user_id=pl.Series([id_of(t) for t in users["_user"]], dtype=pl.Int64))
    frame = (
        frame.join(ids, on="_user", how="left", maintain_order="left")
        .sort("ts", "campaign_id", "ad_id", "position", maintain_order=True)
        .with_row_index("impression_id", offset=1)
        .with_columns(pl.col("impression_id").cast(pl.Int64))
        .with_columns(request_id=pl.col("impression_id"))
        .drop("_user")
    )
    return Landed(rows=rows, tables={"impressions": frame})


def _campaign(folder: Path, policy: str, number: int) -> pl.DataFrame:
    """The impressions of one campaign under one policy."""
    name = CAMPAIGNS[number]
    log = pl.read_csv(folder / policy / name / f"{name}.csv", infer_schema=False)
    # hashes of item features are salted per policy: one policy's are used for both
    items = pl.read_csv(
        folder / POLICIES[0] / name / "item_context.csv", infer_schema=False
    ).select("item_id", *ITEM_FEATURES)
    category = {value: id_of(value) for value in items["item_feature_1"].unique()}
    ts = pl.col("timestamp").str.to_datetime("%Y-%m-%d %H:%M:%S%.f%:z", time_unit="us")
    return (
        log.with_columns(user_item_affinity=_own_affinity(log))
        .join(items, on="item_id", how="left", maintain_order="left")
        .select(
            _user=pl.concat_str(USER_FEATURES, separator="|"),
            ts=ts.cast(TS),
            surface=pl.lit(name),
            ad_id=number * ADS_PER_CAMPAIGN + 1 + pl.col("item_id").cast(pl.Int64),
            campaign_id=pl.lit(number + 1, pl.Int64),
            advertiser_id=pl.lit(1, pl.Int64),
            category_id=pl.col("item_feature_1").replace_strict(category, return_dtype=pl.Int64),
            objective=pl.lit("click"),
            position=pl.col("position").cast(pl.Int16) - 1,
            click=pl.col("click").cast(pl.Int8),
            user_item_affinity=pl.col("user_item_affinity"),
            item_feature_0=pl.col("item_feature_0").cast(pl.Float32),
            **{name: pl.col(name) for name in (*USER_FEATURES, *ITEM_FEATURES[1:])},
        )
    )


def _own_affinity(log: pl.DataFrame) -> pl.Series:
    """The user's logged affinity to the item that was shown."""
    width = sum(name.startswith(AFFINITY) for name in log.columns)
    columns = [pl.col(f"{AFFINITY}{k}").cast(pl.Float32) for k in range(width)]
    item = log["item_id"].cast(pl.Int64).to_numpy()
    values = log.select(columns).to_numpy()[np.arange(log.height), item]
    return pl.Series(values, dtype=pl.Float32)
