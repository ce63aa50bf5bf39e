"""The benchmark's bookkeeping: equal work, floors, figures and the table it writes."""

from __future__ import annotations

import pytest
import torch

from kernels.bench import __main__ as bench
from kernels.bench import memory
from kernels.bench.cases import Case, Contestant, Rows, _pairs, lengths_of
from kernels.bench.race import Peaks, Result, race


def case(op: str = "gdpa", shape: tuple[int, int] = (8, 2048), fill: float = 0.3) -> Case:
    return Case(
        op=op,
        num_rows=shape[0],
        longest=shape[1],
        fill=fill,
        flops=2e6,
        num_bytes=1e6,
        contestants={},
    )


def test_lengths_have_the_fill_asked_for():
    lengths = lengths_of(64, 2048, 0.3)
    assert int(lengths.max()) == 2048
    assert abs(float(lengths.double().mean()) / 2048 - 0.3) < 0.02
    assert lengths_of(4, 16, 1.0).tolist() == [16] * 4


@pytest.mark.parametrize("op", ["window", "block", "full"])
def test_pairs_are_those_of_the_mask(op):
    n = 300
    gap = torch.arange(n)[:, None] - torch.arange(n)
    seen = {
        "window": gap.abs() <= 128,
        "block": torch.arange(n)[:, None] // 64 == torch.arange(n) // 64,
        "full": gap == gap,
    }[op]
    assert _pairs(torch.tensor([n, n]), op) == 2 * int(seen.sum())


@pytest.mark.parametrize("op", memory.OPS)
@pytest.mark.parametrize("fill", [0.3, 1.0])
def test_all_forms_of_a_case_agree(op, fill):
    rows = Rows(lengths_of(5, 192, fill), 192, "cpu", torch.float32)
    result = race(memory.case_of(op, rows, fill), "cpu", 1)
    assert set(result.ms) >= {"ours", "padded"}
    assert result.case.flops > 0


def test_a_form_that_computes_something_else_is_refused():
    x = torch.ones(2, requires_grad=True)

    def form(factor: float) -> Contestant:
        return Contestant(
            compute=lambda x: x * factor, inputs=[x], pull=torch.ones(2), events=lambda o: o
        )

    wrong = Case(
        op="gdpa",
        num_rows=1,
        longest=1,
        fill=1,
        flops=1,
        num_bytes=1,
        contestants={"ours": lambda: form(1.0), "padded": lambda: form(1.1)},
    )
    with pytest.raises(ValueError, match=r"ours is off by 0\.091; fix it"):
        race(wrong, "cpu", 1)


def test_figures_are_the_worst_and_missed_targets_are_told():
    results = [
        Result(case("gdpa"), {"ours": 1.0, "padded": 3.0}, "eager"),
        Result(case("gdpa", (16, 1024)), {"ours": 1.0, "padded": 2.5}, "eager"),
        Result(case("gdpa", (32, 512)), {"ours": 1.0, "padded": 1.0}, "eager"),
        Result(case("seeds"), {"ours": 1.0, "padded": 4.0}, "eager"),
        Result(case("window attention"), {"ours": 1.0, "padded": 9.0}, "eager"),
        Result(case("full attention", (2, 64), 1.0), {"ours": 1.0, "padded": 1.0}, "eager"),
        Result(case("block attention", (2, 64), 1.0), {"ours": 1.2, "padded": 1.0}, "eager"),
    ]
    figures = bench.figures_of(results)
    assert figures == {
        "attention_vs_padded": 9.0,
        "gdpa_vs_padded": 2.5,
        "seed_vs_padded": 4.0,
        "attention_full_ratio": 1.2,
    }
    assert not bench.answer(figures | {"memory_exponent": 1.0})["holds"]
    assert bench.answer(figures | {"memory_exponent": 1.0, "attention_full_ratio": 1.0})["holds"]


def test_a_line_names_the_form_its_rate_and_its_distance_from_the_floor():
    result = Result(case(), {"ours": 2.0, "padded": 5.0}, "eager")
    ours, padded = result.lines(Peaks(gflops=2.0, gbytes=10.0))
    assert ours == "| gdpa | B8-T2048 | 0.3 | ours (eager) | 2.00 | 1.0 GFLOP/s | 2.0 | 2.50 |"
    assert "| padded | 5.00 | 0.4 GFLOP/s | 5.0 |" in padded


def test_the_slope_of_a_power_is_its_exponent():
    assert memory.slope((1, 2, 4), [3.0, 12.0, 48.0]) == pytest.approx(2.0)


def test_writing_replaces_the_table_alone(tmp_path, monkeypatch):
    page = tmp_path / "README.md"
    page.write_text(f"above\n{bench.MARKS[0]}\nold\n{bench.MARKS[1]}\nbelow\n")
    monkeypatch.setattr(bench, "README", page)
    bench.write(["new"])
    bench.write(["newer"])
    assert page.read_text() == f"above\n{bench.MARKS[0]}\nnewer\n{bench.MARKS[1]}\nbelow\n"
