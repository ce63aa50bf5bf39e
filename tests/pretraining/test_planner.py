"""The planner: degrees multiply to the world, and no figure moves the wrong way."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.shape import reference_shape
from pipeline.__main__ import main
from pipeline.pretraining.planner import scaling
from pipeline.pretraining.planner.collectives import all_reduce, all_to_all, gather
from pipeline.pretraining.planner.command import TOPOLOGIES, topology_path
from pipeline.pretraining.planner.cost import heaviest, step_time
from pipeline.pretraining.planner.layouts import Plan, layouts, refusal
from pipeline.pretraining.planner.memory import memory
from pipeline.pretraining.planner.published import published
from pipeline.pretraining.planner.search import Search, search
from pipeline.pretraining.planner.topology import Group, read_topology
from pipeline.pretraining.planner.workload import Workload, workload
from pipeline.run.config import with_overrides
from pipeline.run.errors import ConfigError
from pipeline.run.presets import preset

H100 = read_topology(TOPOLOGIES / "h100-8.toml")
GB200 = read_topology(TOPOLOGIES / "gb200-rack.toml")
PUBLISHED = "published"
SHIPPED = sorted(TOPOLOGIES.glob("*.toml"))


def large() -> Workload:
    shape, config = reference_shape("large")
    lengths = {e.name: float(e.max_len) for e in shape.features.events}
    return workload("large", config, shape.features, 2, 3, lengths)


LARGE = large()


def plan_of(**changes: object) -> Plan:
    given = {"dense_shard": 8, "dense_replica": 8, "expert": 1, "sparse_shard": 8}
    given |= {"sparse_replica": 8, "zero_stage": 3, "sharding": "row"} | changes
    return Plan(**given)


@pytest.fixture(scope="module")
def on_64() -> Search:
    return search(LARGE, H100, 64, 64 * 512, "bfloat16")


@given(st.integers(1, 512))
@settings(max_examples=30, deadline=None)
def test_degrees_multiply_to_the_world(world):
    found = list(layouts(world))
    assert len(found) == len(set(found))
    for plan in found:
        assert plan.dense_shard * plan.dense_replica * plan.expert == world
        assert plan.sparse_shard * plan.sparse_replica == world
        assert (plan.zero_stage == 0) == (plan.dense_shard == 1)


def test_the_best_is_not_worse_than_any_other(on_64):
    totals = [p.step.total for p in on_64.found]
    assert totals == sorted(totals)
    assert len(on_64.found) + sum(on_64.refused.values()) == len(list(layouts(64)))
    limit = 80e9 * 0.9
    assert all(p.total_bytes <= limit and 0 < p.mfu <= H100.device.local_mfu for p in on_64.found)


@given(st.sampled_from([1, 2, 3]), st.integers(0, 5))
@settings(deadline=None)
def test_memory_falls_with_the_shard_degree(stage, power):
    shard = 2 ** (power + 1)
    fewer = memory(plan_of(dense_shard=shard, zero_stage=stage), LARGE, 512, "bfloat16")
    more = memory(plan_of(dense_shard=2 * shard, zero_stage=stage), LARGE, 512, "bfloat16")
    assert sum(more.values()) < sum(fewer.values())
    assert all(more[part] <= fewer[part] for part in fewer)


@given(
    st.sampled_from(["host", "zone"]),
    st.floats(1.0, 100.0),
    st.sampled_from([p for p in layouts(64) if not refusal(p, LARGE, H100, 4096)]),
)
@settings(max_examples=60, deadline=None)
def test_a_step_never_falls_when_bandwidth_falls(level, factor, plan):
    part = getattr(H100, level)
    slower = dataclasses.replace(part, gb_per_s=part.gb_per_s / factor)
    topology = dataclasses.replace(H100, **{level: slower})
    before = step_time(plan, LARGE, H100, 4096, "bfloat16").total
    assert step_time(plan, LARGE, topology, 4096, "bfloat16").total >= before


@given(st.integers(1, 8), st.floats(1e3, 1e9))
@settings(deadline=None)
def test_collectives_cost_more_on_farther_groups(power, num_bytes):
    size = 2**power
    for collective in (gather, all_reduce, all_to_all):
        near = collective(H100, Group(size), num_bytes)
        assert collective(H100, Group(size, 8), num_bytes) >= near
        assert near > collective(H100, Group(1), num_bytes) == 0


def test_a_gathering_over_one_link_is_its_volume_over_the_bandwidth():
    link = H100.zone.gb_per_s * 1e9
    wanted = 0.5e9 / link + H100.zone.latency_us * 1e-6  # half of it comes from the other host
    assert gather(H100, Group(2, 8), 1e9) == pytest.approx(wanted)
    # with a whole host at each end, eight links bring what a domain lacks
    eight = 1e9 * (1 - 1 / 16) / (H100.host.gb_per_s * 1e9)
    assert gather(H100, Group(16), 1e9) == pytest.approx(
        max(0.5e9 / (8 * link), eight) + 3 * 3e-6 + 8e-6
    )


def test_more_ranks_wait_longer_for_the_heaviest():
    assert heaviest(0.3, 512, 1) == 0
    assert heaviest(0.3, 512, 2) < heaviest(0.3, 512, 4096) < heaviest(0.3, 64, 4096)


def test_groups_lie_where_they_belong():
    plan = plan_of(dense_shard=128, dense_replica=32, expert=2, sparse_shard=8, sparse_replica=1024)
    within = {name: group.span(H100).name for name, group in plan.groups.items()}
    assert within == {
        "expert": "host",
        "dense_shard": "zone",
        "dense_replica": "across",
        "sparse_shard": "host",
        "sparse_replica": "across",
    }
    assert plan.replicas.stride == plan.shards.size * plan.shards.stride == 256


REFUSED = {
    "expert": (plan_of(expert=3), "expert degree does not divide the 2 Wukong experts"),
    "column": (plan_of(sharding="column"), "column-wise tables: row-wise Adagrad has one sum"),
    "tables": (plan_of(sparse_shard=64, sharding="table"), "more table shards than the 8 tables"),
    "hosts": (plan_of(dense_shard=3, dense_replica=4), "neither part of a host of 8 nor whole"),
    "rows": (plan_of(dense_replica=1024), "batch of 4096 gives some rank no row"),
}


@pytest.mark.parametrize(("plan", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_refused_layout_says_why(plan, reason):
    assert reason in refusal(plan, LARGE, H100, 4096)


def test_too_little_memory_is_a_reason_and_names_the_part():
    work = dataclasses.replace(LARGE, table_rows=(3 * 10**8,) * 8)
    judged = search(work, H100, 64, 64, "bfloat16")
    assert any("memory above 72 GB a device, most of it tables" in r for r in judged.refused)
    with pytest.raises(ConfigError, match=r"gpus must be .*got 8 .*most of it tables.*use more"):
        search(work, H100, 8, 8, "bfloat16")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_topology_reads(path):
    assert read_topology(path).name == path.stem
    assert topology_path(path.stem) == path


def changed(tmp_path: Path, old: str, new: str) -> Path:
    text = (TOPOLOGIES / "h100-8.toml").read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new))
    return path


WRONG = {
    "value": ("devices = 8", "devices = 0", r"host\.devices must be above 0, got 0; give"),
    "share": ("local_mfu = 0.30", "local_mfu = 30", r"device\.local_mfu must be in \(0, 1\], got"),
    "type": ("hosts = 384", 'hosts = "many"', r"zone\.hosts must be of type int, got 'many'"),
    "unknown": ("[host]", "[host]\nspeed = 1", r"host\.speed must be a field of Host"),
    "missing": ("memory_gb = 80", "", r"device\.memory_gb must be given, got 'nothing'; add it"),
    "over": ("oversubscription = 7", "oversubscription = 0.5", r"at least 1, got 0\.5; use 1"),
    "toml": ("[zone]", "[zone", r"is not TOML: .* mend that line"),
}


@pytest.mark.parametrize(("old", "new", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_topology_names_file_key_value_and_remedy(tmp_path, old, new, message):
    with pytest.raises(ConfigError, match=rf"mine\.toml.*{message}"):
        read_topology(changed(tmp_path, old, new))


def test_a_missing_topology_lists_its_neighbours():
    with pytest.raises(ConfigError, match=r"is not a topology file; beside it are .*h100-8"):
        read_topology(topology_path("h200"))


def test_a_precision_that_the_device_lacks_is_refused():
    topology = dataclasses.replace(
        H100, device=dataclasses.replace(H100.device, tflops=dataclasses.replace(
            H100.device.tflops, mxfp8=0.0)))  # fmt: skip
    with pytest.raises(ConfigError, match=r"precision must be one .*got 'mxfp8'; choose among"):
        topology.peak("mxfp8")


def test_the_command_writes_what_training_reads(tmp_path, capsys):
    out = tmp_path / "layout.json"
    asked = ["--topology", "h100-8", "--size", "large", "--gpus", "64", "--out", str(out)]
    assert main(["plan", *asked]) == 0
    printed = capsys.readouterr().out
    assert "refused:" in printed
    assert str(out) in printed
    overrides = json.loads(out.read_text())
    assert overrides["train.ranks"] == 64
    degrees = [overrides[f"train.layout.{n}"] for n in ("dense_shard", "dense_replica", "expert")]
    assert math.prod(degrees) == 64
    groups = json.loads((tmp_path / "layout.groups.json").read_text())
    assert groups["groups"]["expert"]["within"] == "host"
    assert groups["predicted"]["step_s"] > 0


def test_training_takes_the_overrides_of_what_is_built():
    small = dataclasses.replace(LARGE, table_rows=(1_000,) * 8)
    judged = search(small, H100, 4, 64, "float32", built=True)
    assert any(r.startswith("not built: train.layout.") for r in judged.refused)
    shapes = {(p.plan.zero_stage, p.plan.sharding) for p in judged.found}
    assert {(0, "data"), (1, "row"), (3, "table")} <= shapes
    for planned in judged.found:
        experts = {"model.wukong_experts": planned.plan.expert}  # as many as are to be shared out
        wanted = planned.plan.overrides(64) | {"window.num_buckets": 4} | experts
        assert with_overrides(preset("2026-11-29", "small"), wanted).train.ranks == 4


def test_the_command_refuses_in_one_line(capsys):
    assert main(["plan", "--topology", "h100-8"]) == 65
    assert "gpus must be given" in capsys.readouterr().err
    assert main(["plan", "--topology", "h100-8", "--gpus", "99999"]) == 65
    assert "at most the 24576 devices of h100-8, got 99999" in capsys.readouterr().err
    assert main(["plan", "--topology", "h100-8", "--gpus", "8", "--model", "din"]) == 65
    assert "model.arch must be kunlun" in capsys.readouterr().err


def test_scaling_is_drawn(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(scaling, "WORLDS", (8, 256, 512))
    path = tmp_path / "scaling.png"
    asked = ["--topology", "gb200-rack", "--size", PUBLISHED, "--scaling", str(path)]
    assert main(["plan", *asked]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["8", "no", "layout", "fits"]
    assert "MFU" in lines[-2]


def test_the_published_point_is_in_reach():
    """What the planner says of the published layout; docs/planner.md discusses the difference."""
    work = published()
    assert work.flops == pytest.approx(154.9e9, rel=0.01)
    judged = search(work, GB200, 4096, 4096 * 512, "bfloat16")
    wanted = [
        p
        for p in judged.found
        if p.plan.expert == 2
        and p.plan.dense_shard in (128, 256)
        and p.plan.sparse_shard == 256
        and p.plan.sharding == "row"
    ]
    assert 0.15 < max(p.mfu for p in wanted) < 0.25
    assert judged.found[0].plan.expert == 2
