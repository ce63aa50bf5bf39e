"""From a foreign frame to canonical rows and rejected rows, each with a reason.

All columns are cast at once; one validity mask results. Reasons are worked out for bad rows
alone, and the first one in column order is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from data_contracts.schema import CONVERSION_KINDS, OBJECTIVES, canonical
from pipeline.mixing import casting
from pipeline.run.config import RunConfig
from pipeline.run.errors import ContractError
from pipeline.run.window import DAY_US, day_begin_us

# Columns that a source may leave out altogether, and what stands in for them.
DEFAULTS: dict[str, dict[str, int | float | str | None]] = {
    "impressions": {"campaign_id": 0, "advertiser_id": 0, "objective": "click", "position": 0},
    "conversions": {"impression_id": None, "value": None, "ad_id": None},
    "engagements": {"kind": "view", "category_id": 0},
    "candidates": {"score": None},
}
# Identities must be integers; other ids (and features) may be strings, which are hashed.
IDENTITIES = frozenset({"impression_id", "request_id", "user_id", "ad_id", "item_id"})
MAX_ROW_TEXT = 4_000


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a table's columns must be; `texts` lists the allowed strings (None: any)."""

    table: str
    schema: pa.Schema
    texts: dict[str, tuple[str, ...] | None]

    @property
    def defaults(self) -> dict[str, int | float | str | None]:
        """Stand-ins for columns that the source lacks."""
        return DEFAULTS[self.table]


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """Canonical rows; `rejected` has reason and the row as JSON, in source order."""

    frame: pl.DataFrame
    rejected: pl.DataFrame
    duplicates: int
    defaulted: tuple[str, ...]

    @property
    def reasons(self) -> dict[str, int]:
        """Rejected rows per reason."""
        return dict(self.rejected["reason"].value_counts().sort("reason").iter_rows())


def rules_of(config: RunConfig, table: str) -> Rules:
    """The rules of a canonical table under a config; engagements may lie on any surface."""
    surfaces = None if table == "engagements" else config.surfaces
    kinds = CONVERSION_KINDS if table == "conversions" else None
    sparse = tuple(f.name for f in config.features.sparse)
    dense = tuple(f.name for f in config.features.dense)
    return Rules(
        table=table,
        schema=canonical(table, sparse, dense),
        texts={"surface": surfaces, "kind": kinds, "objective": OBJECTIVES},
    )


def clean(rules: Rules, frame: pl.DataFrame, day: str, surface: str | None = None) -> Cleaned:
    """Split a day's rows of a table into canonical and rejected ones.

    With `surface`, rows of other surfaces take part in the search for duplicates only. Of the
    valid impressions with one impression_id the first in source order survives. A column that
    is missing and has no stand-in is a `ContractError`; a frame without rows needs no columns.
    """
    frame, defaulted = _with_defaults(rules, frame, day)
    if surface is not None:
        frame = frame.filter(_on(frame, surface) | _repeated(frame["impression_id"]))
    columns, problems = _cast(rules, frame, day)
    bad = _any([mask for mask, _ in problems], len(frame))
    doubles = np.zeros(len(frame), dtype=bool)
    if rules.table == "impressions":
        doubles = _later_copies(columns[0], ~bad)
        problems.append((doubles, "impression_id is a duplicate"))
    mine = np.ones(len(frame), dtype=bool)
    if surface is not None:
        mine = _on(frame, surface).to_numpy()
        bad, doubles = bad & mine, doubles & mine
    refused = bad | doubles
    return Cleaned(
        frame=pl.DataFrame(columns).filter(pl.Series(mine & ~refused)),
        rejected=_rejected(frame, refused, problems),
        duplicates=int(doubles.sum()),
        defaulted=defaulted,
    )


def clean_unassigned(rules: Rules, frame: pl.DataFrame, day: str) -> Cleaned:
    """Reject the impressions that lie on no configured surface, and leave the others out."""
    frame, defaulted = _with_defaults(rules, frame, day)
    allowed = rules.texts["surface"]
    raw = frame["surface"]
    absent = raw.is_null().to_numpy()
    lost = casting.to_text(raw, allowed).is_null().to_numpy()
    problems = [
        (absent, "surface is null"),
        (lost & ~absent, f"surface is not one of {', '.join(allowed or ())}"),
    ]
    rejected = _rejected(frame, lost, problems)
    return Cleaned(frame=frame.clear(), rejected=rejected, duplicates=0, defaulted=defaulted)


def _with_defaults(
    rules: Rules, frame: pl.DataFrame, day: str
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    if not len(frame):
        return pl.DataFrame(schema=dict.fromkeys(rules.schema.names, pl.Null)), ()
    missing = [n for n in rules.schema.names if n not in frame.columns]
    hopeless = [n for n in missing if n not in rules.defaults]
    if hopeless:
        raise ContractError(
            f"{rules.table} of {day} have no column {hopeless}, only {sorted(frame.columns)}; "
            "map the columns in source.tables"
        )
    return frame.with_columns(pl.lit(rules.defaults[n]).alias(n) for n in missing), tuple(missing)


def _cast(
    rules: Rules, frame: pl.DataFrame, day: str
) -> tuple[list[pl.Series], list[tuple[np.ndarray, str]]]:
    columns: list[pl.Series] = []
    problems: list[tuple[np.ndarray, str]] = []
    for wanted in rules.schema:
        raw = frame[wanted.name]
        values, rule = _cast_one(rules, wanted, raw)
        columns.append(values.alias(wanted.name))
        if values.null_count():
            failed = values.is_null()
            absent = raw.is_null()
            if not wanted.nullable and absent.any():
                problems.append((absent.to_numpy(), f"{wanted.name} is null"))
            wrong = failed & ~absent
            if wrong.any():
                problems.append((wrong.to_numpy(), f"{wanted.name} {rule}"))
        if wanted.name == "ts":
            outside = _outside(values, day)
            if outside.any():
                problems.append((outside, "ts is outside the day"))
    return columns, problems


def _cast_one(rules: Rules, wanted: pa.Field, raw: pl.Series) -> tuple[pl.Series, str]:
    name, kind = wanted.name, wanted.type
    if pa.types.is_timestamp(kind):
        return casting.to_time(raw), "is not a time"
    if pa.types.is_string(kind):
        allowed = rules.texts.get(name)
        rule = f"is not one of {', '.join(allowed)}" if allowed else "is no text or too long"
        return casting.to_text(raw, allowed), rule
    if pa.types.is_floating(kind):
        wide = pl.Float64() if pa.types.is_float64(kind) else pl.Float32()
        return casting.to_number(raw, wide), "is not a finite number"
    if pa.types.is_int8(kind):
        return casting.to_range(raw, 0, 1, pl.Int8()), "is not 0 or 1"
    if pa.types.is_int16(kind):
        return casting.to_range(raw, 0, 32_767, pl.Int16()), "is not in 0..32767"
    if name in IDENTITIES:
        return casting.to_id(raw), "is not an integer of 0 or more"
    return casting.to_feature_id(raw), "is no id (an integer of 0 or more, or a short text)"


def _outside(times: pl.Series, day: str) -> np.ndarray:
    begin = day_begin_us(day)
    stamps = times.to_physical().fill_null(begin).to_numpy()
    return (stamps < begin) | (stamps >= begin + DAY_US)


def _on(frame: pl.DataFrame, surface: str) -> pl.Series:
    return casting.to_text(frame["surface"], (surface,)).is_not_null()


def _repeated(raw: pl.Series) -> pl.Series:
    ids = casting.to_id(raw)
    if ids.n_unique() == len(ids):
        return pl.repeat(False, len(ids), eager=True)
    return ids.is_duplicated()


def _later_copies(ids: pl.Series, valid: np.ndarray) -> np.ndarray:
    copies = np.zeros(len(ids), dtype=bool)
    if ids.n_unique() < len(ids):
        kept = ids.filter(pl.Series(valid))
        copies[np.flatnonzero(valid)] = ~kept.is_first_distinct().to_numpy()
    return copies


def _any(masks: list[np.ndarray], length: int) -> np.ndarray:
    return np.logical_or.reduce(masks) if masks else np.zeros(length, dtype=bool)


def _rejected(
    frame: pl.DataFrame, refused: np.ndarray, problems: list[tuple[np.ndarray, str]]
) -> pl.DataFrame:
    if not refused.any():
        return pl.DataFrame(schema={"reason": pl.String, "row": pl.String})
    reasons = np.full(int(refused.sum()), "", dtype=object)
    for mask, reason in reversed(problems):  # so that the first problem of a row is kept
        reasons[mask[refused]] = reason
    rows = frame.filter(pl.Series(refused))
    text = rows.select(pl.struct(pl.all()).struct.json_encode().str.slice(0, MAX_ROW_TEXT))
    return pl.DataFrame(
        {
            "reason": pl.Series(reasons.tolist(), dtype=pl.String),
            "row": text.to_series(),
        }
    )
