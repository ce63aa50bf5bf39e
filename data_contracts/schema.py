"""THE schema: the only place that spells the canonical tables (docs/data.md)."""

from __future__ import annotations

import hashlib
from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
OBJECTIVES: Final = ("click", "conversion", "offsite_conversion", "install")
CONVERSION_KINDS: Final = OBJECTIVES[1:]

IMPRESSION_IDS: Final = ("user_id", "ad_id", "campaign_id", "advertiser_id", "category_id")

IMPRESSIONS: Final = pa.schema(
    [
        pa.field("impression_id", pa.int64(), nullable=False),
        pa.field("request_id", pa.int64(), nullable=False),
        pa.field("ts", TIMESTAMP, nullable=False),
        pa.field("surface", pa.string(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in IMPRESSION_IDS),
        pa.field("objective", pa.string(), nullable=False),
        pa.field("position", pa.int16(), nullable=False),
        pa.field("click", pa.int8(), nullable=False),
    ]
)
CONVERSIONS: Final = pa.schema(
    [
        pa.field("impression_id", pa.int64(), nullable=False),
        pa.field("user_id", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("ts", TIMESTAMP, nullable=False),
        pa.field("value", pa.float64(), nullable=True),
    ]
)
ENGAGEMENTS: Final = pa.schema(
    [
        pa.field("user_id", pa.int64(), nullable=False),
        pa.field("ts", TIMESTAMP, nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("item_id", pa.int64(), nullable=False),
        pa.field("category_id", pa.int64(), nullable=False),
        pa.field("surface", pa.string(), nullable=False),
    ]
)
CANDIDATES: Final = pa.schema(
    [
        pa.field("request_id", pa.int64(), nullable=False),
        pa.field("ts", TIMESTAMP, nullable=False),
        pa.field("surface", pa.string(), nullable=False),
        pa.field("user_id", pa.int64(), nullable=False),
        pa.field("ad_id", pa.int64(), nullable=False),
        pa.field("rank", pa.int16(), nullable=False),
        pa.field("score", pa.float32(), nullable=True),
        pa.field("shown", pa.int8(), nullable=False),
    ]
)
# As the lake keeps them: a conversion names its impression, or its ad, or its user alone.
CANONICAL_CONVERSIONS: Final = pa.schema(
    [
        *(
            pa.field(f.name, f.type, nullable=f.nullable or f.name == "impression_id")
            for f in CONVERSIONS
        ),
        pa.field("ad_id", pa.int64(), nullable=True),
    ]
)
TABLES: Final = {
    "impressions": IMPRESSIONS,
    "conversions": CONVERSIONS,
    "engagements": ENGAGEMENTS,
    "candidates": CANDIDATES,
}
# The planted truth: one row per impression; no stage but evaluation reads it.
TRUTH_PREFIX: Final = "p_"
TERM_PREFIX: Final = "term_"  # parts of the click logit, where the planted world names them


def canonical(table: str, sparse: tuple[str, ...], dense: tuple[str, ...]) -> pa.Schema:
    """What the lake holds of a table, and hence what is looked for in a source's files."""
    if table == "impressions":
        return impressions_with(sparse, dense)
    return CANONICAL_CONVERSIONS if table == "conversions" else TABLES[table]


def impressions_with(sparse: tuple[str, ...], dense: tuple[str, ...]) -> pa.Schema:
    """Canonical impressions with the configured features: ids as int64, numbers as float32."""
    known = set(IMPRESSIONS.names)
    extra = [pa.field(n, pa.int64(), nullable=False) for n in sparse if n not in known]
    extra += [pa.field(n, pa.float32(), nullable=False) for n in dense if n not in known]
    return pa.schema([*IMPRESSIONS, *extra])


def schema_hash(schema: pa.Schema) -> str:
    """Twelve hex digits that identify names, types and nullability."""
    text = "|".join(f"{f.name}:{f.type}:{f.nullable}" for f in schema)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
