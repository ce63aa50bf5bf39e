"""KuaiRand (Pure, 1K or 27K) as ad logs: videos are ads, tabs surfaces; docs/sources.md.

The logs are streamed; user_features and the used columns of video_features_basic are held.
"""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from pipeline.mixing.sources.days import DayWriter
from pipeline.mixing.sources.delimited import Malformed, shifted, stream
from pipeline.mixing.sources.landed import TS
from pipeline.run.errors import DataError
from pipeline.run.published import PUBLISHED

SET = PUBLISHED["kuairand"]
LOGS = ("log_standard_4_08_to_4_21", "log_standard_4_22_to_5_08", "log_random_4_22_to_5_08")
TABS = (0, 1, 2, 4, 6)  # the others are small, and are one surface together
LAST_TAB = 14
RANGES = ("follow_user_num_range", "fans_user_num_range", "register_days_range")
USER_TEXTS = ("user_active_degree", *RANGES)
USER_CODES = ("is_live_streamer", "is_video_author", *(f"onehot_feat{i}" for i in (1, 2, 3, 4, 7)))
VIDEO_TEXTS = ("video_type", "upload_type")
VIDEO_NUMBERS = ("campaign_id", "advertiser_id", "category_id", "music_type", "duration_s")
LOG = {
    name: (name,)
    for name in (
        "user_id",
        "video_id",
        "time_ms",
        "is_click",
        "long_view",
        "play_time_ms",
        "is_rand",
        "tab",
    )
}
USER = {name: (name,) for name in ("user_id", *USER_TEXTS, *USER_CODES)}
VIDEO = {
    name: (name,)
    for name in ("video_id", "author_id", *VIDEO_TEXTS, "video_duration", "music_type", "tag")
}


def adapt(files: dict[str, tuple[Path, ...]], folder: Path, malformed: Malformed) -> dict[str, int]:
    """Write impressions and conversions by day below `folder`; counts for the manifest."""
    _one_version(files)
    users = _users(files["user_features"], malformed)
    videos = _videos(files["video_features_basic"], malformed)
    counts = {"users": users.height, "videos": videos.height, "without_user": 0, "without_video": 0}
    logs = tuple(path for role in LOGS for path in files[role])
    with (
        DayWriter(folder, "impressions", SET.first_day, SET.last_day) as shown,
        DayWriter(folder, "conversions", SET.first_day, SET.last_day) as viewed,
    ):
        for frame in stream(logs, LOG, malformed):
            rows = _rows(frame, shown.rows)
            viewed.write(_long_views(rows))
            joined = rows.drop("_long", "_seen").join(
                users, on="user_id", how="left", maintain_order="left"
            )
            joined = joined.join(videos, on="ad_id", how="left", maintain_order="left")
            counts["without_user"] += joined["user_active_degree"].null_count()
            counts["without_video"] += joined["video_type"].null_count()
            shown.write(
                joined.with_columns(
                    pl.col(*USER_TEXTS, *VIDEO_TEXTS).fill_null("unknown"),
                    pl.col(*USER_CODES, *VIDEO_NUMBERS).fill_null(0),
                )
            )
    return counts | {
        "impressions": shown.rows,
        "conversions": viewed.rows,
        "misdated": shown.misdated + viewed.misdated,
    }


def _one_version(files: dict[str, tuple[Path, ...]]) -> None:
    """`DataError` when files of two versions lie together: their ids mean different things."""
    suffix = re.compile(r"_([^_]+?)(_part\d+)?\.csv(\.gz)?$")
    names = [path.name for paths in files.values() for path in paths]
    found = {match.group(1) for name in names if (match := suffix.search(name))}
    if len(found) > 1:
        raise DataError(
            f"source.files holds several versions of kuairand: {sorted(found)}; "
            "ids differ between them, so put each into a folder of its own"
        )


def _rows(frame: pl.DataFrame, before: int) -> pl.DataFrame:
    milliseconds, user, tab = pl.col("time_ms"), pl.col("user_id"), pl.col("tab")
    named = pl.concat_str(pl.lit("tab_"), tab.cast(pl.String))
    known = tab.is_between(0, LAST_TAB)
    return frame.select(
        impression_id=pl.int_range(before + 1, before + 1 + pl.len()),
        # what came to a user in one millisecond is one request
        request_id=user * 2**42 + milliseconds,
        ts=(milliseconds * 1_000).cast(TS),
        surface=pl.when(tab.is_in(TABS)).then(named).when(known).then(pl.lit("tab_other")),
        user_id=user,
        ad_id=pl.col("video_id"),
        objective=pl.lit("conversion"),
        position=pl.lit(0, pl.Int16),
        click=pl.col("is_click"),
        is_rand=shifted("is_rand"),
        _long=pl.col("long_view") == 1,
        _seen=((milliseconds + pl.col("play_time_ms").fill_null(0)) * 1_000).cast(TS),
    )


def _long_views(rows: pl.DataFrame) -> pl.DataFrame:
    """A conversion per long view, known when the viewing ended."""
    return rows.filter(pl.col("_long") & pl.col("ts").is_not_null()).select(
        "impression_id",
        "user_id",
        kind=pl.lit("conversion"),
        ts=pl.col("_seen"),
        value=pl.lit(1.0),
    )


def _users(paths: tuple[Path, ...], malformed: Malformed) -> pl.DataFrame:
    frames = [
        frame.select(
            user_id=pl.col("user_id"),
            **{name: pl.col(name).fill_null("unknown") for name in USER_TEXTS},
            **{name: shifted(name) for name in USER_CODES},
        )
        for frame in stream(paths, USER, malformed, texts=USER_TEXTS)
    ]
    return pl.concat(frames).unique("user_id", keep="first", maintain_order=True)


def _videos(paths: tuple[Path, ...], malformed: Malformed) -> pl.DataFrame:
    """One row per video; its category is the first of its tags, plus one."""
    frames = [
        frame.with_columns(
            tag=pl.col("tag").str.extract(r"^\s*(\d+)", 1).cast(pl.Int64, strict=False)
        ).select(
            ad_id=pl.col("video_id"),
            campaign_id=pl.col("video_id"),
            advertiser_id=shifted("author_id"),
            category_id=shifted("tag"),
            music_type=shifted("music_type"),
            duration_s=(pl.col("video_duration").fill_null(0) / 1_000).cast(pl.Float32),
            **{name: pl.col(name).fill_null("unknown") for name in VIDEO_TEXTS},
        )
        for frame in stream(paths, VIDEO, malformed, texts=(*VIDEO_TEXTS, "tag"))
    ]
    return pl.concat(frames).unique("ad_id", keep="first", maintain_order=True)
