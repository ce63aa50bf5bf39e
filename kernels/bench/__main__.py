"""`python -m kernels.bench [--quick] [--write]`: every op beside PyTorch's forms, and the figures.

Forms take turns in one process on one thread, processor time, medians; outputs and gradients are
compared before they are timed. The last line is a JSON object. `--write` puts the table into
kernels/README.md. With a GPU the same cases run there too, in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from typing import Literal

import torch

from kernels.bench import memory
from kernels.bench.cases import Rows, lengths_of
from kernels.bench.race import HEAD, Result, peaks, race

README = Path(__file__).parents[1] / "README.md"
MARKS = ("<!-- table of kernels.bench -->", "<!-- end of the table -->")
Bound = tuple[Literal["<=", ">="], float]
TARGETS: dict[str, Bound] = {
    "attention_vs_padded": (">=", 2.0),
    "gdpa_vs_padded": (">=", 2.0),
    "seed_vs_padded": (">=", 2.0),
    "attention_full_ratio": ("<=", 1.1),
    "memory_exponent": ("<=", 1.1),
}
# (rows, longest row): what the figures are the worst of
JUDGED = ((8, 2048), (16, 1024))
SHORTER = ((32, 512), (128, 128))
GPU_SHAPES = ((64, 2048), (16, 8192))
GPU_UNMEASURED = (
    "GPU targets (window and block attention at least 2x FlexAttention at fill 0.5 and within 15% "
    "of dense FlashAttention at fill 1; GDPA at least 70% of the matrix ceiling and 2x eager): "
    "unmeasured, no GPU here."
)


def main(argv: list[str]) -> int:
    """Race, print, and maybe write."""
    parser = argparse.ArgumentParser(prog="python -m kernels.bench")
    parser.add_argument("--quick", action="store_true", help="fewer shapes")
    parser.add_argument("--write", action="store_true", help="put the table into the README")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    page = Page()
    results = _cpu(page, options.quick)
    if torch.cuda.is_available():
        _gpu(page)
    else:
        page.add("", GPU_UNMEASURED)
    events = memory.EVENTS[::2] if options.quick else memory.EVENTS
    exponents, mib = memory.exponents(events)
    page.add("", *_memory_table(events, exponents, mib))
    figures = figures_of(results) | {"memory_exponent": max(exponents.values())}
    if options.write:
        write(page.lines)
    print(json.dumps(answer(figures)), flush=True)
    return 0


class Page:
    """Lines that are printed as they come and kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, *lines: str) -> None:
        """Print and keep."""
        self.lines += lines
        print("\n".join(lines), flush=True)


def figures_of(results: list[Result]) -> dict[str, float]:
    """Each the worst over the judged shapes."""
    judged = [r for r in results if (r.case.num_rows, r.case.longest) in JUDGED or r.case.fill == 1]
    skewed = {
        "attention_vs_padded": "window attention",
        "gdpa_vs_padded": "gdpa",
        "seed_vs_padded": "seeds",
    }
    figures = {
        figure: min(r.gain for r in judged if r.case.op == op and r.case.fill < 1)
        for figure, op in skewed.items()
    }
    full = [r for r in judged if r.case.fill == 1 and "attention" in r.case.op]
    return figures | {"attention_full_ratio": max(1 / r.gain for r in full)}


def answer(figures: dict[str, float]) -> dict[str, object]:
    """The benchmark's last line."""
    met = (
        figures[name] <= limit if way == "<=" else figures[name] >= limit
        for name, (way, limit) in TARGETS.items()
    )
    return {
        "benchmark": "kernels",
        "figures": {name: float(f"{value:.4g}") for name, value in figures.items()},
        "targets": {name: list(bound) for name, bound in TARGETS.items()},
        "holds": all(met),
    }


def write(lines: list[str]) -> None:
    """Replace the table in the README."""
    before, _, rest = README.read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    README.write_text("\n".join([before + MARKS[0], *lines, MARKS[1]]) + after)


def _cpu(page: Page, quick: bool) -> list[Result]:
    """The table in float32."""
    skewed = JUDGED if quick else JUDGED + SHORTER
    shapes = [(rows, longest, 0.3) for rows, longest in skewed]
    shapes += [(2, 2048, 1.0)] if quick else [(2, 2048, 1.0), (8, 512, 1.0)]
    ceiling = peaks("cpu", torch.float32)
    page.add(
        f"CPU, one thread, float32, forward and backward; ceilings measured in the same run: "
        f"{ceiling.gflops:.0f} GFLOP/s, {ceiling.gbytes:.1f} GB/s",
        "",
        *HEAD,
    )
    results = []
    for num_rows, longest, fill in shapes:
        rows = Rows(lengths_of(num_rows, longest, fill), longest, "cpu", torch.float32)
        # the padded form of full attention takes seconds, and its figure is that of equal rows
        for op in (op for op in memory.OPS if op != "full" or fill == 1 or not quick):
            result = race(memory.case_of(op, rows, fill), "cpu", 7)
            page.add(*result.lines(ceiling))
            results.append(result)
    return results


def _gpu(page: Page) -> None:
    """The table in bfloat16, under the card's name."""
    ceiling = peaks("cuda", torch.bfloat16)
    page.add(
        "",
        f"{torch.cuda.get_device_name()}, bfloat16, forward and backward; ceilings: "
        f"{ceiling.gflops:.0f} GFLOP/s, {ceiling.gbytes:.0f} GB/s",
        "",
        *HEAD,
    )
    for (num_rows, longest), fill in product(GPU_SHAPES, (0.5, 1.0)):
        rows = Rows(lengths_of(num_rows, longest, fill), longest, "cuda", torch.bfloat16)
        for op in memory.OPS:
            page.add(*race(memory.case_of(op, rows, fill), "cuda", 20).lines(ceiling))


def _memory_table(
    events: tuple[int, ...], exponents: dict[str, float], mib: dict[str, list[float]]
) -> list[str]:
    head = " | ".join(str(e) for e in events)
    lines = [
        "MiB beyond the inputs against events, half of which are one row; CPU, float32",
        "",
        f"| op | {head} | exponent |",
        "|---" * (len(events) + 2) + "|",
    ]
    for op, sizes in mib.items():
        cells = " | ".join(f"{m:.1f}" for m in sizes)
        lines.append(f"| {op} | {cells} | {exponents[op]:.2f} |")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
