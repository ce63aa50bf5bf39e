"""What students are, and what they learn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from model.config import require

ArmName = Literal[
    "none",
    "kd",
    "raw",
    "loopfm",
    "kd_loopfm",
    "kd_raw",
    "kd_raw_loopfm",
    "placebo",
    "bound",
    "solaris_exact",
    "solaris_user",
    "solaris",
    "loopfm_solaris",
    "kd_loopfm_solaris",
    "kd_raw_solaris",
    "kd_raw_loopfm_solaris",
    "solaris_placebo",
]
# these compare and bound: raw events and the impression's own vector are not there at request time
COMPARED: Final = (
    *("raw", "kd_raw", "kd_raw_loopfm", "placebo", "bound"),
    *("kd_raw_solaris", "kd_raw_loopfm_solaris", "solaris_placebo"),
)


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """Students and what they learn from (arXiv 2605.29280 LoopFM, 2502.17494 KD).

    `arms`: what is trained (docs/transfer.md lists them all); `serves`: the one of them that is
    promoted, registered and exported. `student` and `encoder`: the
    students' trunk, and how they read the last `sequence_len` events. `lake_format`: how
    representations lie in the lake, as `quantization` has them or in four bits. `kd_gamma`,
    `kd_alpha` and `kd_beta` weigh the soft labels, scale them, and scale their gradient into the
    trunk; `kd_adapter` recalibrates them on fresh labels.
    """

    arms: tuple[ArmName, ...] = ("none", "kd", "loopfm", "kd_loopfm", "kd_loopfm_solaris")
    serves: ArmName = "kd_loopfm"
    student: Literal["dcnv2", "din", "tiny"] = "dcnv2"
    encoder: Literal["mean", "sum", "din", "dmin"] = "mean"
    quantization: Literal["float32", "int8"] = "int8"
    lake_format: Literal["same", "int4", "kmeans4"] = "same"
    sequence_len: int = 50
    refresh_days: int = 7
    kd_gamma: float = 10.0
    kd_alpha: float = 1.0
    kd_beta: float = 1.0
    kd_adapter: bool = False
    batch_size: int = 512
    lr: float = 3e-3
    embedding_dim: int = 8
    embedding_init_sd: float = 0.05
    mlp_width: int = 64
    cross_layers: int = 2
    seeds: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            self.serves not in COMPARED,
            "transfer.serves",
            "an arm that can serve",
            self.serves,
            f"choose none of {list(COMPARED)}",
        )
