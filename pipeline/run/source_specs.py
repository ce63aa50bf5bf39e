"""What each public source offers: its tables, surfaces, objectives, features and window."""

from __future__ import annotations

from dataclasses import dataclass, field

from model.config import (
    DenseFeature,
    EmbeddingTable,
    EventAttribute,
    EventType,
    FeatureSet,
    MatchCount,
    Objective,
    SparseFeature,
)
from pipeline.run.config import MixConfig, SourceConfig, TableMapping, WindowConfig
from pipeline.run.scaling import ScalingConfig


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """What a source brings to a config: its tables, surfaces, objectives, features and window.

    `scaling`: the ladder of models that are trained on it, for a source of the scaling law.
    """

    source: SourceConfig
    surfaces: tuple[str, ...]
    objectives: tuple[Objective, ...]
    features: FeatureSet
    window: WindowConfig
    mix: MixConfig = field(default_factory=MixConfig)
    scaling: ScalingConfig | None = None


def landed(*tables: str, folder: str = "") -> tuple[TableMapping, ...]:
    """Mappings of tables that lie in the landing area under their canonical names."""
    paths = {t: f"{{landing}}/{folder}{t}/day={{day}}/*.parquet" for t in tables}
    return tuple(TableMapping(table=t, path=p) for t, p in paths.items())  # type: ignore[arg-type]


def openbandit(size: str) -> SourceSpec:
    """Open Bandit sample: campaigns as surfaces; clicks only."""
    return SourceSpec(
        source=SourceConfig(name="openbandit", tables=landed("impressions")),
        surfaces=("all", "men", "women"),
        objectives=(Objective(name="click"),),
        features=plain_features(
            user=("user_feature_0", "user_feature_1", "user_feature_2", "user_feature_3"),
            ad=("item_feature_1", "item_feature_2", "item_feature_3"),
            dense=(
                DenseFeature(name="item_feature_0", scope="ad"),
                DenseFeature(name="user_item_affinity", scope="request"),
            ),
            users=20_000,
            ads=1_000,
        ),
        window=WindowConfig(bootstrap_days=7, student_days=3, holdout_hours=24),
    )


def movielens(size: str) -> SourceSpec:
    """MovieLens-100k: genre groups as surfaces; click = rating of 4 or more, conversion = 5."""
    return SourceSpec(
        source=SourceConfig(name="movielens", tables=landed("impressions", "conversions")),
        surfaces=("action", "comedy", "drama", "other"),
        objectives=(Objective(name="click"), Objective(name="conversion", window_hours=1)),
        features=plain_features(
            user=("age_group", "gender", "occupation"),
            ad=("release_year", "second_genre"),
            users=5_000,
            ads=8_000,
        ),
        window=WindowConfig(
            bootstrap_days=220,
            student_days=60,
            holdout_hours=24 * 20,
            retention_days=220,
            calibration_hours=24 * 20,
        ),
        # a small log: about every row is trained on
        mix=MixConfig(budget=2.0),
    )


def tafeng(size: str) -> SourceSpec:
    """Ta Feng grocery log: department groups as surfaces; conversion = bought again in 14 days.

    All 120 days are ingested and make histories; a first run trains on the last 35, since all of
    them cost four times as much (window.bootstrap_days=120).
    """
    return SourceSpec(
        source=SourceConfig(name="tafeng", tables=landed("impressions", "conversions")),
        surfaces=("dept_10", "dept_11", "dept_12", "dept_50", "dept_other"),
        objectives=(Objective(name="click"), Objective(name="conversion", window_hours=14 * 24)),
        features=plain_features(
            user=("age_group", "area"),
            ad=("price_band",),
            users=64_000,
            ads=48_000,
        ),
        # students need conversion labels, which are known two weeks after the impression
        window=WindowConfig(
            bootstrap_days=35,
            student_days=24,
            holdout_hours=24 * 4,
            retention_days=121,
            history_days=121,
            calibration_hours=24 * 4,
        ),
        # a small log: about every row is trained on
        mix=MixConfig(budget=3.0),
    )


TAOBAO_PROFILE = (
    "cms_segid",
    "cms_group_id",
    "gender",
    "age_level",
    "pvalue_level",
    "shopping_level",
    "occupation",
    "city_level",
)


def taobaoad(size: str) -> SourceSpec:
    """TaobaoAd: the two places (pid) as surfaces; clicks, and behaviours as organic events.

    Days are UTC: the cut, 32 hours before the end of 2017-05-13, is midnight in Beijing, where the
    published split is.
    """
    features = plain_features(
        user=TAOBAO_PROFILE,
        ad=("brand", "campaign_id", "advertiser_id"),
        large=("brand", "campaign_id", "advertiser_id"),
        dense=(DenseFeature(name="price", scope="ad", transform="log1p"),),
        users=2_000_000,
        ads=1_000_000,
        organic=True,
    )
    return SourceSpec(
        source=SourceConfig(
            name="taobaoad", tables=landed("impressions", "engagements", folder="set/")
        ),
        surfaces=("430548_1007", "430539_1007"),
        objectives=(Objective(name="click"),),
        features=features,
        window=WindowConfig(
            bootstrap_days=9,
            student_days=3,
            holdout_hours=32,
            retention_days=23,
            history_days=23,
            num_buckets=16,
        ),
    )


def aliccp(size: str) -> SourceSpec:
    """Ali-CCP: field 301 as surfaces; click, then purchase; days stand for the published halves."""
    pairs = ("field_508", "field_509", "field_702", "field_853")
    return SourceSpec(
        source=SourceConfig(
            name="aliccp", tables=landed("impressions", "conversions", folder="set/")
        ),
        surfaces=("position_1", "position_2", "position_3"),
        objectives=(Objective(name="click"), Objective(name="conversion", window_hours=1)),
        features=plain_features(
            user=tuple(f"field_{n}" for n in (121, 122, 124, 125, 126, 127, 128, 129)),
            ad=("field_210", "field_216", "advertiser_id"),
            request=pairs,
            large=("field_210", "field_216", "advertiser_id", *pairs),
            users=1_000_000,
            ads=4_000_000,
        ),
        window=WindowConfig(
            bootstrap_days=8, student_days=3, holdout_hours=24, retention_days=14, num_buckets=16
        ),
    )


def kuairand(size: str) -> SourceSpec:
    """KuaiRand: tabs as surfaces; click = is_click, conversion = long_view when viewing ended."""
    return SourceSpec(
        source=SourceConfig(
            name="kuairand", tables=landed("impressions", "conversions", folder="set/")
        ),
        surfaces=("tab_0", "tab_1", "tab_2", "tab_4", "tab_6", "tab_other"),
        objectives=(Objective(name="click"), Objective(name="conversion", window_hours=1)),
        features=plain_features(
            user=(
                "user_active_degree",
                "follow_user_num_range",
                "fans_user_num_range",
                "register_days_range",
                "is_live_streamer",
                "is_video_author",
                *(f"onehot_feat{i}" for i in (1, 2, 3, 4, 7)),
            ),
            ad=("advertiser_id", "video_type", "upload_type", "music_type"),
            request=("is_rand",),
            large=("advertiser_id",),
            dense=(DenseFeature(name="duration_s", scope="ad", transform="log1p"),),
            users=60_000,
            ads=1_000_000,
        ),
        window=WindowConfig(
            bootstrap_days=32,
            student_days=8,
            holdout_hours=48,
            retention_days=32,
            history_days=32,
            num_buckets=8,
        ),
        # clicks are common, and a small log: most rows are trained on
        mix=MixConfig(budget=2.0),
    )


def plain_features(
    *,
    user: tuple[str, ...],
    ad: tuple[str, ...],
    request: tuple[str, ...] = (),
    large: tuple[str, ...] = (),
    users: int,
    ads: int,
    dense: tuple[DenseFeature, ...] = (),
    organic: bool = False,
) -> FeatureSet:
    """Features of a public set: columns named as they are, one table of 1,024 rows for each.

    `large`: columns with a table of 100,000 rows instead; `users`, `ads`: rows of their
    tables; `organic`: engagements are events too.
    """
    extra = user + ad + request
    organic_matches = (MatchCount(event="organic", key="category_id"),) if organic else ()
    return FeatureSet(
        tables=(
            EmbeddingTable(name="user", buckets=users),
            EmbeddingTable(name="ad", buckets=ads),
            EmbeddingTable(name="category", buckets=4_096),
            EmbeddingTable(name="position", buckets=64),
            EmbeddingTable(name="surface", buckets=64),
            *(EmbeddingTable(name=n, buckets=100_000 if n in large else 1_024) for n in extra),
        ),
        sparse=(
            SparseFeature(name="user_id", table="user", scope="user", central_only=True),
            *(SparseFeature(name=name, table=name, scope="user") for name in user),
            SparseFeature(name="ad_id", table="ad", scope="ad"),
            SparseFeature(name="category_id", table="category", scope="ad"),
            *(SparseFeature(name=name, table=name, scope="ad") for name in ad),
            SparseFeature(name="position", table="position", scope="request"),
            SparseFeature(name="surface", table="surface", scope="request"),
            *(SparseFeature(name=name, table=name, scope="request") for name in request),
        ),
        dense=dense,
        events=events("shown", *(("organic",) if organic else ())),
        matches=(*matches("shown"), *organic_matches),
    )


def events(*names: str) -> tuple[EventType, ...]:
    """Event types by name: shown (impressions) and organic (engagements)."""
    attributes = (
        EventAttribute(column="category_id", table="category"),
        EventAttribute(column="surface", table="surface"),
        EventAttribute(column="action", table="surface"),
    )
    shown = EventType(
        name="shown",
        source="impressions",
        attributes=(EventAttribute(column="ad_id", table="ad"), *attributes),
        max_len=32,
        width=16,
        heads=2,
        tokens=4,
        window=16,
    )
    organic = EventType(
        name="organic",
        source="engagements",
        attributes=attributes[:2],
        max_len=24,
        width=16,
        heads=2,
        tokens=2,
        window=16,
        availability_delay_s=60,
    )
    return tuple(event for event in (shown, organic) if event.name in names)


def matches(event: str) -> tuple[MatchCount, ...]:
    """Match counts of an event type by ad and by category."""
    return (MatchCount(event=event, key="ad_id"), MatchCount(event=event, key="category_id"))
