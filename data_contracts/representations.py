"""Contract of representations: what students may read of the foundation model."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from data_contracts import frames
from data_contracts.rules import Expectation, RowRule, between, in_set, none_bad, zero

GROUP = "day"
MIN_COVERAGE = 0.999
# The smallest code that is not zero has norm 1 as int8; float32 codes are tanh values.
MIN_NORM = 1e-6


@dataclass(frozen=True, kw_only=True)
class RepresentationsSpec:
    """What the representations are checked against; `dim` codes in a vector."""

    objectives: tuple[str, ...]
    epoch: str
    fm_cut_us: int
    dim: int

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that must be there and hold no null."""
        logits = tuple(f"logit_{o}" for o in self.objectives)
        return ("impression_id", "user_id", "ad_id", "ts_us", "epoch", "fm_cut_us", *logits)


def prepared(frame: pl.LazyFrame) -> pl.LazyFrame:
    """`frame` with the vector's norm and width in columns of their own, and without the vector."""
    codes = pl.col("z").cast(pl.List(pl.Float64))
    return frame.with_columns(
        norm=(codes * codes).list.sum().sqrt(),
        width=codes.list.len(),
        not_finite=codes.list.eval(~pl.element().is_finite()).list.any(),
    ).drop("z")


def row_rules(spec: RepresentationsSpec) -> list[RowRule]:
    """Rules on every vector."""
    return [
        *frames.null_rules(spec.required),
        _critical("wrong_epoch", "epoch", pl.col("epoch") != spec.epoch,
                  "vectors of two snapshots do not mix"),
        _critical("wrong_fm_cut", "fm_cut_us", pl.col("fm_cut_us") != spec.fm_cut_us,
                  "the cut belongs to the epoch"),
        _critical("leak", "ts_us", pl.col("ts_us") < pl.col("fm_cut_us"),
                  "the model saw labels up to its cut: an earlier vector knows its own label"),
        _critical("wrong_width", "width", pl.col("width") != spec.dim,
                  "all vectors of an epoch are of one width"),
        _critical("vector_not_finite", "impression_id", pl.col("not_finite"),
                  "one NaN spoils a user's pool"),
        _critical("zero_norm", "norm", pl.col("norm") < MIN_NORM,
                  "a vector of zeros carries nothing"),
        *(_critical(f"logit_not_finite_{o}", f"logit_{o}", ~pl.col(f"logit_{o}").is_finite(),
                    "students distil this logit") for o in spec.objectives),
    ]  # fmt: skip


def profile(frame: pl.LazyFrame, spec: RepresentationsSpec, wanted: pl.DataFrame) -> pl.DataFrame:
    """One row per day: rows, broken rules, duplicates, coverage, norms.

    `wanted` has `day` and `rows`: how many impressions of the log must have a vector; older days
    of the epoch have none and no coverage.
    """
    figures = {
        "duplicates": pl.len() - pl.col("impression_id").n_unique(),
        "mean_norm": pl.col("norm").mean(),
        "epochs": pl.col("epoch").n_unique(),
        **{f"mean_logit_{o}": pl.col(f"logit_{o}").mean() for o in spec.objectives},
    }
    found = frames.profile(frame, group=GROUP, rules=row_rules(spec), figures=figures)
    both = found.join(
        wanted.select(GROUP, pl.col("rows").alias("wanted")),
        on=GROUP,
        how="full",
        coalesce=True,
        maintain_order="left_right",
    ).with_columns(pl.col("rows").fill_null(0))
    share = pl.col("rows") / pl.col("wanted")
    return both.with_columns(pl.when(pl.col("wanted") > 0).then(share).alias("coverage"))


def suite(spec: RepresentationsSpec) -> list[Expectation]:
    """The expectations of the boundary, profile first."""
    return [
        Expectation(
            kind="ExpectColumnMaxToBeBetween",
            arguments={"column": "rows", "min_value": 1},
            severity="critical",
            reason="students would have nothing to read",
        ),
        between("coverage", MIN_COVERAGE, 1.0, severity="critical",
                reason="an impression without a vector is one that students train wrongly on"),
        between("epochs", 1, 1, severity="critical", reason="vectors of two snapshots do not mix"),
        *none_bad(row_rules(spec)),
        zero("duplicates", severity="critical", reason="one vector per impression"),
        *(between(f"mean_logit_{o}", -15, 5, severity="warning",
                  reason="a mean this far out is a model that diverged") for o in spec.objectives),
        in_set("epoch", [spec.epoch], on="sample", severity="critical",
               reason="vectors of two snapshots do not mix"),
        between("norm", MIN_NORM, None, on="sample", severity="critical",
                reason="a vector of zeros carries nothing"),
        *(between(f"logit_{o}", -50, 50, on="sample", severity="warning",
                  reason="logits this large saturate") for o in spec.objectives),
    ]  # fmt: skip


def _critical(name: str, shows: str, bad: pl.Expr, reason: str) -> RowRule:
    return RowRule(name=name, shows=shows, bad=bad, severity="critical", reason=reason)
