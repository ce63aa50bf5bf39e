"""The engine against plain torch, its refusals, and its averages."""

from __future__ import annotations

import pytest
import torch
from model_world import NUM_SURFACES, OBJECTIVES, make_batch, planted_features

from model.average import WeightAverage
from model.config import ConfigError, ModelConfig
from model.foundation import FoundationModel, training_loss
from model.parallel import Engine, EngineConfig, join_process_group, start_deepspeed

WEIGHTS = torch.ones(2)


def build() -> FoundationModel:
    torch.manual_seed(0)
    return FoundationModel(planted_features(), OBJECTIVES, NUM_SURFACES, ModelConfig()).train()


def engine_config(**changes: object) -> EngineConfig:
    settings = {"batch_size": 32, "dense_lr": 1e-2, "sparse_lr": 3e-2, **changes}
    return EngineConfig(**settings)


def train(engine: Engine, steps: int, begin: int = 0) -> list[float]:
    losses = []
    for step in range(begin, begin + steps):
        batch = make_batch(planted_features(), 32, seed=step)
        loss = training_loss(engine.forward(batch), batch, WEIGHTS)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def test_sgd_gives_the_loss_curve_of_plain_torch():
    # SGD, because adaptive optimizers hide a wrong gradient scale
    engine = Engine(build, engine_config(optimizer="sgd", dense_lr=0.1, sparse_lr=2.0))
    mine = train(engine, 15)
    model = build()
    dense = torch.optim.SGD(model.dense.parameters(), lr=0.1)
    tables = torch.optim.SGD(model.sparse.parameters(), lr=2.0)
    plain = []
    for step in range(15):
        batch = make_batch(planted_features(), 32, seed=step)
        loss = training_loss(model(batch), batch, WEIGHTS)
        dense.zero_grad()
        tables.zero_grad()
        loss.backward()
        dense.step()
        tables.step()
        plain.append(loss.item())
    assert plain[-1] < plain[0]
    assert mine == pytest.approx(plain, abs=1e-5)


def test_state_restores_exactly():
    engine = Engine(build, engine_config())
    train(engine, 10)
    dense, sparse = ({k: v.clone() for k, v in part.items()} for part in engine.tensors())
    ahead = train(engine, 5, begin=10)
    other = Engine(build, engine_config())
    other.load_tensors(dense, sparse)
    assert train(other, 5, begin=10) == ahead
    for a, b in zip(engine.tensors(), other.tensors(), strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[k], b[k]) for k in a)


def test_export_holds_the_average_and_the_last_weights():
    engine = Engine(build, engine_config(ema_decay=0.5))
    train(engine, 12)
    last, average = engine.export(averaged=False), engine.export()
    name = "heads.trunk.weight"
    assert torch.equal(last.dense.state_dict()[name], engine.dense.state_dict()[name])
    assert not torch.equal(average.dense.state_dict()[name], engine.dense.state_dict()[name])
    with torch.no_grad():
        assert torch.isfinite(average(make_batch(planted_features())).logits_BK).all()


@pytest.mark.parametrize("gaps", [[1] * 9, [3, 3, 3], [1, 8]])
def test_average_is_bias_corrected(gaps):
    value = {"w": torch.zeros(2)}
    average, steps = WeightAverage(value, 0.9), 0
    want = torch.zeros(2, dtype=torch.float64)
    for gap in gaps:
        value["w"].fill_(steps + 1.0)
        for _ in range(gap):
            steps += 1
            want += 0.1 * 0.9 ** (9 - steps) * value["w"].double()
        average.update(steps)
    torch.testing.assert_close(average.values["w"].double(), want / (1 - 0.9**9))
    value["w"].fill_(5.0)
    kept = average.values["w"].clone()
    assert not torch.equal(average.at(10)["w"], kept)
    assert torch.equal(average.values["w"], kept)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gradient_accumulation": 2}, "gradient_accumulation"),
        ({"precision": "float16"}, "precision"),
        ({"zero_stage": 1}, "zero_stage"),
    ],
)
def test_what_would_be_wrong_is_refused(changes, field):
    with pytest.raises(ConfigError, match=field):
        engine_config(**changes)


def test_deepspeed_never_gets_tables():
    join_process_group()
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="embedding tables"):
        start_deepspeed(model, optimizer, engine_config())
