"""The student: inputs, gradients of both heads, learning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_world import OBJECTIVES, make_batch, planted_features

from model.config import ConfigError
from model.student import Student, StudentConfig, student_loss
from model.student_sequence import History, SequencePool


def loop(rows: int = 64, width: int = 16, length: int = 3) -> History:
    """Two stored vectors for every row but the first, which has none."""
    stored = torch.linspace(-1, 1, 2 * rows * width).view(-1, width)
    begin = torch.arange(0, 2 * rows, 2)
    end = begin + 2
    end[0] = begin[0]
    return History(stored_NS=stored, begin_B=begin, end_B=end, length=length)


def student(**config: Any) -> Student:
    torch.manual_seed(0)
    return Student(planted_features().for_students(), OBJECTIVES, StudentConfig(**config))


def batch_for_students(num_rows: int = 64):
    return make_batch(planted_features().for_students(), num_rows)


def test_central_features_are_refused():
    with pytest.raises(ConfigError, match="central-only"):
        Student(planted_features(), OBJECTIVES, StudentConfig())


def test_sequence_must_agree_with_the_config():
    batch = batch_for_students()
    with pytest.raises(ValueError, match="sequence_dim 0"):
        student()(batch, loop())
    with pytest.raises(ValueError, match="sequence_dim 16"):
        student(sequence_dim=16)(batch)
    with pytest.raises(ValueError, match=r"reads the sequences \[\].*got \['raw'\]"):
        student()(batch, None, loop())
    out = student(sequence_dim=16)(batch, loop())
    assert out.serve_BK.shape == out.distill_BK.shape == (64, 2)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_distill_gradient_is_scaled(beta):
    model, batch = student(), batch_for_students()
    soft = torch.full((64, 2), 0.3)

    def trunk_gradient(scale: float) -> torch.Tensor:
        out = model(batch, distill_gradient=scale)
        loss = student_loss(out, batch, soft, gamma=2.0) - student_loss(out, batch)
        return torch.autograd.grad(loss, model.trunk.mlp[0].weight, allow_unused=True)[0]

    torch.testing.assert_close(trunk_gradient(beta), beta * trunk_gradient(1.0))


def test_without_soft_labels_the_distill_head_is_idle():
    model, batch = student(), batch_for_students()
    student_loss(model(batch), batch).backward()
    assert model.distill.weight.grad is None
    assert model.serve.weight.grad.abs().sum() > 0


def test_soft_labels_are_clipped():
    model, batch = student(), batch_for_students()
    loss = student_loss(model(batch), batch, torch.ones(64, 2), gamma=1.0, alpha=5.0)
    assert torch.isfinite(loss)


def test_learns_from_labels():
    model, batch = student(), batch_for_students(256)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        loss = student_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("encoder", ["mean", "sum", "din", "dmin"])
def test_a_user_without_a_past_reads_zeros(encoder: Any) -> None:
    history, target = loop(rows=5, width=4), torch.randn(5, 6)
    pool = SequencePool(encoder, 4, 6, 3, 8)
    events, mask = history.padded()
    pooled = pool(events, mask, target)
    assert pooled.shape == (5, pool.out_width)
    assert not pooled[0].any()
    assert pooled[1:].abs().sum() > 0
    assert mask.any(1).tolist() == [False, True, True, True, True]


@pytest.mark.parametrize("encoder", ["mean", "sum", "din", "dmin"])
def test_what_is_masked_changes_nothing(encoder: Any) -> None:
    history, target = loop(rows=5, width=4), torch.randn(5, 6)
    pool = SequencePool(encoder, 4, 6, 3, 8)
    events, mask = history.padded()
    spoiled = torch.where(mask[:, :, None], events, 7.0)
    torch.testing.assert_close(pool(spoiled, mask, target), pool(events, mask, target))


def test_histories_are_read_from_the_end() -> None:
    stored = torch.arange(6.0)[:, None]
    place = torch.tensor([0, 4]), torch.tensor([4, 6])
    history = History(stored_NS=stored, begin_B=place[0], end_B=place[1], length=3)
    events, mask = history.padded()
    assert events[0, :, 0].tolist() == [1, 2, 3]
    assert events[1, mask[1], 0].tolist() == [4, 5]
    again, _ = history.part(torch.tensor([1])).padded()
    assert torch.equal(again[0], events[1])
    none = History(stored_NS=stored[:0], begin_B=place[0][:1], end_B=place[0][:1], length=3)
    assert none.padded()[0].shape == (1, 3, 1)


@pytest.mark.parametrize("encoder", ["mean", "sum"])
def test_sums_kept_beside_the_store_give_what_the_events_give(encoder: Any) -> None:
    plain, target = loop(rows=9, width=4), torch.randn(9, 6)
    pool = SequencePool(encoder, 4, 6, 3, 8)
    expected = pool(*plain.padded(), target)
    found = pool(*plain.with_means().pooled(encoder), target)
    torch.testing.assert_close(found, expected)
    other = torch.randn(18, 4)
    moved = plain.with_means().with_stored(other)
    expected = pool(*plain.with_stored(other).padded(), target)
    torch.testing.assert_close(pool(*moved.pooled(encoder), target), expected)
    assert plain.with_means().pooled("din")[0].shape == (9, 3, 4)


def test_raw_events_share_the_tables_of_features() -> None:
    model = student(raw=("ad", "surface", "request"))
    names = [f.table for f in planted_features().for_students().sparse]
    begins = model.begin_F.tolist()
    assert model.begin_A[0] == begins[names.index("ad")]
    assert model.begin_A[1] == begins[names.index("surface")]
