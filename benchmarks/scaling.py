"""The scaling law: does Kunlun's NE fall faster with compute than its rivals' at equal FLOPs?

`python -m benchmarks.scaling` runs the full ladder in $HEADWATER_HOME (hours; start it with nohup,
and again when it was cut short) and writes docs/scaling.json, docs/scaling.png and the section of
docs/experiments.md. `--ladder JSON` gives other fields of the config, for a shorter one; `--name`
keeps it beside the main one.
`--quick` trains two rungs on 60,000 rows, without trials, and compares their NE with the committed
ones (`table_gap`; `--record` commits new ones); what two rungs cannot tell comes from the table.

All families have the same FLOPs per row at a rung (within 15%; the fit uses the true ones), the
same rows in the same order, as many trials of learning rates, chosen by forecasts of the training
pass, and are scored by NE against the planted truth on two held-out days. Figures are for clicks as
labels. `gain_vs_X_pct` is how much lower Kunlun's NE is at the largest rung; "not worse within
intervals" means that the high end of its 95% interval (users and seeds) reaches 0: that does not
show that it is better. `slope_ratio` is eta of Kunlun over that of InterFormer, without a target:
its interval says what is known. `holdout_in_interval` is the share of families whose largest
rung lies in the interval that the law of the smaller ones predicts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._measure import BenchmarkError, Bound, report
from benchmarks._scaling_docs import NAMED, committed, record_ladder, record_quick, table_of
from pipeline.run.launch import pipeline_command
from pipeline.run.paths import REPOSITORY, Run, open_run

QUICK: dict[str, Any] = {
    "source.planted.rows_per_day": 6_000,
    "source.planted.users": 1_000,
    "scaling.archs": ["kunlun", "interformer", "wukong_pma"],
    "scaling.labels": ["hard"],
}
SHOWN = "hard"
RIVALS = {"interformer": "interformer", "wukong": "wukong_pma"}  # name in figures -> family
MOST_GAP = 0.003  # of NE: another processor rounds otherwise, and training carries that on


def main(argv: list[str]) -> int:
    """Train, fit and print; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling")
    parser.add_argument("--quick", action="store_true", help="two rungs, 60,000 rows, no trials")
    parser.add_argument("--record", action="store_true", help="commit what --quick found")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--size", default="base", help="of the full ladder: small has 3 rungs")
    parser.add_argument("--ladder", default="{}", help="JSON of config fields, for the full ladder")
    parser.add_argument("--name", default="", help="of a ladder besides the main one, in docs/")
    arguments = parser.parse_args(argv)
    if not NAMED.fullmatch(arguments.name):
        parser.error(f"--name must be of a-z, 0-9 and -, got {arguments.name!r}")
    if not arguments.quick:
        given = json.loads(arguments.ladder)
        run = _trained(None, arguments.jobs, arguments.size, given)
        record_ladder(run, arguments.size, given, arguments.name)
        return report("scaling", _figures(_fit(run), _fit(run)), _targets())
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as home:
        run = _trained(Path(home), arguments.jobs, "small", QUICK, "--quick")
        return _quick(run, record=arguments.record)


def _quick(run: Run, *, record: bool) -> int:
    table, found = committed(), _fit(run)
    figures = _figures(found, table.get("fit", {}))
    seen, known = _nes(found), table.get("quick", {})
    shared = sorted(set(seen) & set(known))
    if shared:
        figures["table_gap"] = max(abs(seen[u] - known[u]) for u in shared)
    for unit, ne in seen.items():
        print(f"{unit:28} NE {ne:.4f}  committed {known.get(unit, float('nan')):.4f}")
    if record:
        record_quick(seen)
        print(f"written to {table_of()}")
    gap: dict[str, Bound] = {"table_gap": ("<=", MOST_GAP)} if known else {}
    return report("scaling", figures, _targets() | gap)


def _trained(home: Path | None, jobs: int, size: str, overrides: dict[str, Any], *more: str) -> Run:
    """The run folder of a ladder that the pipeline's own command trained."""
    command = pipeline_command(
        "scaling", "--size", size, "--jobs", str(jobs), "--overrides", json.dumps(overrides), *more
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    if home is not None:
        environment["HEADWATER_HOME"] = str(home)
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"the ladder ended with exit code {done.returncode}; see above")
    return open_run(done.stdout.splitlines()[-1])


def _fit(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.output("scaling_fit") / "fit.json").read_text())
    return found


def _nes(fit: dict[str, Any]) -> dict[str, float]:
    """NE against the truth of every point, by unit."""
    return {
        f"{name}-r{p['point']['rung']}-{labels}-s{p['point']['seed']}": p["ne"]["truth"]
        for labels, kind in fit["labels"].items()
        for name, family in kind["families"].items()
        for p in family["points"]
    }


def _figures(fit: dict[str, Any], ladder: dict[str, Any]) -> dict[str, float]:
    """Gains and slopes of `fit`; the held-out rungs of `ladder`, where it has any."""
    against = fit["labels"][SHOWN]["against"]
    figures: dict[str, float] = {}
    for rival, family in RIVALS.items():
        gain = against.get(family, {}).get("gain_pct")
        if gain:
            figures[f"gain_vs_{rival}_pct"] = gain["value"]
            figures[f"gain_vs_{rival}_high_pct"] = gain["high"]
    ratio = against.get("interformer", {}).get("slope_ratio")
    if ratio:
        figures["slope_ratio"] = ratio["value"]
        ends = {f"slope_ratio_{end}": ratio[end] for end in ("low", "high")}
        figures |= {name: value for name, value in ends.items() if value is not None}
    families = ladder.get("labels", {}).get(SHOWN, {}).get("families", {})
    inside = [f["holdout"]["inside"] for f in families.values() if "holdout" in f]
    if inside:
        figures["holdout_in_interval"] = sum(inside) / len(inside)
    return figures


def _targets() -> dict[str, Bound]:
    return {
        "gain_vs_interformer_high_pct": (">=", 0.0),
        "gain_vs_wukong_high_pct": (">=", 0.0),
        "holdout_in_interval": (">=", 1.0),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
