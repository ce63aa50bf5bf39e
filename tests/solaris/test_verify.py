from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.loopfm.epoch import Epoch
from pipeline.solaris.vectors import VectorRows
from pipeline.solaris.verify import REASONS, fit_check, refusals

EPOCH = Epoch(id="e1", fm_cut_us=100, folder=Path("unused"))
WEIGHTS = np.array([[2.0], [-1.0], [0.5]])


def codes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-127, 128, size=(count, 3)).astype(np.int8)


def logits(z: np.ndarray, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).uniform(-0.1, 0.1, size=(len(z), 1))
    return (z / 127 @ WEIGHTS - 3 + noise).astype(np.float32)


def rows(count: int = 400, seed: int = 1) -> VectorRows:
    z = codes(count, seed)
    return VectorRows(
        user_N=np.arange(count),
        ad_N=np.arange(count),
        at_us_N=np.full(count, 200),
        z_Nd=z,
        logits_NK=logits(z, seed),
        epoch_N=np.full(count, "e1", dtype=object),
        fm_cut_us_N=np.full(count, 100),
    )


def reasons(batch: VectorRows) -> dict[int, str]:
    z = codes(2_000)
    found = refusals(batch, EPOCH, fit_check(z, logits(z)))
    return {int(i): REASONS[found[i]] for i in np.flatnonzero(found >= 0)}


def test_good_vectors_pass() -> None:
    assert reasons(rows()) == {}


def test_each_rule_refuses_its_vector_alone() -> None:
    batch = rows()
    batch.z_Nd[0, 1] = -128
    batch.z_Nd[1] = 0
    batch.logits_NK[2, 0] = np.nan
    batch.epoch_N[3] = "e0"
    batch.fm_cut_us_N[4] = 201
    batch.logits_NK[5, 0] += 2.0
    assert reasons(batch) == dict(enumerate(REASONS[:6]))


def test_a_batch_whose_logits_drifted_is_refused_whole() -> None:
    batch = rows()
    batch.logits_NK[:] += 0.2  # each vector alone is inside the tolerance
    assert set(reasons(batch).values()) == {"batch out of tolerance"}
    assert len(reasons(batch)) == 400


def test_an_empty_shard_is_fine() -> None:
    assert reasons(rows(0)) == {}
