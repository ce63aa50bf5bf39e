"""How peak memory grows with events: each number of events in a process of its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import torch

from kernels.bench.cases import Case, Rows, attention_case, gdpa_case, seed_case

OPS = ("window", "block", "full", "gdpa", "seeds")
EVENTS = (1_024, 2_048, 4_096, 8_192, 16_384)
# freed blocks go back to the system at once, so that the resident set is what is in use
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def exponents(events: tuple[int, ...] = EVENTS) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Per op the exponent of MiB against events, and the MiB themselves."""
    found = [_in_a_process(number) for number in events]
    mib = {op: [peaks[op] for peaks in found] for op in OPS}
    return {op: slope(events, mib[op]) for op in OPS}, mib


def slope(events: tuple[int, ...], mib: list[float]) -> float:
    """Least squares of log MiB on log events."""
    x, y = [math.log(e) for e in events], [math.log(m) for m in mib]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    product = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return product / sum((a - mean_x) ** 2 for a in x)


def case_of(op: str, rows: Rows, fill: float) -> Case:
    """The case of an op by its short name."""
    if op == "gdpa":
        return gdpa_case(rows, fill)
    return seed_case(rows, fill) if op == "seeds" else attention_case(rows, op, fill)


def _in_a_process(events: int) -> dict[str, float]:
    command = [sys.executable, "-m", "kernels.bench.memory", str(events)]
    done = subprocess.run(command, env=os.environ | ALLOCATOR, check=True, stdout=subprocess.PIPE)
    peaks: dict[str, float] = json.loads(done.stdout)
    return peaks


def peaks_of(events: int) -> dict[str, float]:
    """MiB per op beyond the inputs, of outputs and gradients; one row has half of the events."""
    torch.set_num_threads(1)
    lengths = [events // 2, events // 4, events // 8, events // 8]
    peaks = {}
    for op in OPS:
        _peak(op, [256, 128])  # code and pools are loaded
        peaks[op] = _peak(op, lengths)
    return peaks


def _peak(op: str, lengths: list[int]) -> float:
    rows = Rows(torch.tensor(lengths), max(lengths), "cpu", torch.float32)
    ours = case_of(op, rows, 1.0).contestants["ours"]()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    ours.outcome()
    return max(_status("VmHWM") - before, 4) / 1024


def _status(key: str) -> int:
    """KiB by /proc."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise KeyError(key)


if __name__ == "__main__":
    print(json.dumps(peaks_of(int(sys.argv[1]))))
