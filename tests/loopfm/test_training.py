from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from model.batch import Batch
from model.config import EmbeddingTable, FeatureSet, Objective, SparseFeature
from model.student_sequence import History
from pipeline.loopfm.arms import ALL_ARMS, SOLARIS_ARMS, Arm, arms_named
from pipeline.loopfm.training import (
    StudentRows,
    predict_rows,
    read_by,
    rows_of,
    train_student,
)
from pipeline.run.config import with_overrides
from pipeline.run.errors import ConfigError
from pipeline.run.presets import preset
from pipeline.run.transfer import COMPARED, ArmName, TransferConfig

FEATURES = FeatureSet(
    tables=(EmbeddingTable(name="ad", buckets=50),),
    sparse=(SparseFeature(name="ad_id", table="ad", scope="ad"),),
)
OBJECTIVES = (Objective(name="click"),)
BY_NAME = {arm.name: arm for arm in ALL_ARMS}
ARMS = arms_named(TransferConfig().arms)


def world(count: int = 24_000, seed: int = 0) -> tuple[StudentRows, torch.Tensor]:
    """Clicks from an ad effect that all see and a user's taste that only the sequence tells."""
    rng = np.random.default_rng(seed)
    ad = rng.integers(0, 50, count)
    taste = rng.normal(size=count)
    logit = -1.5 + np.linspace(-1, 1, 50)[ad] + 1.2 * taste
    p = torch.from_numpy(1 / (1 + np.exp(-logit))).float()[:, None]
    y = torch.from_numpy((rng.random(count) < p[:, 0].numpy()).astype(np.float32))[:, None]
    cold = torch.from_numpy(rng.random(count) < 0.2)
    stored = torch.tanh(torch.from_numpy(np.stack([taste, -taste], axis=1)).float())
    batch = Batch(
        ids_BF=torch.from_numpy(ad)[:, None],
        dense_BC=torch.zeros(count, 0),
        events={},
        surface_B=torch.zeros(count, dtype=torch.int64),
        labels_BK=y,
        mask_BK=torch.ones_like(y),
        weight_BK=torch.ones_like(y),
        row_B=torch.arange(count),
    )
    return StudentRows(batch=batch, soft_RK=p, loop=history(stored, cold)), p


def history(stored: torch.Tensor, cold: torch.Tensor) -> History:
    """One stored event for every row that is not cold."""
    place = torch.arange(len(cold))
    return History(stored_NS=stored, begin_B=place, end_B=place + ~cold, length=2)


def fit(rows: StudentRows, arm: Arm, seed: int = 0, **config: object) -> torch.Tensor:
    settings = TransferConfig(**{"lr": 0.01, **config})  # type: ignore[arg-type]
    student = train_student(
        rows.part(slice(0, 20_000)),
        arm,
        features=FEATURES,
        objectives=OBJECTIVES,
        config=settings,
        seed=seed,
    )
    return predict_rows(student, rows.part(slice(20_000, None)), arm)


def excess(p: torch.Tensor, true: torch.Tensor) -> float:
    """Cross entropy against the truth, above its own entropy."""
    loss = torch.nn.functional.binary_cross_entropy
    return float(loss(p, true) - loss(true, true))


def test_histories_help_and_shuffled_ones_do_not() -> None:
    rows, true = world()
    true = true[20_000:]
    none = excess(fit(rows, BY_NAME["none"]), true)
    loopfm = excess(fit(rows, BY_NAME["loopfm"]), true)
    shuffled = Arm(name="shuffled", loop="shuffled")
    placebo = excess(fit(read_by(shuffled, rows, 0), BY_NAME["loopfm"]), true)
    assert loopfm < 0.5 * none
    assert placebo > 0.95 * none


def with_served(rows: StudentRows, share: float = 0.7) -> StudentRows:
    """Rows with vectors of their own as if served: a share exact, half of the others a user's."""
    random = torch.Generator().manual_seed(3)
    drawn = torch.rand(len(rows), generator=random)
    missing = drawn >= share
    fields = {
        "exact": history(rows.loop.stored_NS, missing),
        "neighbours": history(rows.loop.stored_NS, torch.ones_like(missing)),
        "user": history(rows.loop.stored_NS, drawn < (1 + share) / 2),
    }
    return replace(rows, served=fields)


def test_served_vectors_help_and_those_of_other_rows_do_not() -> None:
    rows, true = world()
    given, true = with_served(rows), true[20_000:]
    none = excess(fit(rows, BY_NAME["none"]), true)
    exact, both, all_of_them = (
        excess(fit(read_by(arm, given, 0), arm), true)
        for arm in arms_named(("solaris_exact", "solaris_user", "solaris"))
    )
    assert both < exact < 0.6 * none
    assert all_of_them == pytest.approx(both, rel=0.2)  # nobody was served neighbours
    shuffled = Arm(name="shuffled", served=("exact",), shuffled_served=True)
    assert excess(fit(read_by(shuffled, given, 0), shuffled), true) > 0.95 * none


def test_the_config_knows_every_arm_and_which_of_them_cannot_serve() -> None:
    known = (*ALL_ARMS, *SOLARIS_ARMS)
    assert [arm.name for arm in known] == list(get_args(ArmName))
    unfit = [a.name for a in known if a.raw or a.loop in ("shuffled", "own") or a.shuffled_served]
    assert sorted(unfit) == sorted(COMPARED)


def test_a_student_that_reads_a_store_needs_served_rows() -> None:
    rows, _ = world(100)
    (arm,) = arms_named(("solaris",))
    with pytest.raises(ConfigError, match="arm solaris reads precomputed vectors"):
        read_by(arm, rows, 0)


def test_soft_labels_help_when_labels_are_few() -> None:
    rows, true = world()
    few = {"batch_size": 256}
    both = excess(fit(rows, BY_NAME["kd_loopfm"], **few), true[20_000:])
    assert both < excess(fit(rows, BY_NAME["kd"], **few), true[20_000:])


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_predictions_are_calibrated(arm: Arm) -> None:
    rows, true = world()
    rows = with_served(rows) if arm.served else rows
    assert float(fit(rows, arm).sum() / true[20_000:].sum()) == pytest.approx(1.0, abs=0.08)


def test_predictions_sum_to_labels_over_the_trained_rows() -> None:
    rows, _ = world(3_000)
    student = train_student(
        rows,
        BY_NAME["loopfm"],
        features=FEATURES,
        objectives=OBJECTIVES,
        config=TransferConfig(),
        seed=0,
    )
    predicted = predict_rows(student, rows, BY_NAME["loopfm"]).sum()
    assert float(predicted / rows.batch.labels_BK.sum()) == pytest.approx(1.0, abs=1e-3)


def test_a_surface_without_positives_still_trains() -> None:
    rows, _ = world(600)
    rows.batch.labels_BK.zero_()
    student = train_student(
        rows,
        BY_NAME["none"],
        features=FEATURES,
        objectives=OBJECTIVES,
        config=TransferConfig(),
        seed=0,
    )
    assert float(predict_rows(student, rows, BY_NAME["none"]).max()) < 0.01


def test_the_same_seed_gives_the_same_student_and_another_does_not() -> None:
    rows, _ = world()
    first = fit(rows, BY_NAME["kd_loopfm"])
    torch.rand(7)  # the surrounding random state must not matter
    assert torch.equal(first, fit(rows, BY_NAME["kd_loopfm"]))
    assert not torch.equal(first, fit(rows, BY_NAME["kd_loopfm"], seed=1))


def test_masked_labels_are_not_read() -> None:
    rows, _ = world()
    lies = rows.batch.labels_BK.clone()
    mask = torch.ones_like(lies)
    mask[::3] = 0.0
    lies[::3] = 1.0 - lies[::3]
    fields = {"events": {}, "mask_BK": mask}
    names = ("ids_BF", "dense_BC", "surface_B", "weight_BK", "row_B")
    kept = {name: getattr(rows.batch, name) for name in names}
    results = []
    for labels in (rows.batch.labels_BK, lies):
        batch = Batch(**kept, **fields, labels_BK=labels)  # type: ignore[arg-type]
        changed = StudentRows(batch=batch, soft_RK=rows.soft_RK, loop=rows.loop)
        results.append(fit(changed, BY_NAME["none"]))
    assert torch.equal(*results)


def test_rows_of_needs_a_batch_without_events() -> None:
    rows, _ = world(100)
    assert rows_of(rows.batch, slice(3, 5)).row_B.tolist() == [3, 4]
    assert rows.part(torch.tensor([9, 1])).batch.row_B.tolist() == [9, 1]


def test_what_an_arm_reads_of_the_store() -> None:
    rows, _ = world(50)
    own = history(rows.loop.stored_NS, torch.zeros(50, dtype=torch.bool))
    rows = StudentRows(batch=rows.batch, soft_RK=rows.soft_RK, loop=rows.loop, own=own)
    assert read_by(BY_NAME["loopfm"], rows, 0) is rows
    assert read_by(BY_NAME["bound"], rows, 0).loop is own
    placebo = read_by(BY_NAME["placebo"], rows, 0).loop
    assert torch.equal(placebo.end_B, rows.loop.end_B)
    assert not torch.equal(placebo.stored_NS, rows.loop.stored_NS)
    assert torch.equal(placebo.stored_NS.sort(0)[0], rows.loop.stored_NS.sort(0)[0])


def test_unknown_arms_are_refused() -> None:
    assert [a.name for a in arms_named(("kd", "none"))] == ["kd", "none"]
    with pytest.raises(ConfigError, match=r"transfer.arms must name some of .*'magic'"):
        arms_named(("kd", "magic"))
    with pytest.raises(ConfigError, match=r"transfer\.arms.*'magic'"):  # before anything is trained
        with_overrides(preset("2026-11-29", "smoke"), {"transfer.arms": ["kd", "magic"]})


@pytest.mark.parametrize(
    ("student", "encoder"),
    [("dcnv2", "sum"), ("dcnv2", "din"), ("dcnv2", "dmin"), ("din", "din"), ("tiny", "mean")],
)
def test_every_student_learns_from_every_encoder(student: str, encoder: str) -> None:
    rows, true = world()
    found = fit(rows, BY_NAME["loopfm"], student=student, encoder=encoder)
    constant = true.mean().expand_as(true[20_000:])
    assert excess(found, true[20_000:]) < 0.4 * excess(constant, true[20_000:])


def test_an_adapter_mends_soft_labels_that_are_off() -> None:
    rows, true = world()
    off = torch.sigmoid(torch.logit(rows.soft_RK) + 1.0)
    rows = StudentRows(batch=rows.batch, soft_RK=off, loop=rows.loop)
    student = train_student(
        rows, BY_NAME["kd"], features=FEATURES, objectives=OBJECTIVES,
        config=TransferConfig(kd_adapter=True, lr=0.01), seed=0,
    )  # fmt: skip
    assert student.adapter is not None
    mended = torch.sigmoid(student.adapter(off)).detach()
    assert excess(mended, true) < 0.3 * excess(off, true)
