"""Contract of the mixture: the rows that train, score and feed the students."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from data_contracts import frames
from data_contracts.rules import Expectation, RowRule, between, in_set, none_bad, zero

SELECTIONS = ("train", "holdout", "log")
GROUP = "part"
KEY = ("impression_id", "ts_us", "label_us")
MAX_WEIGHT = 1e5


@dataclass(frozen=True, kw_only=True)
class MixtureSpec:
    """What the mixture is checked against; spans of the label time in microseconds UTC."""

    surfaces: tuple[str, ...]
    objectives: tuple[str, ...]
    events: tuple[str, ...]
    train_begin: int
    cut: int
    day_end: int

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that must be there and hold no null."""
        labels = [f"{kind}_{o}" for o in self.objectives for kind in ("y", "m", "w")]
        spans = [f"{side}_{e}" for e in self.events for side in ("start", "end")]
        keys = ("g", "impression_id", "user_id", "ad_id", "surface", "ts_us", "label_us", "shift")
        return (*keys, *labels, *spans)


def labelled(selections: dict[str, pl.LazyFrame]) -> pl.LazyFrame:
    """All selections as one frame with the selection's name in `selection`."""
    return pl.concat(
        [frame.with_columns(pl.lit(name).alias("selection")) for name, frame in selections.items()],
        how="vertical_relaxed",
    )


def row_rules(spec: MixtureSpec) -> list[RowRule]:
    """Rules on every row of every selection."""
    train, holdout = pl.col("selection") == "train", pl.col("selection") == "holdout"
    label, shift = pl.col("label_us"), pl.col("shift")
    rules = [
        *frames.null_rules(spec.required),
        _critical("surface_out_of_range", "surface",
                  (pl.col("surface") < 0) | (pl.col("surface") >= len(spec.surfaces)),
                  "the surface is an index into the config's surfaces"),
        _critical("train_label_outside", "label_us",
                  train & ((label < spec.train_begin) | (label >= spec.cut)),
                  "a label of the holdout in training is a leak; an old one is trained twice"),
        _critical("holdout_label_outside", "label_us",
                  holdout & ((label < spec.cut) | (label >= spec.day_end)),
                  "the holdout is what was never trained on"),
        _critical("label_before_impression", "label_us", label < pl.col("ts_us"),
                  "a label cannot be known before its impression"),
        _critical("shift_out_of_range", "shift", ~shift.is_between(0, math.log(MAX_WEIGHT)),
                  "a shift is minus the logarithm of a sampling rate"),
        _critical("holdout_shifted", "shift", ~train & (shift != 0),
                  "the holdout and the log are not sampled"),
    ]  # fmt: skip
    for o in spec.objectives:
        weight = pl.col(f"w_{o}")
        rules += [
            _critical(f"label_not_0_1_{o}", f"y_{o}", ~pl.col(f"y_{o}").is_in([0, 1]),
                      "labels are 0 or 1"),
            _critical(f"weight_out_of_range_{o}", f"w_{o}",
                      ~weight.is_finite() | (weight < 0) | (weight > MAX_WEIGHT),
                      "a weight is the inverse of a sampling rate"),
            _critical(f"holdout_weighted_{o}", f"w_{o}", holdout & pl.col(f"m_{o}") & (weight != 1),
                      "the holdout is not sampled"),
        ]  # fmt: skip
    for e in spec.events:
        start, end = pl.col(f"start_{e}"), pl.col(f"end_{e}")
        rules.append(_critical(f"bad_span_{e}", f"end_{e}", (start < 0) | (end < start),
                               "a history is a span of the user's timeline"))  # fmt: skip
    return rules


def profile(frame: pl.LazyFrame, spec: MixtureSpec) -> pl.DataFrame:
    """One row per selection and surface ("train/0"): rows, broken rules, duplicates, rates."""
    figures = {
        "duplicates": pl.len() - pl.struct("selection", *KEY).n_unique(),
        **{f"rate_{o}": _rate(o) for o in spec.objectives},
        **{f"mean_weight_{o}": pl.col(f"w_{o}").filter(pl.col(f"m_{o}")).mean()
           for o in spec.objectives},
    }  # fmt: skip
    part = pl.concat_str("selection", pl.col("surface").cast(pl.String), separator="/")
    found = frames.profile(
        frame.with_columns(part.alias(GROUP)), group=GROUP, rules=row_rules(spec), figures=figures
    )
    wanted = [f"{s}/{i}" for s in SELECTIONS for i in range(len(spec.surfaces))]
    return frames.missing_groups(found, GROUP, wanted)


def suite(spec: MixtureSpec) -> list[Expectation]:
    """The expectations of the boundary, profile first."""
    return [
        between("rows", 1, None, severity="warning",
                reason="a surface that a selection lacks is not trained, scored or taught"),
        Expectation(
            kind="ExpectColumnMaxToBeBetween",
            arguments={"column": "rows", "min_value": 1},
            severity="critical",
            reason="an empty mixture cannot be trained on",
        ),
        *none_bad(row_rules(spec)),
        zero("duplicates", severity="critical",
                reason="a selection holds a label once"),
        between("rate_click", 1e-5, 0.95, severity="warning",
                reason="no clicks, or nothing but clicks, is a broken label more often than not"),
        *(between(f"rate_{o}", 0, 0.95, severity="warning", reason="conversions are rare")
          for o in spec.objectives if o != "click"),
        in_set("surface", range(len(spec.surfaces)), on="sample", severity="critical",
               reason="the surface is an index into the config's surfaces"),
        *(in_set(f"y_{o}", [0, 1], on="sample", severity="critical", reason="labels are 0 or 1")
          for o in spec.objectives),
        *(between(f"w_{o}", 0, MAX_WEIGHT, on="sample", severity="critical",
                  reason="a weight is the inverse of a sampling rate") for o in spec.objectives),
    ]  # fmt: skip


def _rate(objective: str) -> pl.Expr:
    """Weighted label rate over the mature rows: what the mix claims that nature's rate is."""
    weight = pl.col(f"w_{objective}") * pl.col(f"m_{objective}")
    return (weight * pl.col(f"y_{objective}")).sum() / weight.sum()


def _critical(name: str, shows: str, bad: pl.Expr, reason: str) -> RowRule:
    return RowRule(name=name, shows=shows, bad=bad, severity="critical", reason=reason)
