"""The training engine: TorchRec for the tables, DeepSpeed for the dense part, one process group.

DeepSpeed broadcasts and flattens every parameter that it is given, while a TorchRec table holds
other rows on every rank and updates inside backward: the whole model is never given to DeepSpeed.
Forward is tables -> dense engine -> loss; `backward` drives both; `step` steps the dense part, the
tables have then stepped already. One learning-rate schedule drives both optimizers.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import EmbeddingCollection
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from model.average import WeightAverage
from model.batch import Batch
from model.config import require
from model.embedding import PlainTables
from model.foundation import FoundationModel, ModelOutput
from model.snapshot import set_tables
from model.tables import ShardedTables

log = logging.getLogger(__name__)
TABLE_STRIDE = 8  # steps between updates of the tables' average


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What the engine needs to know of a training run."""

    batch_size: int
    dense_lr: float
    sparse_lr: float
    weight_decay: float = 0.0
    warmup_steps: int = 0
    clip_norm: float = 0.0
    ema_decay: float = 0.98
    zero_stage: int = 0
    optimizer: Literal["adaptive", "sgd"] = "adaptive"
    gradient_accumulation: int = 1
    precision: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        require(
            self.gradient_accumulation == 1,
            "train.gradient_accumulation",
            "1",
            self.gradient_accumulation,
            "tables update in every backward; raise train.batch_size instead",
        )
        require(
            self.precision == "float32",
            "train.precision",
            "float32",
            self.precision,
            "loss scaling would reach the tables' optimizer",
        )
        require(
            self.zero_stage == 0,
            "train.zero_stage",
            "0 on one rank",
            self.zero_stage,
            "there is nothing to shard",
        )


class Engine:
    """A foundation model in training: `forward`, `backward`, `step`; state for checkpoints."""

    def __init__(self, build: Callable[[], FoundationModel], config: EngineConfig) -> None:
        """`build` makes a plain model; it is called once now and once per export."""
        join_process_group()
        self.config, self.steps, self._build = config, 0, build
        model = build()
        kind = torch.optim.SGD if config.optimizer == "sgd" else RowWiseAdagrad
        plain = cast(PlainTables, model.sparse.tables)
        self.tables = ShardedTables(plain, kind, config.sparse_lr)
        model.sparse.tables = self.tables
        self.sparse, self.dense = model.sparse, model.dense
        self._dense_optimizer = _dense_optimizer(model.dense, config)
        self._engine = start_deepspeed(model.dense, self._dense_optimizer, config)
        self._average_dense = WeightAverage(dict(self.dense.named_parameters()), config.ema_decay)
        self._average_tables = WeightAverage(self.tables.weights(), config.ema_decay)

    def forward(self, batch: Batch) -> ModelOutput:
        """Output of a training batch; its learning rates are those of the step to come."""
        self._set_learning_rates()
        output: ModelOutput = self._engine(self.sparse(batch))
        return output

    def backward(self, loss: Tensor) -> None:
        """Gradients of the dense part; the tables are updated on the way."""
        self._engine.backward(loss)

    def step(self) -> None:
        """Step the dense part and the averages."""
        self._engine.step()
        self.steps += 1
        self._average_dense.update(self.steps)
        if self.steps % TABLE_STRIDE == 1:
            self._average_tables.update(self.steps)

    def export(self, *, averaged: bool = True) -> FoundationModel:
        """A plain model with the averaged (or last) weights, in eval mode."""
        model = self._build()
        dense = self._average_dense.at(self.steps) if averaged else self.dense.state_dict()
        tables = self._average_tables.at(self.steps) if averaged else self.tables.weights()
        model.dense.load_state_dict(dense)
        set_tables(model, tables)
        return model.eval().requires_grad_(False)

    def set_tables(self, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
        """Copy weights and Adagrad sums into the tables named; others stay as they are."""
        own, own_moments = self.tables.weights(), self.tables.moments()
        with torch.no_grad():
            for name, weight in weights.items():
                own[name].copy_(weight)
            for name, moment in moments.items():
                own_moments[name].copy_(moment.view_as(own_moments[name]))

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """All state as (dense, sparse) named tensors: weights, optimizers, averages, steps."""
        dense = {f"weight.{n}": p.detach() for n, p in self.dense.named_parameters()}
        for name, state in self._dense_states():
            dense |= {f"optimizer.{key}.{name}": v for key, v in state.items()}
        dense |= {f"average.{n}": v for n, v in self._average_dense.values.items()}
        sparse = {f"weight.{n}": w for n, w in self.tables.weights().items()}
        sparse |= {f"optimizer.{n}": m for n, m in self.tables.moments().items()}
        sparse |= {f"average.{n}": v for n, v in self._average_tables.values.items()}
        counts = (self.steps, self._average_dense.steps, self._average_tables.steps)
        return dense | {"steps": torch.tensor(counts)}, sparse

    def load_tensors(self, dense: dict[str, Tensor], sparse: dict[str, Tensor]) -> None:
        """Restore what `tensors` gave, exactly."""
        self.steps, self._average_dense.steps, self._average_tables.steps = dense["steps"].tolist()
        with torch.no_grad():
            for name, parameter in self.dense.named_parameters():
                parameter.copy_(dense[f"weight.{name}"])
                keys = [k for k in dense if k.startswith("optimizer.")]
                self._dense_optimizer.state[parameter] = {
                    k.split(".")[1]: dense[k].clone() for k in keys if k.split(".", 2)[2] == name
                }
                self._average_dense.values[name].copy_(dense[f"average.{name}"])
            for name, value in self._average_tables.values.items():
                value.copy_(sparse[f"average.{name}"])
        self.set_tables(_under(sparse, "weight"), _under(sparse, "optimizer"))

    def restart_averages(self) -> None:
        """Begin both averages at the current weights."""
        self._average_dense.restart()
        self._average_tables.restart()

    def _dense_states(self) -> list[tuple[str, dict[str, Tensor]]]:
        state = self._dense_optimizer.state
        return [
            (n, {k: torch.as_tensor(v) for k, v in state[p].items() if v is not None})
            for n, p in self.dense.named_parameters()
            if p in state
        ]

    def _set_learning_rates(self) -> None:
        share = min(1.0, (self.steps + 1) / max(self.config.warmup_steps, 1))
        for group in self._dense_optimizer.param_groups:
            group["lr"] = self.config.dense_lr * share
        self.tables.set_learning_rate(self.config.sparse_lr * share)


def join_process_group() -> None:
    """Join the launcher's gloo group; without a launcher, a group of this process alone."""
    if dist.is_initialized():
        return
    if "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo")
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("LOCAL_RANK", "0")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)


def start_deepspeed(
    module: nn.Module, optimizer: torch.optim.Optimizer, config: EngineConfig
) -> Any:
    """A DeepSpeed engine around a dense module; a module with tables is refused."""
    for name, part in module.named_modules():
        tables = (EmbeddingCollection, PlainTables, ShardedTables)
        if isinstance(part, tables) or hasattr(part, "fused_optimizer"):
            raise ValueError(
                f"the module holds embedding tables ({name or 'itself'}): DeepSpeed would "
                "overwrite other ranks' rows; pass the dense part alone"
            )
    deepspeed = _import_deepspeed()
    if dist.get_world_size() == 1:
        # spares one rank the compilation of the shared-memory all-reduce, which it never calls
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", verbose=False)
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=optimizer, config=deepspeed_config(config), dist_init_required=False
    )
    return engine


def _import_deepspeed() -> Any:
    """DeepSpeed without MLflow, which its unused autotuner loads for seconds when it finds it."""
    hidden = "mlflow" not in sys.modules
    if hidden:
        sys.modules["mlflow"] = None  # type: ignore[assignment]
    try:
        import deepspeed
    finally:
        if hidden:
            del sys.modules["mlflow"]
    return deepspeed


def deepspeed_config(config: EngineConfig) -> dict[str, Any]:
    """DeepSpeed's own settings."""
    return {
        "train_micro_batch_size_per_gpu": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation,
        "gradient_clipping": config.clip_norm,
        "zero_optimization": {"stage": config.zero_stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }


def _dense_optimizer(module: nn.Module, config: EngineConfig) -> torch.optim.Optimizer:
    if config.optimizer == "sgd":
        return torch.optim.SGD(module.parameters(), lr=config.dense_lr)
    return torch.optim.AdamW(
        module.parameters(), lr=config.dense_lr, weight_decay=config.weight_decay, fused=True
    )


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.split(".", 1)[1]: v for k, v in tensors.items() if k.startswith(f"{prefix}.")}
