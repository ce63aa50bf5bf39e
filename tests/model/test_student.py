"""The student: inputs, gradients of both heads, learning."""

from __future__ import annotations

import pytest
import torch
from model_world import OBJECTIVES, make_batch, planted_features

from model.config import ConfigError
from model.student import Student, StudentConfig, student_loss


def student(**config: int) -> Student:
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
        student()(batch, torch.zeros(64, 16), torch.zeros(64))
    with pytest.raises(ValueError, match="sequence_dim 16"):
        student(sequence_dim=16)(batch)
    out = student(sequence_dim=16)(batch, torch.zeros(64, 16), torch.zeros(64))
    assert out.serve_BK.shape == out.distill_BK.shape == (64, 2)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_distill_gradient_is_scaled(beta):
    model, batch = student(), batch_for_students()
    soft = torch.full((64, 2), 0.3)

    def trunk_gradient(scale: float) -> torch.Tensor:
        out = model(batch, distill_gradient=scale)
        loss = student_loss(out, batch, soft, gamma=2.0) - student_loss(out, batch)
        return torch.autograd.grad(loss, model.mlp[0].weight, allow_unused=True)[0]

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
