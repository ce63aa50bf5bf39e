"""A model in a folder: dense.safetensors, tables.safetensors and meta.json; no pickle."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model.config import (
    ConfigError,
    DenseFeature,
    EmbeddingTable,
    EventAttribute,
    EventType,
    FeatureSet,
    MatchCount,
    ModelConfig,
    Objective,
    SparseFeature,
)
from model.foundation import FoundationModel

FORMAT = 1
META, DENSE, TABLES = "meta.json", "dense.safetensors", "tables.safetensors"
_TABLE_KEY = "tables.weights.{}"


def save_snapshot(
    folder: Path,
    model: FoundationModel,
    *,
    features: FeatureSet,
    objectives: tuple[Objective, ...],
    surfaces: tuple[str, ...],
    config: ModelConfig,
    extra: dict[str, Any],
) -> None:
    """Write a plain model; `extra` (JSON) is kept in meta.json, which is written last."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / DENSE, model.dense.state_dict())
    write_tensors(folder / TABLES, tables_of(model))
    meta = {
        "format": FORMAT,
        "features": asdict(features),
        "objectives": [asdict(o) for o in objectives],
        "surfaces": list(surfaces),
        "config": asdict(config),
        "extra": extra,
    }
    (folder / META).write_text(json.dumps(meta, indent=1, sort_keys=True))


def load_snapshot(folder: Path) -> FoundationModel:
    """The model of a folder: unsharded, float32, in eval mode, without gradients."""
    meta = read_meta(folder)
    model = FoundationModel(
        features_from(meta["features"]),
        tuple(Objective(**o) for o in meta["objectives"]),
        len(meta["surfaces"]),
        config_from(meta["config"]),
    )
    model.dense.load_state_dict(load_file(folder / DENSE))
    set_tables(model, load_file(folder / TABLES))
    return model.eval().requires_grad_(False)


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.json of a snapshot; `ConfigError` when it is missing or of another format."""
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text())
    except FileNotFoundError:
        raise ConfigError(f"{folder} holds no model (no {META}); run pretrain first") from None
    if meta.get("format") != FORMAT:
        raise ConfigError(
            f"{folder} has snapshot format {meta.get('format')!r}, this code reads {FORMAT}; "
            "train the model again"
        )
    return meta


def tables_of(model: FoundationModel) -> dict[str, Tensor]:
    """Table name -> weight of a plain model."""
    state = model.sparse.state_dict()
    return {name: state[_TABLE_KEY.format(name)] for name in model.sparse.table_names}


def set_tables(model: FoundationModel, tables: dict[str, Tensor]) -> None:
    """Copy table weights into a plain model."""
    model.sparse.load_state_dict({_TABLE_KEY.format(n): w for n, w in tables.items()})


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Safetensors of contiguous copies: the same tensors always give the same bytes."""
    save_file({k: tensors[k].detach().contiguous().clone() for k in sorted(tensors)}, path)


def features_from(data: dict[str, Any]) -> FeatureSet:
    """A `FeatureSet` from its JSON form."""
    return FeatureSet(
        tables=tuple(EmbeddingTable(**t) for t in data["tables"]),
        sparse=tuple(SparseFeature(**f) for f in data["sparse"]),
        dense=tuple(DenseFeature(**f) for f in data["dense"]),
        events=tuple(
            EventType(**{**e, "attributes": tuple(EventAttribute(**a) for a in e["attributes"])})
            for e in data["events"]
        ),
        matches=tuple(MatchCount(**m) for m in data["matches"]),
    )


def config_from(data: dict[str, Any]) -> ModelConfig:
    """A `ModelConfig` from its JSON form, in which tuples are lists."""
    return ModelConfig(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})


def num_parameters(module: nn.Module) -> int:
    """Parameters of a module."""
    return sum(p.numel() for p in module.parameters())
