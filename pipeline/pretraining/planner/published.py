"""A workload of the size that Meta publishes: what is known of it, and what is assumed.

Known: 154.9 GFLOPs a row and a local MFU of 37 % (arXiv 2602.10016), two expert ranks, shards over
128 to 256 GPUs, tables over about 256, 20 to 25 % end to end on thousands (engineering posts).
Not published: widths, numbers of features, rows of tables, rows of a batch. Here they are chosen so
that the FLOPs, counted exactly, are the published ones.
"""

from __future__ import annotations

from dataclasses import replace

from model.config import (
    DenseFeature,
    EmbeddingTable,
    EventAttribute,
    EventType,
    FeatureSet,
    ModelConfig,
    SparseFeature,
)
from pipeline.pretraining.planner.workload import Workload, workload

NUM_FEATURES, NUM_TABLES, NUM_NUMBERS = 768, 256, 512
TABLE_ROWS = 40_000_000
OBJECTIVES, SURFACES = 4, 8
# towers as in arXiv 2602.10016: width, heads, tokens, layers and window by event type
_TOWERS = (("click", 256, 8, 32, 3, 100), ("impression", 128, 4, 16, 2, 50))
_HISTORY = {"click": 1_000.0, "impression": 2_000.0}


def published() -> Workload:
    """The workload."""
    config = ModelConfig(
        embedding_dim=128,
        width=512,
        layers=12,
        heads=8,
        summary_tokens=64,
        seeds=64,
        sumkron_rank=8,
        wukong_experts=2,
        fm_rank=64,
        mlp_width=13_400,
        head_width=1_024,
        adapter_rank=32,
        representation_dim=256,
        gdpa_short_path=0,
        ad_products=0,
    )
    work = workload("published", config, _features(), OBJECTIVES, SURFACES, _HISTORY)
    # one layer computes while the next one is gathered
    return replace(work, gathered=2 / config.layers)


def _features() -> FeatureSet:
    tables = tuple(EmbeddingTable(name=f"t{i}", buckets=TABLE_ROWS) for i in range(NUM_TABLES))
    sparse = tuple(
        SparseFeature(
            name=f"f{i}", table=f"t{i % NUM_TABLES}", scope="ad" if i % 4 == 0 else "user"
        )
        for i in range(NUM_FEATURES)
    )
    return FeatureSet(
        tables=tables,
        sparse=sparse,
        dense=tuple(DenseFeature(name=f"n{i}", scope="user") for i in range(NUM_NUMBERS)),
        events=tuple(
            EventType(
                name=name,
                source="impressions",
                attributes=tuple(EventAttribute(column=f"a{i}", table=f"t{i}") for i in range(3)),
                max_len=int(_HISTORY[name]),
                width=width,
                heads=heads,
                tokens=tokens,
                layers=layers,
                window=window,
            )
            for name, width, heads, tokens, layers, window in _TOWERS
        ),
    )
