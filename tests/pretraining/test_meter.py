"""Training metrics: normalized entropy, and a meter that resumes exactly."""

from __future__ import annotations

import json
import math

import pytest
import torch

from model.batch import Batch
from pipeline.pretraining.meter import WINDOW, Clock, Meter


def batch(labels: list[float], mask: list[float] | None = None) -> Batch:
    rows = len(labels)
    return Batch(
        ids_BF=torch.zeros(rows, 1, dtype=torch.int64),
        dense_BC=torch.zeros(rows, 0),
        events={},
        surface_B=torch.zeros(rows, dtype=torch.int64),
        labels_BK=torch.tensor(labels)[:, None],
        mask_BK=torch.tensor(mask or [1.0] * rows)[:, None],
        weight_BK=torch.ones(rows, 1),
        row_B=torch.arange(rows),
    )


def test_predicting_the_base_rate_gives_an_entropy_of_one():
    meter = Meter(("click",))
    logits = torch.full((4, 1), math.log(1 / 3))
    meter.add(torch.tensor(0.5), logits, batch([1.0, 0.0, 0.0, 0.0]), 1)
    meter.close(1)
    assert meter.records[0]["ne"]["click"] == pytest.approx(1.0)
    assert meter.records[0]["rows"] == 4


def test_masked_rows_do_not_count():
    meter = Meter(("click",))
    meter.add(torch.tensor(0.5), torch.zeros(2, 1), batch([1.0, 0.0], [1.0, 0.0]), 1)
    meter.close(1)
    assert meter.records[0]["ne"]["click"] is None  # one kind of label: no entropy to compare


def test_a_meter_goes_on_exactly():
    draw = torch.Generator().manual_seed(0)

    def feed(meter: Meter, begin: int, end: int) -> None:
        for step in range(begin, end):
            draw.manual_seed(step)
            labels = (torch.rand(8, generator=draw) < 0.3).float().tolist()
            logits = torch.randn(8, 1, generator=draw)
            meter.add(logits.mean(), logits, batch(labels), step)

    whole, first = Meter(("click",)), Meter(("click",))
    feed(whole, 1, WINDOW + 20)
    feed(first, 1, 31)
    second = Meter(("click",), json.loads(json.dumps(first.state())))
    feed(second, 31, WINDOW + 20)
    whole.close(WINDOW + 20)
    second.close(WINDOW + 20)
    assert len(whole.records) == 2
    assert whole.records == second.records


def test_mfu_counts_the_time_of_steps_or_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.pretraining.meter.time.monotonic", lambda: 20.0)
    clock = Clock(began=10.0, gflop_a_row=0.5, peak_gflops=100.0, waited=3.0, saved=2.0, rows=400)
    figures = clock.figures()
    assert figures["mfu"] == pytest.approx(0.2)
    assert figures["local_mfu"] == pytest.approx(0.4)
    assert figures["data_wait"] == pytest.approx(0.3)
    assert figures["rows_per_s"] == pytest.approx(40.0)
    assert figures["peak_gb"] > 0.01
