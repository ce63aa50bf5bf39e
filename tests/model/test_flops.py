"""FLOPs of unlike towers against torch's counter, and attended pairs against the masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from reference_world import BASE, NUM_SURFACES, make_inputs, unlike_towers
from torch.utils.flop_counter import FlopCounterMode

from model.config import Objective
from model.flops import _pairs, flops_by_part, flops_per_row
from model.foundation import DenseArch
from model.reference.towers import sees

TOWERS = unlike_towers(view=2, like=1)
ROWS = 64  # many, for what is done once per batch is not counted
CAPS = {e.name: e.max_len for e in TOWERS.events}


@pytest.mark.parametrize("compskip", [True, False])
@pytest.mark.parametrize("last_attention", ["read_out", "skip"])
@pytest.mark.parametrize("keys", [3, 30], ids=["folded", "projected"])
def test_personalized_towers(compskip, last_attention, keys):
    changes = {"layers": 4, "compskip": compskip, "last_attention": last_attention}
    config = replace(BASE, attention="full", summary_tokens=keys, **changes)
    model = DenseArch(TOWERS, (Objective(name="click"),), NUM_SURFACES, config).double().eval()
    inputs, _ = make_inputs(TOWERS, {name: [cap] * ROWS for name, cap in CAPS.items()}, 4)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(inputs)
    mine = flops_per_row(config, TOWERS, 1, CAPS, NUM_SURFACES)
    assert ROWS * mine == pytest.approx(counter.get_total_flops(), rel=0.01)


@pytest.mark.parametrize("attention", ["full", "window", "block"])
def test_pairs_are_those_that_each_event_may_see(attention):
    config = replace(BASE, attention=attention, attention_block=4)
    event, lengths = TOWERS.events[0], np.arange(12)
    want = [sum(sees(i, j, event, config) for i in range(n) for j in range(n)) for n in lengths]
    assert _pairs(config, event, lengths).tolist() == want


def test_a_tower_that_ends_costs_nothing_more():
    few, more = (flops_by_part(replace(BASE, layers=layers), TOWERS, 1, CAPS) for layers in (2, 6))
    for part in ("gdpa", "pool", "attention"):
        assert few[f"view.{part}"] == more[f"view.{part}"]
        assert few[f"click.{part}"] < more[f"click.{part}"]
