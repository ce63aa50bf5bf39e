"""What a step asks of a cluster: FLOPs, parameters, ids, tables and activations of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from model.baselines.widths import num_context_tokens, num_pooled_tokens
from model.config import FeatureSet, ModelConfig
from model.flops import flops_by_part
from model.footprint import INTERACTION, activation_elements, dense_parameters

TRAINING = 3  # a step's FLOPs are three times those of the forward pass


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model and its data, per row where not said otherwise.

    `flops`: of the forward pass. `parameters`: the dense part's; `expert_parameters` of them belong
    to the Wukong experts. `expert_in`, `expert_out`: elements that all experts of all layers read
    and write. `ids`: lookups, over all tables; `table_rows` and `table_ids` by table. `cost_cv`:
    how far the FLOPs of single rows differ, as standard deviation over mean. `gathered`: share of
    the dense weights that ZeRO-3 holds whole at a time; our engine gathers all of them at once.
    """

    name: str
    flops: float
    parameters: int
    expert_parameters: int
    layers: int
    experts: int
    expert_in: int
    expert_out: int
    activations: float
    table_rows: tuple[int, ...]
    table_ids: tuple[float, ...]
    embedding_dim: int
    cost_cv: float
    gathered: float = 1.0

    @property
    def ids(self) -> float:
        """Lookups of a row."""
        return sum(self.table_ids)

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(self.table_rows)

    @property
    def shared_parameters(self) -> int:
        """Dense parameters outside of the experts."""
        return self.parameters - self.expert_parameters


def workload(
    name: str,
    config: ModelConfig,
    features: FeatureSet,
    num_objectives: int,
    num_surfaces: int,
    lengths: Mapping[str, float],
    cost_cv: float = 0.3,
) -> Workload:
    """The workload of a model whose rows have `lengths` events by type on average."""
    given = num_objectives, lengths, num_surfaces
    parameters = dense_parameters(config, features, num_objectives, num_surfaces)
    tokens, pooled = num_context_tokens(features), num_pooled_tokens(features)
    ids = _ids(features, lengths)
    rows = {t.name: t.buckets for t in features.tables}
    return Workload(
        name=name,
        flops=sum(flops_by_part(config, features, *given).values()),
        parameters=sum(parameters.values()),
        expert_parameters=parameters[INTERACTION],
        layers=config.layers,
        experts=min(config.wukong_experts, tokens),
        expert_in=config.layers * (tokens + pooled) * config.width,
        expert_out=config.layers * tokens * config.width,
        activations=activation_elements(config, features, lengths),
        table_rows=tuple(rows[table] for table in ids),
        table_ids=tuple(ids.values()),
        embedding_dim=config.embedding_dim,
        cost_cv=cost_cv,
    )


def _ids(features: FeatureSet, lengths: Mapping[str, float]) -> dict[str, float]:
    """Lookups of a row by table."""
    found: dict[str, float] = {}
    for feature in features.sparse:
        found[feature.table] = found.get(feature.table, 0.0) + 1
    for event in features.events:
        for attribute in event.attributes:
            found[attribute.table] = found.get(attribute.table, 0.0) + lengths[event.name]
    return found
