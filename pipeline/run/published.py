"""Public sets whose files one gets oneself: what they are called, and where they are published.

Their licences bind whoever gets them, and no package carries them: the user downloads a set once
and names the folder (`FILES=/path`, or the override `source.files`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.run.errors import DataError


@dataclass(frozen=True, kw_only=True)
class PublishedSet:
    """A set as published.

    `files`: role -> file names to look for, the first that matches counts, and any of them may end
    in .gz; `first_day`, `last_day`: the days (UTC) that its rows can lie on; `default_day`: the
    day to run when none is named.
    """

    name: str
    files: tuple[tuple[str, tuple[str, ...]], ...]
    where: str
    licence: str
    first_day: str
    last_day: str
    default_day: str


PUBLISHED: Final = {
    "taobaoad": PublishedSet(
        name="taobaoad",
        files=(
            ("raw_sample", ("raw_sample.csv",)),
            ("ad_feature", ("ad_feature.csv",)),
            ("user_profile", ("user_profile.csv",)),
            ("behavior_log", ("behavior_log.csv", "raw_behavior_log.csv")),
        ),
        where="https://tianchi.aliyun.com/dataset/56 (Ad Display/Click Data on Taobao.com)",
        licence="the one on that page: research, not commercial, no redistribution",
        first_day="2017-04-21",
        last_day="2017-05-13",
        default_day="2017-05-13",
    ),
    "aliccp": PublishedSet(
        name="aliccp",
        files=(
            ("sample_skeleton_train", ("sample_skeleton_train.csv",)),
            ("common_features_train", ("common_features_train.csv",)),
            ("sample_skeleton_test", ("sample_skeleton_test.csv",)),
            ("common_features_test", ("common_features_test.csv",)),
        ),
        where="https://tianchi.aliyun.com/dataset/408 (Ali-CCP)",
        licence="the one on that page: research, not commercial, no redistribution",
        first_day="2000-01-01",
        last_day="2000-01-14",
        default_day="2000-01-08",
    ),
    "kuairand": PublishedSet(
        name="kuairand",
        files=(
            ("log_standard_4_08_to_4_21", ("log_standard_4_08_to_4_21_*.csv",)),
            ("log_standard_4_22_to_5_08", ("log_standard_4_22_to_5_08_*.csv",)),
            ("log_random_4_22_to_5_08", ("log_random_4_22_to_5_08_*.csv",)),
            ("user_features", ("user_features_*.csv",)),
            ("video_features_basic", ("video_features_basic_*.csv",)),
        ),
        where="https://zenodo.org/records/10439422 (KuaiRand)",
        licence="CC BY-SA 4.0",
        first_day="2022-04-07",
        last_day="2022-05-08",
        default_day="2022-05-08",
    ),
}


def published_files(wanted: PublishedSet, folder: str) -> dict[str, tuple[Path, ...]]:
    """The files of a set by role, sorted by name; `DataError` names the first that is missing."""
    where = f"{wanted.name} is published at {wanted.where}; licence: {wanted.licence}"
    if not folder:
        raise DataError(
            f"source {wanted.name!r} has no files yet: download them and set FILES=/their/folder "
            f"(or the override source.files). {where}"
        )
    if "://" in folder or not Path(folder).is_dir():
        raise DataError(
            f"source.files must be an existing local folder, got {folder!r}; set FILES to the "
            f"folder that holds {wanted.files[0][1][0]}. {where}"
        )
    found = {role: _first(Path(folder), names) for role, names in wanted.files}
    missing = [names[0] for role, names in wanted.files if not found[role]]
    if missing:
        raise DataError(f"{Path(folder) / missing[0]} is missing; put it there. {where}")
    return found


def _first(folder: Path, names: tuple[str, ...]) -> tuple[Path, ...]:
    """The files of the first name that has any, plain before .gz, in the folder or in data/."""
    for name in names:
        for place in (folder, folder / "data"):
            for pattern in (name, f"{name}.gz"):
                paths = tuple(sorted(p for p in place.glob(pattern) if p.is_file()))
                if paths:
                    return paths
    return ()
