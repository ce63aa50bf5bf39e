"""Several ranks train as one: losses, weights and sums, whatever is sharded; and from files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from model_world import NUM_SURFACES, OBJECTIVES, planted_features
from safetensors.torch import load_file
from torchrec import KeyedTensor

from model.budgets import Keep
from model.config import ConfigError, ModelConfig
from model.embedding import DenseInputs
from model.expert_ranks import spread_experts
from model.foundation import FoundationModel
from model.layout import Layout
from model.parallel import Engine, EngineConfig, refuse_keyed
from model.tables import _kept

WORKER = Path(__file__).with_name("rank_worker.py")
ONE = [{"name": f"one-{o}", "ranks": 1, "optimizer": o} for o in ("sgd", "adaptive")]
EXPERTS = {"experts": 4, "optimizer": "adaptive", "clip_norm": 0.5}  # clipped by the joint norm
QUICK = [  # (ranks, ZeRO stage, sharding, optimizer): every stage and every sharding
    (2, 0, "table", "sgd"),
    (2, 0, "column", "sgd"),
    (2, 1, "row", "adaptive"),
    (2, 2, "data", "adaptive"),
    (2, 3, "row", "sgd"),
    (2, 3, "table", "adaptive"),
]
ALL = [
    (ranks, stage, sharding, optimizer)
    for ranks in (2, 4)
    for stage in (0, 1, 2, 3)
    for sharding in ("table", "row", "data", "column")
    for optimizer in ("sgd", "adaptive")
    # row-wise Adagrad cannot be cut by columns, and the test's tables are too narrow for four
    if sharding != "column" or (optimizer == "sgd" and ranks == 2)
]
TOLERANCE = 1e-5


def case_of(ranks: int, stage: int, sharding: str, optimizer: str) -> dict[str, object]:
    name = f"{ranks}-zero{stage}-{sharding}-{optimizer}"
    shape = {"zero_stage": stage, "sharding": sharding, "optimizer": optimizer}
    return {"name": name, "ranks": ranks, **shape}


def trained(folder: Path, cases: list[dict[str, object]]) -> Path:
    """Train cases in `folder`; all must end well."""
    done = subprocess.run(
        [sys.executable, str(WORKER), str(folder), json.dumps(cases)],
        env={**os.environ, "PYTHONPATH": str(WORKER.parents[2]), "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    statuses = json.loads(done.stdout.splitlines()[-1])
    failed = [name for name, codes in statuses.items() if any(codes)]
    assert not failed, f"{failed}\n{done.stderr[-3000:]}"
    return folder


def worst(folder: Path, name: str, other: str, what: str = "") -> float:
    """The largest difference of what two trainings left."""
    mine, theirs = (load_file(folder / f"{n}.safetensors") for n in (name, other))
    assert mine.keys() == theirs.keys()
    assert torch.isfinite(mine["losses"]).all()
    found = [(mine[k] - theirs[k]).abs().max() for k in mine if k.startswith(what)]
    return float(torch.stack(found).max())


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cases = [*ONE, *(case_of(*case) for case in QUICK)]
    # from two ranks at stage 1 to one, and from one to two at stage 3
    resumed = {"optimizer": "adaptive", "begin": 6, "end": 9}
    two, one = "2-zero1-row-adaptive", "one-adaptive"
    cases += [
        {"name": "two-on", "ranks": 2, "zero_stage": 1, "sharding": "row", "resume_from": two},
        {"name": "one-to-two", "ranks": 2, "zero_stage": 3, "resume_from": one},
        {"name": "two-to-one", "ranks": 1, "resume_from": two},
        {"name": "one-on", "ranks": 1, "resume_from": one},
    ]
    cases = [{**(resumed if "resume_from" in case else {}), **case} for case in cases]
    cases += [
        {"name": "two-experts", "ranks": 2, "expert": 2, **EXPERTS},
        {
            "name": "two-experts-on",
            "ranks": 2,
            **EXPERTS,
            "expert": 2,
            **resumed,
            "resume_from": "two-experts",
        },
        {"name": "all-experts", "ranks": 1, **EXPERTS},
        {"name": "experts-to-one", "ranks": 1, **EXPERTS, **resumed, "resume_from": "two-experts"},
    ]
    return trained(tmp_path_factory.mktemp("ranks"), cases)


@pytest.mark.parametrize("case", QUICK, ids=lambda c: "-".join(map(str, c)))
def test_ranks_train_as_one_does(quick, case):
    name = str(case_of(*case)["name"])
    assert worst(quick, name, f"one-{case[3]}") < TOLERANCE
    losses = load_file(quick / f"{name}.safetensors")["losses"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("mine", "theirs"), [("two-to-one", "two-on"), ("one-to-two", "one-on")])
def test_a_checkpoint_goes_on_at_another_number_of_ranks(quick, mine, theirs):
    assert worst(quick, mine, theirs) < TOLERANCE


def test_ranks_that_share_experts_train_as_one_with_all_of_them(quick):
    assert worst(quick, "two-experts", "all-experts") < TOLERANCE


def test_a_checkpoint_of_expert_ranks_goes_on_at_one(quick):
    assert worst(quick, "experts-to-one", "two-experts-on") < TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("expert", [2, 4])
@pytest.mark.parametrize("sharding", ["table", "row", "data"])
def test_four_ranks_share_experts(tmp_path, expert, sharding):
    on = {**EXPERTS, "begin": 6, "end": 9, "resume_from": "four"}
    four = {"ranks": 4, "expert": expert, "sharding": sharding}
    trained(
        tmp_path,
        [
            {"name": "one", "ranks": 1, **EXPERTS},
            {"name": "four", **four, **EXPERTS},
            {"name": "four-on", **four, **on},
            {"name": "four-to-two", "ranks": 2, "expert": 2, **on},
            {"name": "four-to-one", "ranks": 1, **on},
        ],
    )
    assert worst(tmp_path, "four", "one") < TOLERANCE
    assert worst(tmp_path, "four-to-two", "four-on") < TOLERANCE
    assert worst(tmp_path, "four-to-one", "four-on") < TOLERANCE


@pytest.mark.long
def test_every_combination_trains_as_one_does(tmp_path):
    trained(tmp_path, [*ONE, *(case_of(*case) for case in ALL)])
    found = {c: worst(tmp_path, str(case_of(*c)["name"]), f"one-{c[3]}") for c in ALL}
    assert max(found.values()) < TOLERANCE, found


@pytest.mark.long
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("sharding", ["table", "row", "data"])
def test_four_ranks_go_on_as_two_and_as_one(tmp_path, stage, sharding):
    shape = {"zero_stage": stage, "sharding": sharding, "optimizer": "adaptive", "clip_norm": 0.5}
    on = {"begin": 6, "end": 9, "resume_from": "four", **shape}
    halved = {"begin": 9, "end": 10, "resume_from": "four-to-two", **shape}
    single = {"zero_stage": 0, "sharding": "table"}
    trained(
        tmp_path,
        [
            {"name": "four", "ranks": 4, **shape},
            {"name": "four-to-two", "ranks": 2, **on},
            {"name": "four-to-one", "ranks": 1, **on, **single},
            {"name": "four-on", "ranks": 4, **on},
            {"name": "two-to-one", "ranks": 1, **halved, **single},
            {"name": "two-on", "ranks": 2, **halved},
        ],
    )
    assert worst(tmp_path, "four-to-two", "four-on") < TOLERANCE
    assert worst(tmp_path, "four-to-one", "four-on") < TOLERANCE
    assert worst(tmp_path, "two-to-one", "two-on") < TOLERANCE


def test_a_keyed_tensor_never_reaches_the_dense_part():
    keyed = KeyedTensor(keys=["a"], length_per_key=[2], values=torch.zeros(3, 2))
    inputs = DenseInputs(
        embedded_BFD=keyed, dense_BC=torch.zeros(3, 0), events={}, surface_B=torch.zeros(3)
    )
    with pytest.raises(ConfigError, match="embedded_BFD reaches the dense part as a keyed tensor"):
        refuse_keyed(inputs)


def test_more_ranks_than_processes_are_refused():
    config = EngineConfig(batch_size=8, dense_lr=0.1, sparse_lr=0.1, ranks=2)
    with pytest.raises(ConfigError, match=r"must be the 1 processes that train, got 2"):
        Engine(lambda: None, config)


@pytest.mark.parametrize(
    ("ranks", "stage", "layout", "message"),
    [
        (0, 0, {}, "train.ranks must be at least 1"),
        (2, 4, {}, "train.zero_stage must be 0, 1, 2 or 3"),
        (1, 1, {}, "train.zero_stage must be 0 on one rank"),
        (2, 0, {"sharding": "column"}, "row-wise Adagrad has one sum per row"),
        (4, 1, {"dense_shard": 2}, "dense_replica x expert must be train.ranks, which is 4"),
        (4, 0, {"sparse_shard": 2}, "sparse_shard x sparse_replica must be train.ranks"),
        (4, 1, {"dense_shard": 2, "dense_replica": 2}, "dense_shard must be 4 at this stage"),
        (
            4,
            0,
            {"expert": 3},
            "must be train.ranks, which is 4, got .1 x 1 x 3",
        ),
        (4, 1, {"dense_shard": 2, "expert": 2}, "dense_shard must be 4 at this stage"),
        (4, 3, {"dense_shard": 4, "expert": 2}, "dense_replica x expert must be train.ranks"),
        (4, 0, {"sparse_shard": 2, "sparse_replica": 2}, "groups of shards.* not built yet"),
    ],
)
def test_degrees_that_do_not_fit_are_refused(ranks, stage, layout, message):
    with pytest.raises(ConfigError, match=message):
        Layout(**layout).check(ranks, stage)


def test_tables_too_narrow_for_blocks_of_columns_are_refused():
    with pytest.raises(ConfigError, match=r"must be a multiple of 4 x 2 ranks .*, got 12"):
        _kept(torch.zeros(5, 12), "column", 2)


def test_experts_are_not_shared_out_while_interactions_run_again():
    config = {"batch_size": 8, "dense_lr": 0.1, "sparse_lr": 0.1, "ranks": 2}
    with pytest.raises(ConfigError, match=r"train.keep.interaction must be 1.0 with expert ranks"):
        EngineConfig(**config, layout=Layout(expert=2), keep=Keep(interaction=0.5))


def test_more_expert_ranks_than_experts_are_refused():
    features = planted_features()
    model = FoundationModel(features, OBJECTIVES, NUM_SURFACES, ModelConfig(wukong_experts=2))
    with pytest.raises(ConfigError, match=r"must be at most 2, the Wukong experts .*, got 3"):
        spread_experts(model.dense, SimpleNamespace(size=3))


def test_degrees_that_follow_from_the_ranks_may_be_named():
    Layout(dense_replica=2, expert=2).check(4, 0)
    Layout(dense_shard=4, dense_replica=1, sparse_shard=4, sparse_replica=1).check(4, 3)
    Layout(dense_shard=1, dense_replica=2, sharding="data", sparse_replica=2).check(2, 0)
