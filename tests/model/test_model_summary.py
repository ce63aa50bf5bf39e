"""The summary: its reference shape is the planted one, its parts add up, its figures follow."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from model_world import NUM_SURFACES, OBJECTIVES

from model.config import Arch, ConfigError, ModelConfig
from model.flops import flops_by_part
from model.foundation import DenseArch, FoundationModel
from model.shape import reference_features, reference_shape
from model.sizes import SIZES, model_config
from model.snapshot import num_parameters
from model.summary import (
    activation_bytes,
    main,
    parts_of,
    text,
)
from pipeline.run.codec import to_dict
from pipeline.run.presets import preset


@pytest.mark.parametrize("size", ["smoke", "small", "base"])
def test_the_reference_is_shaped_as_planted_logs(size):
    run, (shape, config) = preset("2026-11-29", size), reference_shape(size)
    assert config == run.model
    lengths = {e.name: e.max_len for e in run.features.events}
    given = len(run.objectives), lengths, len(run.surfaces)
    theirs = flops_by_part(config, run.features, *given)
    assert flops_by_part(config, shape.features, *given) == theirs
    rows = [sorted(t.buckets for t in f.tables) for f in (shape.features, run.features)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("arch", Arch.__args__)
def test_parts_add_up_to_the_model(features, arch):
    config = ModelConfig(arch=arch)
    model = FoundationModel(features, OBJECTIVES, NUM_SURFACES, config)
    parts = parts_of(model.dense, features, config)
    assert sum(p.parameters for p in parts.values()) == num_parameters(model)
    assert sum(p.serving for p in parts.values()) == 4 * num_parameters(model)
    rows = sum(t.buckets for t in features.tables)
    kept = 20 * num_parameters(model.dense) + 8 * num_parameters(model.sparse) + 4 * rows
    assert sum(p.training for p in parts.values()) == kept


def test_every_size_has_a_shape_and_grows():
    totals = []
    for size in SIZES:
        features, config = reference_features(size), model_config(size)
        totals.append(sum(flops_by_part(config, features, 2, {"shown": 9, "organic": 9}).values()))
    assert totals[0] == totals[1] < totals[2] < totals[3]
    with pytest.raises(ConfigError, match="size must be one of"):
        model_config("huge")


def test_activations_follow_the_history(features):
    config = ModelConfig()
    dense = DenseArch(features, OBJECTIVES, NUM_SURFACES, config)
    held = [
        activation_bytes(dense, features, config, dict.fromkeys(("shown", "organic"), n))
        for n in (0, 100, 200)
    ]
    assert 0 < held[0] < held[1] < held[2]
    assert held[2] - held[1] < 2 * (held[1] - held[0])


def test_the_command_prints_a_size_and_a_run(tmp_path, capsys):
    assert main(["--size", "small", "--model", "dcnv2", "--history", "8"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("dcnv2, size small")
    assert "a row with 8 shown, 8 organic" in printed
    assert "trunk.cross" in printed
    run = preset("2026-11-29", "smoke")
    run = replace(run, model=replace(run.model, arch="din"))
    (tmp_path / "run.json").write_text(json.dumps(to_dict(run)))
    assert main(["--run", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"din, {tmp_path}")
    assert main(["--run", str(tmp_path / "none")]) == 65
    assert "pass the folder of a run" in capsys.readouterr().err


def test_shares_add_up():
    shape, config = reference_shape("small")
    lines = text(shape, config, {"shown": 3, "organic": 0})
    shares = [float(line.split()[-1][:-1]) for line in lines if line.endswith("%")]
    assert sum(shares[:-1]) == pytest.approx(100, abs=1)
    assert shares[-1] == 100
