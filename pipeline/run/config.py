"""The whole configuration of a run, as one frozen tree; `run.json` is its only file form."""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass, field
from typing import Any, Literal

from model.config import ConfigError, FeatureSet, ModelConfig, Objective, check_towers, require
from pipeline.run.codec import digest, from_dict, to_dict
from pipeline.run.planted import PlantedConfig
from pipeline.run.scaling import ScalingConfig
from pipeline.run.store_url import check_store
from pipeline.run.train import TrainConfig
from pipeline.run.transfer import TransferConfig

OVERALL = "overall"  # the name of all surfaces together wherever figures are listed
MAX_OBJECTIVES = 8  # the mix marks the positive ones of a row in a byte


@dataclass(frozen=True, kw_only=True)
class TableMapping:
    """Where a canonical table comes from.

    `path`: a file, folder or glob; `{day}` is the day, `{landing}` is lake/landing/<source>.
    `columns`: canonical name -> polars SQL expression over the file's own columns; a canonical
    column that is not named is read under its own name. Rows of other days are filtered by `ts`
    when `path` has no `{day}`.
    """

    table: Literal["impressions", "conversions", "engagements", "candidates"]
    path: str
    format: Literal["parquet", "csv"] = "parquet"
    columns: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """A source of logs: a name (names its lake), the tables, and for planted data its generator.

    `files`: folder with the published files of a set that one has to get oneself
    (pipeline/run/published.py); where they lie enters no name and no fingerprint of the data.
    """

    name: str
    kind: Literal["planted", "files"] = "files"
    tables: tuple[TableMapping, ...] = ()
    planted: PlantedConfig | None = None
    files: str = ""

    def __post_init__(self) -> None:
        safe = self.name.replace("-", "").replace("_", "").isalnum()
        require(safe, "source.name", "letters, digits, - and _", self.name, "rename the source")
        require(
            (self.kind == "planted") == (self.planted is not None),
            "source.planted",
            "given for planted data only",
            self.planted,
            "set source.kind to match",
        )


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """Which time a run covers. All splits are on the label time (see docs/architecture.md).

    `bootstrap_days`: days that a first run (no champion to start from) trains on, D included.
    `holdout_hours`: the last hours before the end of D, scored and never trained on by D's run.
    `student_days`: days before the end of D that students use; the representation epoch's FM
    was trained only on labels before that span. `retention_days`: age of the oldest kept event.
    `history_days`: days that are ingested for histories, at least those that train.
    `calibration_hours`: the last hours that train; they are scored before that, and the intercepts
    per surface and objective are fitted on those scores; 0 fits none.
    """

    bootstrap_days: int = 8
    holdout_hours: int = 12
    student_days: int = 3
    retention_days: int = 30
    history_days: int = 1
    calibration_hours: int = 24
    num_buckets: int = 2
    num_groups: int = 1

    def __post_init__(self) -> None:
        for name in (
            "bootstrap_days",
            "holdout_hours",
            "student_days",
            "retention_days",
            "history_days",
            "num_buckets",
            "num_groups",
        ):
            require(
                getattr(self, name) >= 1,
                f"window.{name}",
                "at least 1",
                getattr(self, name),
                "use a positive number",
            )
        require(
            self.calibration_hours >= 0,
            "window.calibration_hours",
            "at least 0",
            self.calibration_hours,
            "use 0 to publish the weights as they were trained",
        )
        require(
            self.student_days < self.bootstrap_days,
            "window.student_days",
            "below window.bootstrap_days",
            self.student_days,
            "shorten it",
        )
        require(
            self.holdout_hours < 24 * self.student_days,
            "window.holdout_hours",
            "below 24 x window.student_days",
            self.holdout_hours,
            "shorten it",
        )
        require(
            self.num_groups <= self.num_buckets,
            "window.num_groups",
            "at most window.num_buckets",
            self.num_groups,
            "use fewer groups",
        )


@dataclass(frozen=True, kw_only=True)
class MixConfig:
    """Cost-free mixing: FLOPs budget relative to the reference surface, shares, correction.

    `delayed_rate`: an impression is seen a second time for a label that comes later than the
    click's (a conversion); this share of its negatives is considered, in the mix and in the
    reference alike, and weighs 1 / delayed_rate.
    `correction`: what undoes the sampling of negatives in the loss, their weight 1/r or, on every
    row, the shift -ln r of the logits; "none" leaves the sampled rates.
    `rare_below`: every positive of an objective is kept where fewer of its labels than this share
    are positive. A common positive says no more than a negative, and is sampled with them.
    `conversion_balance`: beta of the effective counts that weigh conversion labels of small
    surfaces up (arXiv 1901.05555); 0 leaves them as they are (docs/data.md has the reasons).
    """

    reference_surface: str = ""  # "" = the largest surface
    budget: float = 1.0
    alpha: float = 0.7
    floor: float = 0.0
    cap: float = 1.0
    delayed_rate: float = 0.25
    rare_below: float = 0.25
    correction: Literal["weight", "shift", "none"] = "weight"
    conversion_balance: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            0 < self.alpha <= 1,
            "mix.alpha",
            "in (0, 1]",
            self.alpha,
            "use 1.0 to keep natural shares",
        )
        require(
            0 <= self.conversion_balance < 1,
            "mix.conversion_balance",
            "in [0, 1)",
            self.conversion_balance,
            "use 0.0 to leave the labels as they are",
        )
        require(
            0 < self.delayed_rate <= 1,
            "mix.delayed_rate",
            "in (0, 1]",
            self.delayed_rate,
            "use 1.0 to consider every negative",
        )
        require(
            0 <= self.rare_below <= 1,
            "mix.rare_below",
            "in [0, 1]",
            self.rare_below,
            "use 0.25, or 1.0 to keep every positive",
        )
        require(
            self.budget > 0,
            "mix.budget",
            "above 0",
            self.budget,
            "use 1.0 for the cost of the reference surface alone",
        )
        require(
            0 <= self.floor <= self.cap <= 1,
            "mix.floor",
            "between 0 and mix.cap",
            self.floor,
            "use 0.0 and 1.0 for no limits",
        )


@dataclass(frozen=True, kw_only=True)
class SolarisConfig:
    """Precompute budget, store and replay (arXiv 2604.12110)."""

    store: str = "lmdb"  # embedded, in the home folder; or the URL of a Redis server
    neighbours: int = 32  # nearest users that stand in for a missing pair; 0: none do
    policy: Literal["logistic", "recent", "popularity"] = "logistic"
    ttl_hours: float = 24.0
    vectors_per_request: float = 3.5
    tick_minutes: float = 20.0
    delay_minutes: float = 2.0
    recent_requests: int = 3
    refresh_at: float = 0.9
    user_floor: bool = True  # a user without a vector newer than half the TTL goes first
    warmup_days: int = 1
    num_shards: int = 2
    coverage_floor: float = 0.0
    sweeps: bool = True  # what other budgets and TTLs would cover, for a part of the users

    def __post_init__(self) -> None:
        check_store(self.store, clear_password=False)
        require(self.neighbours >= 0, "solaris.neighbours", "0 or more", self.neighbours, "use 0")
        require(self.num_shards >= 1, "solaris.num_shards", "at least 1", self.num_shards, "use 1")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Bootstrap, promotion gates and the primary metric."""

    bootstrap_draws: int = 1_000
    primary_objective: str = "click"
    max_worse_pct: float = 1.0
    calibration_low: float = 0.8
    calibration_high: float = 1.25
    min_positives: int = 50


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The champion that a run starts from and is compared with, frozen by `resolve`."""

    day: str
    folder: str
    cut_us: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run's outputs.

    `scaling`: the ladder of a run for the scaling law; None for any other run.
    """

    day: str
    size: str
    source: SourceConfig
    surfaces: tuple[str, ...]
    objectives: tuple[Objective, ...]
    features: FeatureSet
    window: WindowConfig = field(default_factory=WindowConfig)
    mix: MixConfig = field(default_factory=MixConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    transfer: TransferConfig = field(default_factory=TransferConfig)
    solaris: SolarisConfig = field(default_factory=SolarisConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    scaling: ScalingConfig | None = None
    warm_start: bool = True
    promote: Literal["auto", "never", "force"] = "auto"
    parent: Parent | None = None

    def __post_init__(self) -> None:
        try:
            if dt.date.fromisoformat(self.day).isoformat() != self.day:
                raise ValueError("another ISO form")
        except ValueError:
            raise ConfigError(
                f"day must be a date like 2026-11-29, got {self.day!r}; fix it"
            ) from None
        require(len(self.surfaces) > 0, "surfaces", "not empty", self.surfaces, "name at least one")
        require(
            OVERALL not in self.surfaces,
            "surfaces",
            f"without {OVERALL!r}, which names all of them together",
            self.surfaces,
            "rename it in the source's mapping",
        )
        require(
            any(o.name == "click" for o in self.objectives),
            "objectives",
            "with click",
            [o.name for o in self.objectives],
            "add Objective(name='click')",
        )
        require(
            len(self.objectives) <= MAX_OBJECTIVES,
            "objectives",
            f"at most {MAX_OBJECTIVES}",
            len(self.objectives),
            "train the others in a run of their own",
        )
        check_towers(self.features, self.model)
        require(
            self.train.ranks <= self.window.num_buckets,
            "train.ranks",
            "at most window.num_buckets",
            self.train.ranks,
            f"a rank reads whole buckets; raise window.num_buckets, {self.window.num_buckets}",
        )
        experts = self.model.wukong_experts if self.model.arch == "kunlun" else 1
        require(
            self.train.layout.expert <= experts,
            "train.layout.expert",
            f"at most {experts}, the Wukong experts of every layer",
            self.train.layout.expert,
            "raise model.wukong_experts, or use 1",
        )
        if self.mix.reference_surface:
            require(
                self.mix.reference_surface in self.surfaces,
                "mix.reference_surface",
                "a surface of the run",
                self.mix.reference_surface,
                f"choose among {list(self.surfaces)}",
            )

    @property
    def dataset(self) -> str:
        """Name of the lake: the source's name and a hash of what shapes its canonical tables."""
        shape = (
            _described(self.source),
            self.window.num_buckets,
            self.surfaces,
            [f.name for f in self.features.sparse],
            [f.name for f in self.features.dense],
        )
        return f"{self.source.name}-{digest(shape)}"

    @property
    def lineage(self) -> str:
        """Runs of one lineage follow each other day by day: same data, same size, same model."""
        shape = (self.dataset, to_dict(self.features), to_dict(self.model), self.objectives)
        return f"{self.source.name}-{self.size}-{digest(shape)}"

    @property
    def run_name(self) -> str:
        """Folder name of the run under runs/<day>/; the frozen parent does not enter."""
        request = to_dict(dataclasses.replace(self, parent=None))
        if not self.source.files:
            request["source"] = _described(self.source)
        frozen = digest(request)
        return f"{self.source.name}-{self.size}-{frozen}"


def _described(source: SourceConfig) -> dict[str, Any]:
    """A source without the folder that its files happen to lie in."""
    return {name: value for name, value in to_dict(source).items() if name != "files"}


def with_overrides(config: RunConfig, overrides: dict[str, Any]) -> RunConfig:
    """A copy with dotted fields replaced: {"mix.alpha": 0.5}; unknown names are refused."""
    data = to_dict(config)
    for dotted, value in overrides.items():
        *parents, leaf = dotted.split(".")
        node = data
        for name in parents:
            node = node.get(name) if isinstance(node, dict) else None
        if not isinstance(node, dict) or leaf not in node:
            known = sorted(node) if isinstance(node, dict) else sorted(data)
            raise ConfigError(f"override {dotted!r} is not a field; choose among {known}")
        if dotted in {"day", "size", "parent"}:
            raise ConfigError(f"override {dotted!r} is not allowed; use its own parameter")
        node[leaf] = value
    return from_dict(RunConfig, data)
