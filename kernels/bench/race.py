"""Contestants of a case in turns, and the lines of the table they make."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels import choose_backend
from kernels.bench.cases import Case, Contestant

HEAD = (
    "| op | shape | fill | form | ms | rate | x floor | best other / ours |",
    "|---|---|---|---|---|---|---|---|",
)
MOST_TURNS, SPAN_MS = 51, 1_500.0
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Peaks:
    """What the machine does at most: a large matrix product, a large copy."""

    gflops: float
    gbytes: float

    def floor_ms(self, case: Case) -> float:
        """The time that FLOPs or bytes take at least, whichever is longer."""
        return max(case.flops / self.gflops, case.num_bytes / self.gbytes) / 1e6


@dataclass(frozen=True)
class Result:
    """Median milliseconds per form."""

    case: Case
    ms: dict[str, float]
    backend: str

    @property
    def gain(self) -> float:
        """The padded form's time over ours."""
        return self.ms["padded"] / self.ms["ours"]

    def lines(self, peaks: Peaks) -> list[str]:
        """One row of the table per form."""
        case, floor = self.case, peaks.floor_ms(self.case)
        best = min(ms for name, ms in self.ms.items() if name != "ours")
        by_flops = case.flops / peaks.gflops >= case.num_bytes / peaks.gbytes
        found = []
        for name, ms in self.ms.items():
            work, unit = (case.flops, "GFLOP/s") if by_flops else (case.num_bytes, "GB/s")
            form = f"ours ({self.backend})" if name == "ours" else name
            ratio = f"{best / ms:.2f}" if name == "ours" else ""
            found.append(
                f"| {case.op} | {case.shape} | {case.fill:g} | {form} | {ms:.2f} | "
                f"{work / ms / 1e6:.1f} {unit} | {ms / floor:.1f} | {ratio} |"
            )
        return found


def race(case: Case, device: str, repeats: int) -> Result:
    """Check that all forms agree, then time them; `ValueError` when they do not.

    They take at least `repeats` turns: quick ones more of them, up to `MOST_TURNS` in `SPAN_MS`,
    since a pause of a millisecond that hits one is a large part of it.
    """
    contestants = {name: make() for name, make in case.contestants.items()}
    _agree(case, contestants)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    turn, spent = 0, 0.0
    while turn < repeats or (turn < MOST_TURNS and spent < SPAN_MS):
        for name, contestant in contestants.items():
            times[name].append(_milliseconds(contestant.outcome, device))
            spent += times[name][-1]
        turn += 1
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    return Result(case, medians, choose_backend("auto", device)[0])


def _agree(case: Case, contestants: dict[str, Contestant]) -> None:
    """The same outputs and gradients on events, by the norm of the difference."""
    want = contestants["padded"].events(contestants["padded"].outcome())
    for name, contestant in contestants.items():
        got = contestant.events(contestant.outcome())
        for g, w in zip(got, want, strict=True):
            error = float((g.double() - w.double()).norm() / w.double().norm())
            if error > TOLERANCE[w.dtype]:
                raise ValueError(f"{case.op} {case.shape}: {name} is off by {error:.2g}; fix it")


def peaks(device: str, dtype: torch.dtype) -> Peaks:
    """Best of several repeats."""
    size = 8_192 if device == "cuda" else 768
    a = torch.randn(size, size, device=device, dtype=dtype)
    product_ms = min(_milliseconds(lambda: a @ a, device) for _ in range(10))
    source = torch.randn(1 << (28 if device == "cuda" else 24), device=device)
    target = torch.empty_like(source)
    copy_ms = min(_milliseconds(lambda: target.copy_(source), device) for _ in range(10))
    return Peaks(2 * size**3 / product_ms / 1e6, 2 * source.nbytes / copy_ms / 1e6)


def _milliseconds(run: Callable[[], object], device: str) -> float:
    """Processor time on a CPU, the stream's time on a GPU."""
    if device == "cuda":
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        elapsed: float = first.elapsed_time(last)
        return elapsed
    began = time.process_time()
    run()
    return (time.process_time() - began) * 1e3
