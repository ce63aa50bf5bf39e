"""Our DCNv2 and DIN against those of established libraries, and Kunlun against simple counts.

`python -m benchmarks.peers [--quick]` gives fuxictr, torch-rechub and deepctr-torch, each in an
environment of its own below --cache, the same rows, features, hashed ids, histories and split in
time as our own trainer, at equal size, batch size and threads, one pass in time order. Each
training is a process, and everybody takes turns; our code computes the metrics from everybody's
predictions. Speed is rows a second of processor time with one thread, of the training loop alone:
reading and converting the data is not timed, and the peers get ready batches. Learning rates are in
`rates.json`, one per contestant for all sets: 3e-3 for everybody, until --tune chooses them on the
last tenth of MovieLens' training rows with the same trials for all. `--record docs/experiments.md`
keeps the tables there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._experiments import replace_section
from benchmarks._measure import Bound, child, report
from benchmarks._peers import table
from benchmarks._peers.contestants import KUNLUN, LARGE, MODELS, OURS, Result, Training, run
from benchmarks._peers.data import NAMES, Prepared
from benchmarks._peers.environments import REQUIREMENTS, ready
from benchmarks._peers.table import APART, RANKS, TOGETHER
from benchmarks._peers.verdict import Holdout, Score, best_peer, gap, quick_auc, score
from pipeline.evaluation.intervals import Interval
from pipeline.run.codec import digest

RATES = Path(__file__).parent / "_peers" / "rates.json"
TUNED_ON = "movielens"
TRIED = (1e-3, 3e-3, 1e-2)
REFERENCES = {"movielens": "movielens_gain_over_bias", "tafeng": "tafeng_gain_over_repeat"}
Results = dict[tuple[str, str], list[Result]]
TARGETS: dict[str, Bound] = {
    "dcnv2_speed_ratio": (">=", 1.0),
    "din_speed_ratio": (">=", 1.0),
    # "not below it within noise": the interval over users reaches 0
    "dcnv2_auc_gap_high": (">=", 0.0),
    "din_auc_gap_high": (">=", 0.0),
    "movielens_gain_over_bias": (">=", 0.0),
    "tafeng_gain_over_repeat": (">=", 0.0),
    "kunlun_5m_rows_per_s": (">=", 900.0),
}


def main(argv: list[str]) -> int:
    """Install, prepare, train, score, time and print; the last line is JSON."""
    contest = Contests(_arguments(argv))
    if contest.options.tune:
        contest.tune()
    results = contest.take_turns()
    scores = {name: scored(contest.sets[name], found) for name, found in results.items()}
    references = {
        figure: contest.against(name, scores[name])
        for name, figure in REFERENCES.items()
        if name in scores
    }
    large = contest.large_kunlun()
    figures = _figures(scores, results, references) | table.large_rates(large)
    text = table.section(contest.told(large), scores, results, references, figures)
    print(text)
    if contest.options.record is not None:
        replace_section(contest.options.record, "peers", text)
    return report("peers", figures, TARGETS)


class Contests:
    """All trainings of one call."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.cache: Path = options.cache
        self.pythons = {peer: ready(self.cache, peer) for peer in options.peers}
        self.seeds = range(1 if options.quick else 3)
        self.rates: dict[str, float] = json.loads(RATES.read_text())
        self.sets = {name: self._prepared(name) for name in options.sets}
        self.entrants = [(by, model) for model in MODELS for by in (OURS, *self.pythons)]
        self.entrants.append((OURS, KUNLUN))

    def tune(self) -> None:
        """Choose every learning rate on the last training rows of `TUNED_ON`; keeps rates.json."""
        prepared = self.sets[TUNED_ON]
        with np.load(Path(prepared.data) / "train.npz") as train:
            y_N = train["label"][prepared.valid :].astype(np.float64)
        trials = [
            Training(by=by, model=model, part="valid", rate=rate, seed=100)
            for by, model in self.entrants
            for rate in TRIED
        ]
        found: dict[str, dict[float, float]] = {}
        for trial in trials:
            aucs = found.setdefault(f"{trial.by}/{trial.model}", {})
            aucs[trial.rate] = quick_auc(y_N, np.load(self.train(TUNED_ON, trial).predictions))
        print(f"AUC by learning rate: {json.dumps(found)}", flush=True)
        self.rates |= {who: max(aucs, key=aucs.__getitem__) for who, aucs in found.items()}
        RATES.write_text(json.dumps(self.rates, indent=1, sort_keys=True) + "\n")

    def take_turns(self) -> dict[str, Results]:
        """Set -> (who, model) -> a training per seed, everybody taking turns."""
        found: dict[str, Results] = {name: {} for name in self.sets}
        for seed in self.seeds:
            for name in self.sets:
                for by, model in self.entrants:
                    rate = self.rates[f"{by}/{model}"]
                    training = Training(by=by, model=model, part="test", rate=rate, seed=seed)
                    found[name].setdefault((by, model), []).append(self.train(name, training))
        return found

    def against(self, name: str, scores: dict[str, dict[str, Score]]) -> Interval:
        """How far Kunlun's AUC is above that of the set's simple reference."""
        prepared = self.sets[name]
        path = Path(prepared.data) / "reference.npy"
        child(f"benchmarks._peers.references:{name}", run=prepared.run, answer=str(path))
        reference = score(Holdout.read(prepared.data), [np.load(path)])
        scores["reference"] = {"counts": reference}
        return gap(scores[KUNLUN][OURS], reference)

    def large_kunlun(self) -> dict[str, list[Result]]:
        """How two cores are used -> trainings of a Kunlun of about 5M parameters.

        One rank with two threads, two ranks with one each, and two trainings that know nothing of
        each other.
        """

        def one(seed: int, threads: int = 1, ranks: int = 1) -> Result:
            given: dict[str, Any] = {"seed": seed, "threads": threads, "ranks": ranks, "rate": 1e-3}
            training = Training(by=OURS, model=LARGE, part="last", **given)
            return self.train(next(iter(self.sets)), training)

        found: dict[str, list[Result]] = {TOGETHER: [], RANKS: [], APART: []}
        for repeat in self.seeds:
            found[TOGETHER].append(one(repeat, threads=2))
            found[RANKS].append(one(repeat, ranks=2))
            with ThreadPoolExecutor(2) as pool:
                found[APART] += pool.map(one, (10 + repeat, 20 + repeat))
        return found

    def train(self, name: str, training: Training) -> Result:
        """Run a training; with --resume one that was finished before is taken as it is."""
        key = digest([self.sets[name].data, asdict(training)])
        answer = self.cache / "results" / f"{name}-{training.by}-{training.model}-{key}"
        kept = Path(f"{answer}.result.json")
        if self.options.resume and kept.is_file():
            return Result(**json.loads(kept.read_text()))
        answer.parent.mkdir(parents=True, exist_ok=True)
        found = run(training, self.sets[name], self.pythons, answer)
        kept.write_text(json.dumps(asdict(found)))
        print(
            f"{name:9} {training.by:13} {training.model:12} {training.part:5} "
            f"seed {training.seed}: {found.rate:7.0f} rows a processor second, "
            f"{found.wall_rate:7.0f} a second, {found.memory_mb:5.0f} MB",
            flush=True,
        )
        return found

    def told(self, large: dict[str, list[Result]]) -> dict[str, Any]:
        """What the section says of the run besides its results."""
        return {
            "quick": self.options.quick,
            "seeds": len(self.seeds),
            "rows": {name: prepared.rows for name, prepared in self.sets.items()},
            "versions": [REQUIREMENTS[peer][1] for peer in self.pythons],
            "rates": self.rates,
            "large_parameters": large[TOGETHER][0].parameters,
        }

    def _prepared(self, name: str) -> Prepared:
        home = str(self.cache / "home")
        quick = self.options.quick
        return Prepared(
            **child("benchmarks._peers.data:prepare", home=home, name=name, quick=quick).value
        )


def scored(prepared: Prepared, results: Results) -> dict[str, dict[str, Score]]:
    """Model -> who -> metrics of a set's holdout."""
    holdout = Holdout.read(prepared.data)
    found: dict[str, dict[str, Score]] = {}
    for (by, model), trained in results.items():
        predicted = [np.load(result.predictions) for result in trained]
        found.setdefault(model, {})[by] = score(holdout, predicted)
    return found


def _figures(
    scores: dict[str, dict[str, dict[str, Score]]],
    results: dict[str, Results],
    references: dict[str, Interval],
) -> dict[str, float]:
    """The worst set's speed ratio and AUC gap per model, and Kunlun's gains."""
    figures: dict[str, float] = {}
    for model in MODELS:
        figures[f"{model}_speed_ratio"] = min(
            table.speed_ratio(found, model) for found in results.values()
        )
        gaps = [gap(s[model][OURS], s[model][best_peer(s[model])]) for s in scores.values()]
        worst = min(gaps, key=lambda found: found.value)
        figures[f"{model}_auc_gap"] = worst.value
        figures[f"{model}_auc_gap_low"] = worst.low
        figures[f"{model}_auc_gap_high"] = min(found.high for found in gaps)
    for name, found in references.items():
        figures[name] = found.value
    return figures


def _arguments(argv: list[str]) -> argparse.Namespace:
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headwater" / "peers"
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers")
    parser.add_argument("--quick", action="store_true", help="less data, one seed, 10 minutes")
    parser.add_argument("--tune", action="store_true", help="choose all learning rates again")
    parser.add_argument("--resume", action="store_true", help="keep what an earlier call finished")
    parser.add_argument("--record", type=Path, help="file whose section of this benchmark is set")
    parser.add_argument("--sets", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--cache", type=Path, default=default, help=f"default: {default}")
    parser.add_argument(
        "--peers", nargs="+", choices=sorted(REQUIREMENTS), default=sorted(REQUIREMENTS)
    )
    found = parser.parse_args(argv)
    found.cache = found.cache.resolve()
    if found.tune and TUNED_ON not in found.sets:
        parser.error(f"--tune needs the set {TUNED_ON}; name it among --sets")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
