"""From foreign frames to canonical rows and rejected rows, each with a reason.

A day comes in parts. All columns of a part are cast at once; one validity mask results. Reasons
are worked out for bad rows alone: the surface's first, then the first in column order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
DUPLICATE = "impression_id is a duplicate"
EMPTY_REJECTED = pl.DataFrame(
    schema={"reason": pl.String, "row": pl.String, "duplicate": pl.Boolean, "surface": pl.String}
)


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
    """Canonical rows of a part, and the rejected ones in source order.

    `rejected` has reason, row (as JSON), duplicate (whether that is all that was wrong) and
    surface: that of the row, null where it lies on none of the known ones. `came` counts all rows
    by surface, those of none last; where any surface will do it is their number alone.
    """

    frame: pl.DataFrame
    rejected: pl.DataFrame
    came: np.ndarray


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


class Cleaner:
    """Splits the parts of one day of a table, in source order, into good and rejected rows.

    `columns` are those that the source has. One that is missing and has no stand-in is a
    `ContractError`. Of the valid impressions with one impression_id the first survives; for that,
    `repeated` must hold every id that comes more than once (`repeated_ids`).
    """

    def __init__(
        self,
        rules: Rules,
        day: str,
        columns: Collection[str],
        repeated: np.ndarray | None = None,
    ) -> None:
        self.rules, self.day = rules, day
        self.repeated = np.zeros(0, np.int64) if repeated is None else repeated
        self._passed = np.zeros(len(self.repeated), dtype=bool)
        missing = [n for n in rules.schema.names if n not in columns]
        hopeless = [n for n in missing if n not in rules.defaults]
        if hopeless:
            raise ContractError(
                f"{rules.table} of {day} have no column {hopeless}, only {sorted(columns)}; "
                "map the columns in source.tables"
            )
        self.defaulted = tuple(missing)

    def part(self, frame: pl.DataFrame) -> Cleaned:
        """Clean the next rows of the day; columns that this part alone lacks are null."""
        frame = frame.with_columns(
            pl.lit(self.rules.defaults.get(n) if n in self.defaulted else None).alias(n)
            for n in self.rules.schema.names
            if n not in frame.columns
        )
        columns, problems = _cast(self.rules, frame, self.day)
        good = pl.DataFrame(columns)
        refused = np.logical_or.reduce([m for m, _ in problems]) if problems else None
        if len(self.repeated):
            copies = self._later_copies(good["impression_id"], refused)
            problems.append((copies, DUPLICATE))
            refused = copies if refused is None else refused | copies
        came = self._came(good)
        if refused is None or not refused.any():
            return Cleaned(frame=good, rejected=EMPTY_REJECTED, came=came)
        rejected = _rejected(frame, good, refused, problems)
        return Cleaned(frame=good.filter(pl.Series(~refused)), rejected=rejected, came=came)

    def _came(self, cast: pl.DataFrame) -> np.ndarray:
        allowed = self.rules.texts["surface"]
        if self.rules.table != "impressions" or allowed is None:
            return np.array([len(cast)])
        codes = cast["surface"].to_physical().cast(pl.Int64).fill_null(len(allowed))
        return np.bincount(codes.to_numpy(), minlength=len(allowed) + 1)

    def _later_copies(self, ids: pl.Series, refused: np.ndarray | None) -> np.ndarray:
        """Valid rows whose id a valid row of this or an earlier part had already."""
        values = ids.fill_null(-1).to_numpy()
        place = np.searchsorted(self.repeated, values)
        place[place == len(self.repeated)] = 0
        shared = self.repeated[place] == values
        if refused is not None:
            shared &= ~refused
        rows = np.flatnonzero(shared)
        _, first = np.unique(place[rows], return_index=True)
        fresh = np.zeros(len(rows), dtype=bool)
        fresh[first] = True
        fresh &= ~self._passed[place[rows]]
        self._passed[place[rows]] = True
        copies = np.zeros(len(values), dtype=bool)
        copies[rows[~fresh]] = True
        return copies


def repeated_ids(parts: Iterable[pl.DataFrame]) -> np.ndarray:
    """The impression_ids that come more than once in a day's parts: int64, ascending."""
    found = [casting.to_id(p["impression_id"]).drop_nulls().to_numpy() for p in parts]
    ids = np.concatenate(found) if found else np.zeros(0, np.int64)
    if (ids[1:] > ids[:-1]).all():
        return np.zeros(0, np.int64)
    ids.sort()
    return np.unique(ids[1:][ids[1:] == ids[:-1]])


def _cast(
    rules: Rules, frame: pl.DataFrame, day: str
) -> tuple[list[pl.Series], list[tuple[np.ndarray, str]]]:
    columns: list[pl.Series] = []
    problems: list[tuple[np.ndarray, str]] = []
    of_surface: list[tuple[np.ndarray, str]] = []
    for wanted in rules.schema:
        raw = frame[wanted.name]
        values, rule = _cast_one(rules, wanted, raw)
        columns.append(values.alias(wanted.name))
        mine = of_surface if wanted.name == "surface" else problems
        if values.null_count():
            absent = raw.is_null()
            if not wanted.nullable:
                mine.append((absent.to_numpy(), f"{wanted.name} is null"))
            mine.append(((values.is_null() & ~absent).to_numpy(), f"{wanted.name} {rule}"))
        if wanted.name == "ts":
            problems += _outside(values, day)
    return columns, of_surface + problems


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


def _outside(times: pl.Series, day: str) -> list[tuple[np.ndarray, str]]:
    begin = day_begin_us(day)
    stamps = times.to_physical()
    least, most = stamps.min(), stamps.max()
    if least is None or (int(least) >= begin and int(most) < begin + DAY_US):  # type: ignore[arg-type]
        return []
    values = stamps.fill_null(begin).to_numpy()
    outside = (values < begin) | (values >= begin + DAY_US)
    return [(outside, "ts is outside the day")]


def _rejected(
    frame: pl.DataFrame,
    cast: pl.DataFrame,
    refused: np.ndarray,
    problems: list[tuple[np.ndarray, str]],
) -> pl.DataFrame:
    places = np.flatnonzero(refused)
    reasons = np.full(len(places), "", dtype=object)
    for mask, reason in reversed(problems):  # so that the first problem of a row is kept
        reasons[mask[places]] = reason
    rows = frame[places]
    known = "surface" in cast.columns
    surface = (
        cast["surface"][places].cast(pl.String)
        if known
        else pl.repeat(None, len(rows), dtype=pl.String, eager=True)
    )
    return pl.DataFrame(
        {
            "reason": pl.Series(reasons.tolist(), dtype=pl.String),
            "row": rows.select(_as_json(rows)).to_series(),
            "duplicate": pl.Series(reasons == DUPLICATE, dtype=pl.Boolean),
            "surface": surface,
        },
        schema=EMPTY_REJECTED.schema,
    )


def _as_json(rows: pl.DataFrame) -> pl.Expr:
    """A row as JSON, cut at `MAX_ROW_TEXT` characters; long texts are cut before."""
    shown = [
        pl.col(n).str.slice(0, MAX_ROW_TEXT) if t == pl.String else _shown(pl.col(n), t)
        for n, t in rows.schema.items()
    ]
    return pl.struct(shown).struct.json_encode().str.slice(0, MAX_ROW_TEXT)


def _shown(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """What JSON can hold of a column: binary as hexadecimal digits."""
    return column.bin.encode("hex").str.slice(0, MAX_ROW_TEXT) if kind == pl.Binary else column
