"""A whole training step on the GPU kernels equals the step on PyTorch's ops."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from model_world import make_batch

import kernels
from model.batch import Batch
from model.foundation import FoundationModel, training_loss

DEVICE_IS_CPU = os.environ.get("TRITON_INTERPRET") == "1"
SWITCHES = [
    {},
    {"attention": "full", "qk_norm": True, "pooling": "pma", "gdpa_short_path": 0},
    {"attention": "block", "attention_block": 5, "gdpa_activation": ("silu", "relu_square")},
    {"arch": "interformer"},
]


def in_double(batch: Batch) -> Batch:
    floats = ("dense_BC", "labels_BK", "mask_BK", "weight_BK")
    events = {
        name: replace(e, gap_E=e.gap_E.double(), age_E=e.age_E.double())
        for name, e in batch.events.items()
    }
    return replace(batch, events=events, **{name: getattr(batch, name).double() for name in floats})


def stepped(model: FoundationModel, batch: Batch) -> dict[str, torch.Tensor]:
    """The loss, every gradient, and every weight after one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = training_loss(model(batch), batch, torch.ones(2))
    optimizer.zero_grad()
    loss.backward()
    found = {"loss": loss.detach()}
    found |= {
        f"grad.{n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }
    optimizer.step()
    return found | {n: p.detach().clone() for n, p in model.named_parameters()}


@pytest.mark.skipif(not DEVICE_IS_CPU, reason="make_batch makes CPU tensors")
@pytest.mark.parametrize(
    "changes", SWITCHES, ids=lambda c: "-".join(f"{k}={v}" for k, v in c.items()) or "default"
)
def test_a_step_is_the_same_on_either_backend(build, features, changes, monkeypatch):
    batch = in_double(make_batch(features, 6, seed=3))
    model = build(**changes).double()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    eager = stepped(model, batch)
    model.load_state_dict(start)
    used = []

    def always_triton(backend: str, device: str) -> tuple[str, str]:
        used.append(backend)
        return "triton", "asked for"

    monkeypatch.setattr(kernels, "choose_backend", always_triton)
    triton = stepped(model, batch)
    assert used
    assert eager.keys() == triton.keys()
    for name, value in eager.items():
        torch.testing.assert_close(triton[name], value, rtol=1e-9, atol=1e-11, msg=name)
