"""What Solaris brings to students: arms that read a store, trained as they would be served.

The planted worlds of `benchmarks transfer`: the model on days 0 to 4, frozen; the store played over
days 5 to 9; students on days 5 to 8 in one pass; day 9 scored against the planted probability.
Suffixes: R rows, D draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from benchmarks._measure import Bound, child, home_folder
from benchmarks._paired import mean_of_worlds, with_scatter
from benchmarks._transfer_arms import GAMMAS, rows_of_surface, split, with_students
from benchmarks._transfer_world import planted
from benchmarks.transfer import DRAWS, FULL_SIZE, QUICK_SIZE
from model.student_sequence import History
from pipeline.evaluation.intervals import resample
from pipeline.evaluation.metrics import normalized_entropy
from pipeline.evaluation.truth import with_truth
from pipeline.loopfm.arms import FIELDS, SOLARIS_ARMS, Arm, arms_named
from pipeline.loopfm.store_fields import one_or_none, with_age
from pipeline.loopfm.student_rows import SurfaceRows
from pipeline.loopfm.training import StudentRows, predict_rows, read_by
from pipeline.loopfm.transfer import trained, with_served
from pipeline.run.paths import Run
from pipeline.solaris.as_served import as_served
from pipeline.solaris.candidates import predict
from pipeline.solaris.precompute import precompute
from pipeline.solaris.serving import SOURCES
from pipeline.solaris.vectors import shard_names
from pipeline.solaris.verify import verify

Floats = npt.NDArray[np.float64]
Nes = dict[str, Floats]
CLICK: Final = "click"
PLAIN: Final = ("none", "kd", "loopfm", "kd_loopfm", "kd_raw", "kd_raw_loopfm")
SHARES: Final = (20, 40, 60, 80, 100)  # percent of rows whose own vector is there, without fallback
EXACT_ONLY: Final = Arm(name="masked", served=("exact",))
BACKFILLED: Final = Arm(name="backfilled", served=FIELDS)
TARGETS: Final[dict[str, Bound]] = {
    "tr_exact": (">=", 0.25),
    "user_over_kd": (">=", 4.0),
    "gain_over_loopfm": (">=", 0.08),
    "gain_over_kd_raw": (">=", 0.08),
    "placebo_gap": ("<=", 0.03),
    "sweep_ratio": (">=", 2.0),
    "skew_cost": (">=", 0.05),
}


def figures(*, quick: bool, seeds: int, home: str = "") -> dict[str, float]:
    """TR of every arm, mean of surfaces and of seeds' worlds, and what the issue asks of them."""
    answers = []
    for seed in range(seeds):
        size = QUICK_SIZE if quick else FULL_SIZE
        with home_folder(home, f"planted-{seed}") as folder:
            cost = child("benchmarks._solaris_value:world", home=str(folder), seed=seed, size=size)
        print(f"value, seed {seed}: {cost.processor_s:.0f} s of processor", flush=True)
        answers.append(cost.value)
    return figures_of(answers)


def world(home: str, seed: int, size: dict[str, Any]) -> dict[str, Any]:
    """Per surface the NE of each arm by draws (as lists), and what shown rows were served."""
    torch.set_num_threads(1)
    run = planted(Path(home), seed, **size)
    predict(run, "")
    for shard in shard_names(run):
        precompute(run, shard)
    verify(run, "")
    as_served(run)
    frames, sources = {}, np.zeros(len(SOURCES), dtype=np.int64)
    data = {s: with_served(run, s, rows_of_surface(run, s, "own")) for s in run.config.surfaces}
    gamma = _best_gamma(run, data, seed)
    given = with_students(run, {"transfer.kd_gamma": gamma})
    for surface, rows in data.items():
        frames[surface] = _frame(given, rows, seed)
        sources += np.bincount(_sources(rows)[rows.test_RK[:, 0]], minlength=len(SOURCES))
    return {
        "gamma": gamma,
        "served": dict(zip(SOURCES, (sources / max(sources.sum(), 1)).tolist(), strict=True)),
        "nes": {s: {a: d.tolist() for a, d in _draws(f).items()} for s, f in frames.items()},
    }


def figures_of(answers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Figures of the worlds, each with `_low` and `_high`: users drawn, and the worlds' scatter."""
    found_D = _drawn(answers)
    each = [_drawn([answer]) for answer in answers]
    figures: dict[str, float] = {}
    for name, value_D in found_D.items():
        found = with_scatter(value_D, [float(one[name][0]) for one in each])
        figures |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
    sweep = [figures[f"tr_masked_{share}"] for share in SHARES]
    shares = {f"served_{s}": float(np.mean([a["served"][s] for a in answers])) for s in SOURCES}
    return figures | shares | {"sweep_monotone": float(sweep == sorted(sweep))}


def _drawn(answers: Sequence[dict[str, Any]]) -> dict[str, Floats]:
    """Draws [D] of every figure: the mean of surfaces, NE meaned over worlds first."""
    cells = [
        {
            arm: mean_of_worlds([np.array(one["nes"][surface][arm]) for one in answers])
            for arm in answers[0]["nes"][surface]
        }
        for surface in answers[0]["nes"]
    ]
    tr: Nes = {arm: np.mean([_tr(nes, arm) for nes in cells], axis=0) for arm in cells[0]}
    found = {f"tr_{arm}": value for arm, value in tr.items() if arm not in ("none", "fm")}
    found["tr_exact"] = found.pop("tr_solaris_exact")
    return found | {
        "user_over_kd": tr["solaris_user"] / np.maximum(tr["kd"], 0.02),
        "gain_over_loopfm": tr["loopfm_solaris"] - tr["loopfm"],
        "gain_over_kd_raw": tr["kd_raw_solaris"] - tr["kd_raw"],
        "gain_over_kd_raw_loopfm": tr["kd_raw_loopfm_solaris"] - tr["kd_raw_loopfm"],
        "placebo_gap": np.abs(tr["solaris_placebo"] - tr["kd_raw"]),
        "sweep_ratio": tr["masked_100"] / tr["masked_40"],
        "skew_cost": tr["solaris"] - tr["backfilled"],
    }


def _sources(data: SurfaceRows) -> npt.NDArray[np.int8]:
    """The best source of what every row reads, an index into `SOURCES`."""
    there = {name: (h.end_B > h.begin_B).numpy() for name, h in data.rows.served.items()}
    best = [there[name] for name in reversed(SOURCES[1:])]
    return np.select(best, range(len(SOURCES) - 1, 0, -1), 0).astype(np.int8)


def _best_gamma(run: Run, data: dict[str, SurfaceRows], seed: int) -> float:
    """The weight of soft labels that serves the KD arm best, as benchmarks transfer takes it."""
    (kd,) = arms_named(("kd",))
    found = []
    for gamma in GAMMAS:
        given = with_students(run, {"transfer.kd_gamma": gamma})
        nes = [_ne(given, rows, kd, seed) for rows in data.values()]
        found.append(float(np.mean(nes)))
    return GAMMAS[int(np.argmin(found))]


def _ne(run: Run, data: SurfaceRows, arm: Arm, seed: int) -> float:
    train, test, scored = split(data)
    p_R = predict_rows(trained(run, train, arm, seed), read_by(arm, test, seed), arm)[:, 0]
    return float(normalized_entropy(_judged(run, data, scored).to_numpy(), p_R.numpy()))


def _frame(run: Run, data: SurfaceRows, seed: int) -> pl.DataFrame:
    """Truth and every arm's probability of the clicks that are scored."""
    train, test, scored = split(data)
    columns = {"fm": test.soft_RK[:, 0].numpy()}
    for arm in (*arms_named(PLAIN), *SOLARIS_ARMS):
        student = trained(run, train, arm, seed)
        columns[arm.name] = predict_rows(student, read_by(arm, test, seed), arm)[:, 0].numpy()
    for share in SHARES:
        some, others = _masked(train, share, seed), _masked(test, share, seed + 1)
        student = trained(run, some, EXACT_ONLY, seed)
        p_RK = predict_rows(student, read_by(EXACT_ONLY, others, seed), EXACT_ONLY)
        columns[f"masked_{share}"] = p_RK[:, 0].numpy()
    # learned from vectors that were filled in for every row, then served for real
    student = trained(run, _backfilled(train), BACKFILLED, seed)
    p_RK = predict_rows(student, read_by(BACKFILLED, test, seed), BACKFILLED)
    columns["backfilled"] = p_RK[:, 0].numpy()
    judged = _judged(run, data, scored)
    return pl.DataFrame({"user_id": data.ids["user_id"][scored], "judged": judged, **columns})


def _masked(rows: StudentRows, share: int, seed: int) -> StudentRows:
    """The rows' own vectors as exact ones, for a share of the rows in percent."""
    if rows.own is None:
        raise ValueError("rows need their own representations; gather them")
    there_R = np.random.default_rng(seed).random(len(rows)) < share / 100
    own = rows.own.stored_NS[rows.own.begin_B].numpy()
    new = with_age(own, np.zeros(len(rows)))
    exact: dict[str, History] = {"exact": one_or_none(new, there_R)}
    return replace(rows, served=exact)


def _backfilled(rows: StudentRows) -> StudentRows:
    """Every row with its own vector as the exact one, as a back-fill that forgets time gives it."""
    exact = _masked(rows, 100, 0).served["exact"]
    nothing = rows.served["neighbours"].without(torch.ones(len(rows), dtype=torch.bool))
    fields = {"exact": exact, "neighbours": nothing, "user": rows.served["user"]}
    return replace(rows, served=fields)


def _judged(run: Run, data: SurfaceRows, scored: npt.NDArray[np.int64]) -> pl.Series:
    return with_truth(run, data.ids[scored])[f"true_{CLICK}"]


def _draws(frame: pl.DataFrame) -> Nes:
    arms = [c for c in frame.columns if c not in ("user_id", "judged")]
    drawn = resample(
        frame["user_id"].to_numpy(),
        frame["judged"].to_numpy(),
        {arm: frame[arm].to_numpy() for arm in arms},
        draws=DRAWS,
        with_auc=False,
    )
    return {arm: d.ne_D for arm, d in drawn.items()}


def _tr(nes: Nes, arm: str) -> Floats:
    """Transfer ratio [D]; place 0 is the rows as they are."""
    return (nes["none"] - nes[arm]) / (nes["none"] - nes["fm"])
