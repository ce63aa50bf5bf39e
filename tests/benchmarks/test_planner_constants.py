"""The planner's benchmark: constants come out of the times that they explain."""

from __future__ import annotations

import pytest

from benchmarks._measure import BenchmarkError
from benchmarks._planner_ranks import CASES, COPY, MICRO_SHARES, PRODUCT, SUM, flops
from benchmarks.planner import config_of, plan_of, predicted, topology_of, work_of

RATE, PEAK, COPIED, LINK, LATENCY_S = 2e10, 6e10, 1e10, 1e9, 1e-4


def times(name: str, *, per_row: float = 1.0) -> dict[str, float]:
    """What a machine of these constants takes, on two ranks."""
    case = CASES[name]
    cost = 3 * flops(config_of(case, 1), case.rows) / RATE
    locals_s = {
        f"{name}.local.{share}": 0.02 + per_row * cost * int(share * case.rows)
        for share in MICRO_SHARES
    }
    return locals_s | {
        "product": 2 * PRODUCT**3 / PEAK,
        "copy": 2 * 4 * COPY / COPIED,
        "small_sum": 2 * LATENCY_S,
        "sum": 2 * LATENCY_S + 2 * 4 * SUM / 2 / LINK,
        "tiny.local": 0.001,
        "tiny.step": 0.011,
    }


@pytest.mark.parametrize("name", CASES)
def test_constants_are_recovered(name):
    case = CASES[name]
    work = work_of(case, flops(config_of(case, 1), case.rows))
    topology = topology_of(times(name), name, work, 2)
    device, host = topology.device, topology.host
    assert device.tflops.float32 * 1e12 == pytest.approx(PEAK)
    assert device.local_mfu == pytest.approx(RATE / PEAK)
    assert device.memory_gb_per_s == pytest.approx(COPIED / 1e9)
    assert device.step_overhead_ms == pytest.approx(30)
    assert host.gb_per_s == pytest.approx(LINK / 1e9)
    assert host.latency_us == pytest.approx(1e6 * LATENCY_S)


def test_a_prediction_has_the_layout_of_the_measured_run():
    case = CASES["small"]
    step = predicted(times("small"), "small", case, flops(config_of(case, 1), case.rows), 2)
    assert step.compute + step.overhead < step.total < 2 * (step.compute + step.overhead)
    train = config_of(case, 2).train
    plan = plan_of(2)
    assert (plan.world, plan.zero_stage, plan.sharding) == (
        train.ranks,
        train.zero_stage,
        train.layout.sharding,
    )


def test_rows_that_cost_nothing_are_noise():
    case = CASES["small"]
    work = work_of(case, flops(config_of(case, 1), case.rows))
    with pytest.raises(BenchmarkError, match="too busy, try again"):
        topology_of(times("small", per_row=0.0), "small", work, 2)
