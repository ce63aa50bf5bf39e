"""The scaling law of every family, NE(C) = NE0 - eta log(C / C0), and what can be said of it.

C is the FLOPs of training (three times the forward pass, times the rows), C0 the geometric middle
of the ladder, log the natural one (arXiv 2602.10016). NE is against the planted truth. One
bootstrap carries all intervals: a draw weighs blocks of users by Poisson(1), the same for every
model, so that families are compared on the same users, and takes as many seeds of every rung with
replacement. The largest rung is held out, predicted by the others, and then shown with them.

Suffixes: D draws (place 0: everything as it is), U blocks of users, S seeds, R rungs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.evaluation.intervals import Interval, interval
from pipeline.evaluation.metrics import Floats, entropy, ratio

TRAINING = 3  # FLOPs of a training step per FLOP of the forward pass
CENTRE = "kunlun"
DRAWS = 1_000
Result = Mapping[str, Any]  # result.json of a point


@dataclass(frozen=True, kw_only=True)
class Family:
    """Draws of one family, rungs in rising order."""

    rungs: tuple[int, ...]
    mflop_R: Floats
    compute_R: Floats
    ne_RD: Floats


@dataclass(frozen=True, kw_only=True)
class Law:
    """Draws of the line's parts: NE at C0 and eta."""

    ne0_D: Floats
    eta_D: Floats

    def at(self, x: float) -> Floats:
        """NE at log(C / C0) = x."""
        return self.ne0_D - self.eta_D * x


def fit_ladder(results: Sequence[Result], *, draws: int = DRAWS, seed: int = 0) -> dict[str, Any]:
    """All laws and comparisons of one kind of labels, as JSON.

    A family needs two rungs to have a law, and three for a prediction of the last.
    """
    random = np.random.default_rng(seed)
    families = _families(results, draws, random)
    ends = np.log([c for f in families.values() for c in (f.compute_R[0], f.compute_R[-1])])
    c0 = float(np.exp((ends.min() + ends.max()) / 2))
    laws = {n: law_of(f.compute_R, f.ne_RD, c0) for n, f in families.items() if len(f.rungs) > 1}
    return {
        "c0": c0,
        "bayes": float(np.mean([r["ne"]["bayes"] for r in results])),
        "families": {
            name: _described(family, laws.get(name), c0, random)
            | {"points": _points([r for r in results if r["point"]["arch"] == name])}
            for name, family in families.items()
        },
        "against": {
            name: _compared(families, laws, name)
            for name in families
            if name != CENTRE and CENTRE in families
        },
    }


def law_of(compute_R: Floats, ne_RD: Floats, c0: float) -> Law:
    """Least squares over the rungs, for each draw."""
    x_R = np.log(compute_R / c0)
    centred_R = x_R - x_R.mean()
    eta_D = -(centred_R @ ne_RD) / float(centred_R @ centred_R)
    return Law(ne0_D=ne_RD.mean(axis=0) + eta_D * x_R.mean(), eta_D=eta_D)


def predicted(family: Family, c0: float, random: np.random.Generator) -> Interval:
    """NE of the largest rung by the law of the others, with its 95% prediction interval.

    To the bootstrap's draws comes the scatter of the rungs around their line: t-distributed with
    (rungs - 2) degrees of freedom, for few rungs tell little of it. With two there is no scatter.
    """
    compute_R, ne_RD = family.compute_R[:-1], family.ne_RD[:-1]
    law, x_R = law_of(compute_R, ne_RD, c0), np.log(compute_R / c0)
    freedom = len(x_R) - 2
    ahead = float(np.log(family.compute_R[-1] / c0))
    found_D = law.at(ahead)
    if freedom > 0:
        off_R = ne_RD[:, 0] - (law.ne0_D[0] - law.eta_D[0] * x_R)
        spread = float(np.sqrt((off_R @ off_R) / freedom))
        centred_R = x_R - x_R.mean()
        leverage = 1 + 1 / len(x_R) + (ahead - x_R.mean()) ** 2 / float(centred_R @ centred_R)
        found_D[1:] += spread * leverage**0.5 * random.standard_t(freedom, len(found_D) - 1)
    return interval(found_D)


def _families(
    results: Sequence[Result], draws: int, random: np.random.Generator
) -> dict[str, Family]:
    blocks = len(results[0]["blocks"]["truth"][0])
    weight_UD = np.concatenate(
        [np.ones((blocks, 1)), random.poisson(1.0, (blocks, draws)).astype(np.float64)], axis=1
    )
    found: dict[str, Family] = {}
    for name in dict.fromkeys(r["point"]["arch"] for r in results):
        mine = [r for r in results if r["point"]["arch"] == name]
        rungs = tuple(sorted({r["point"]["rung"] for r in mine}))
        at = {n: [r for r in mine if r["point"]["rung"] == n] for n in rungs}
        mflop_R = np.array([np.mean([r["mflop"] for r in at[n]]) for n in rungs])
        rows_R = np.array([np.mean([r["rows"] for r in at[n]]) for n in rungs])
        found[name] = Family(
            rungs=rungs,
            mflop_R=mflop_R,
            compute_R=TRAINING * 1e6 * mflop_R * rows_R,
            ne_RD=np.stack([_mean_of_seeds(at[n], weight_UD, random) for n in rungs]),
        )
    return found


def _mean_of_seeds(
    results: Sequence[Result], weight_UD: Floats, random: np.random.Generator
) -> Floats:
    """NE against the truth, mean over the seeds of a rung, for each draw."""
    ne_SD = np.stack([_ne(np.array(r["blocks"]["truth"]) @ weight_UD) for r in results])
    pick_SD = random.integers(0, len(results), ne_SD.shape)
    pick_SD[:, 0] = np.arange(len(results))
    return np.take_along_axis(ne_SD, pick_SD, axis=0).mean(axis=0)


def _ne(sums_3D: Floats) -> Floats:
    rows_D, label_D, loss_D = sums_3D
    return ratio(ratio(loss_D, rows_D), entropy(ratio(label_D, rows_D)))


def _described(
    family: Family, law: Law | None, c0: float, random: np.random.Generator
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rungs": [
            {"rung": rung, "mflop": mflop, "compute": compute, "ne": interval(ne_D).to_json()}
            for rung, mflop, compute, ne_D in zip(
                family.rungs,
                family.mflop_R.tolist(),
                family.compute_R.tolist(),
                family.ne_RD,
                strict=True,
            )
        ]
    }
    if law is not None:
        found |= {"ne0": interval(law.ne0_D).to_json(), "eta": interval(law.eta_D).to_json()}
    if len(family.rungs) > 2:
        guess, seen = predicted(family, c0, random), float(family.ne_RD[-1, 0])
        inside = guess.low <= seen <= guess.high
        found["holdout"] = guess.to_json() | {"observed": seen, "inside": bool(inside)}
    return found


def _points(results: Sequence[Result]) -> list[dict[str, Any]]:
    """What each model of a family came to, without its sums per block."""
    names = ("point", "mflop", "rates", "parameters", "forecast_ne", "ne", "parts")
    ordered = sorted(results, key=lambda r: (r["point"]["rung"], r["point"]["seed"]))
    return [{name: result[name] for name in names} for result in ordered]


def _ratio_of(own: Law, other: Law) -> Interval:
    """The ratio of two etas; without an interval where the lower one may be 0 or less."""
    found = interval(ratio(own.eta_D, other.eta_D))
    if interval(other.eta_D).low > 0:
        return found
    return Interval(value=found.value, low=float("nan"), high=float("nan"))


def _compared(families: Mapping[str, Family], laws: Mapping[str, Law], name: str) -> dict[str, Any]:
    """Kunlun against a family: NE gain at the largest rung that both have, ratio of the etas."""
    own, other = families[CENTRE], families[name]
    found: dict[str, Any] = {}
    shared = sorted(set(own.rungs) & set(other.rungs))
    if shared:
        ours, theirs = (f.ne_RD[f.rungs.index(shared[-1])] for f in (own, other))
        found["rung"] = shared[-1]
        found["gain_pct"] = interval(100 * (theirs - ours) / theirs).to_json()
    if CENTRE in laws and name in laws:
        found["slope_ratio"] = _ratio_of(laws[CENTRE], laws[name]).to_json()
    return found
