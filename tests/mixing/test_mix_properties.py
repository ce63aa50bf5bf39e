"""What the mix keeps, and what it stands for, for any surfaces, rates, windows and row order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_world import toy_config

from model.config import Objective
from model.flops import flops_per_row
from pipeline.mixing.budget import Plan, plan_mix, row_flops
from pipeline.mixing.drafts import Draft, draft, joined, positives, rare_among
from pipeline.mixing.mix_report import MixReport
from pipeline.mixing.selections import Columns, Selection, known_labels, labels_at, rows_of
from pipeline.mixing.weights import correct
from pipeline.run.config import MixConfig, RunConfig
from pipeline.run.window import DAY_US, HOUR_US, Window, window_of

SEEDS = 48
SPANS = ("start_shown", "end_shown", "start_organic", "end_organic")


def config_of(surfaces: int, hours: list[int], mix: MixConfig) -> RunConfig:
    late = [Objective(name=f"late_{i}", window_hours=h) for i, h in enumerate(hours)]
    names = tuple("abcd"[:surfaces])
    return toy_config(surfaces=names, objectives=(Objective(name="click"), *late), mix=mix)


def impressions(
    config: RunConfig, num: int, seed: int, clicks: float = 0.05
) -> dict[str, np.ndarray]:
    rng, window = np.random.default_rng(seed), window_of(config)
    ts = np.sort(rng.integers(window.day_end - 3 * DAY_US, window.day_end, num))
    rows = {"impression_id": rng.permutation(num) + 7_000_000, "ts_us": ts}
    rows["surface"] = rng.integers(0, len(config.surfaces), num).astype(np.int16)
    for objective in config.objectives:
        known = ts + objective.window_hours * HOUR_US
        rows[f"known_{objective.name}"] = known
        rows[f"mature_{objective.name}"] = known <= window.day_end
        rows[f"y_{objective.name}"] = (
            rng.random(num) < (clicks if objective.name == "click" else 0.05)
        ).astype(np.int8)
    for event in config.features.events:
        rows[f"start_{event.name}"] = rng.integers(0, 5, num)
        rows[f"end_{event.name}"] = rng.integers(0, 12, num)
    return rows


def kept_by(plan: Plan, found: Draft) -> np.ndarray:
    return plan.keeps(found.costs.surface, found.costs.certain, found.costs.chance)


def plan_of(rates: np.ndarray) -> Plan:
    none = np.zeros(len(rates))
    return Plan(
        reference=0,
        rates=rates,
        shares=none,
        candidates=none,
        certain=none,
        flops=none,
        flops_reference=1.0,
    )


def names_of(config: RunConfig, rows: Columns, found: Draft) -> set[tuple[int, int]]:
    """Impression and window of every candidate."""
    labels = labels_at(config.objectives, rows, found.place, found.group)
    ids = rows["impression_id"][labels.place]
    return set(zip(ids.tolist(), labels.group.tolist(), strict=True))


WORLDS = {
    "surfaces": st.integers(1, 4),
    "hours": st.lists(st.sampled_from([1, 6, 24, 30, 48]), min_size=1, max_size=2),
    "seed": st.integers(0, 2**31),
    "delayed_rate": st.floats(0.1, 1.0),
}


def settled(config: RunConfig, window: Window, rows: Columns) -> Draft:
    found = draft(config, window, rows)
    return found.settled(config.objectives, rare_among(config, [found]))


@pytest.mark.parametrize("clicks", [0.05, 0.6])
@pytest.mark.parametrize("how", ["weight", "shift"])
@settings(max_examples=8, deadline=None)
@given(**WORLDS, rates=st.lists(st.floats(0.05, 1.0), min_size=4, max_size=4))
def test_expected_weighted_counts_are_the_true_counts(
    how, clicks, surfaces, hours, seed, delayed_rate, rates
):
    config = config_of(surfaces, hours, MixConfig(delayed_rate=delayed_rate))
    rows, window = impressions(config, 500, seed, clicks), window_of(config)
    plan = plan_of(np.array(rates[:surfaces]))
    span = known_labels(config.objectives, rows, window.train_begin, window.cut)
    common = np.array([clicks > 0.5, *(False for _ in hours)])  # by window; the click's is first
    cells = 2 * len(config.objectives) * surfaces
    sums = np.zeros((SEEDS, cells))
    for draw in range(SEEDS):
        drawn = replace(config, mix=replace(config.mix, seed=draw))
        found = settled(drawn, window, rows)
        kept = found.take(kept_by(plan, found))
        weight, shift = correct(how, **kept.rates(plan, delayed_rate, 0))
        if how == "shift":  # a negative among odds divided by r stands for 1/r of them
            weight = np.where(kept.positive != 0, 1.0, np.exp(shift))
            weight /= np.where(common[kept.group], plan.rates[kept.costs.surface], 1.0)
        cell = (kept.group * surfaces + kept.costs.surface) * 2 + (kept.positive != 0)
        sums[draw] = np.bincount(cell, weight, cells)
    positive = np.zeros(len(span), dtype=bool)
    for group, hour in enumerate(sorted({o.window_hours for o in config.objectives})):
        for objective in config.objectives:
            if objective.window_hours == hour:
                mine = span.group == group
                positive[mine] |= rows[f"y_{objective.name}"][span.place[mine]] == 1
    surface = rows["surface"][span.place]
    cell = (span.group * surfaces + surface) * 2 + positive
    true = np.bincount(cell, minlength=cells)
    sampled = common[span.group] | ~positive
    chance = np.where(sampled, plan.rates[surface], 1.0)
    chance *= np.where((span.group > 0) & ~positive, delayed_rate, 1.0)
    variance = np.bincount(cell, 1 / chance - 1, cells)
    assert (np.abs(sums.mean(axis=0) - true) <= 6 * np.sqrt(variance / SEEDS) + 1e-6).all()
    certain = np.repeat(~common, surfaces)
    exact = np.broadcast_to(true[1::2][certain], sums[:, 1::2][:, certain].shape)
    assert sums[:, 1::2][:, certain] == pytest.approx(exact)


@settings(max_examples=40, deadline=None)
@given(**WORLDS, budget=st.floats(0.9, 1.5), draw=st.integers(0, 1_000))
def test_every_mature_positive_is_kept_once_and_no_label_out_of_the_span(
    surfaces, hours, seed, delayed_rate, budget, draw
):
    mix = MixConfig(delayed_rate=delayed_rate, budget=budget, seed=draw)
    config = config_of(surfaces, hours, mix)
    rows, window = impressions(config, 400, seed), window_of(config)
    found = settled(config, window, rows)
    plan = plan_mix(mix, config.surfaces, found.costs)
    kept = names_of(config, rows, found.take(kept_by(plan, found)))
    for objective in config.objectives:
        known, y = rows[f"known_{objective.name}"], rows[f"y_{objective.name}"] == 1
        inside = (known >= window.train_begin) & (known < window.cut)
        inside &= rows[f"mature_{objective.name}"]
        group = sorted({o.window_hours for o in config.objectives}).index(objective.window_hours)
        mine = {i for i, g in kept if g == group}
        assert set(rows["impression_id"][inside & y].tolist()) <= mine
        assert mine <= set(rows["impression_id"][inside].tolist())
    assert len(kept) == np.count_nonzero(kept_by(plan, found))


@settings(max_examples=40, deadline=None)
@given(
    **WORLDS,
    cuts=st.lists(st.integers(0, 300), max_size=4),
    buckets=st.integers(1, 3),
)
def test_neither_row_order_nor_grouping_changes_what_is_kept(
    surfaces, hours, seed, delayed_rate, cuts, buckets
):
    config = config_of(surfaces, hours, MixConfig(delayed_rate=delayed_rate))
    rows, window = impressions(config, 300, seed), window_of(config)
    whole = settled(config, window, rows)
    plan = plan_mix(config.mix, config.surfaces, whole.costs)
    expected = names_of(config, rows, whole.take(kept_by(plan, whole)))

    shuffled = np.random.default_rng(seed + 1).permutation(300)
    deals = [{n: v[shuffled[b::buckets]] for n, v in rows.items()} for b in range(buckets)]
    drafts = []
    for dealt in deals:
        edges = [0, *sorted(min(c, len(dealt["ts_us"])) for c in cuts), len(dealt["ts_us"])]
        parts = [slice(a, b) for a, b in pairwise(edges)]
        each = [draft(config, window, {n: v[p] for n, v in dealt.items()}, p.start) for p in parts]
        drafts.append(joined(each))
    rare = rare_among(config, drafts)
    drafts = [d.settled(config.objectives, rare) for d in drafts]
    again = plan_mix(config.mix, config.surfaces, *(d.costs for d in drafts))
    assert again.rates.tolist() == plan.rates.tolist()
    assert again.flops_mix == plan.flops_mix
    found = [
        names_of(config, r, d.take(kept_by(again, d))) for r, d in zip(deals, drafts, strict=True)
    ]
    assert set().union(*found) == expected
    assert sum(map(len, found)) == len(expected)
    assert sum(d.known for d in drafts).tolist() == whole.known.tolist()
    for name, counts in positives(config, drafts).items():
        assert counts.tolist() == positives(config, [whole])[name].tolist()


@settings(max_examples=25, deadline=None)
@given(**WORLDS, budget=st.floats(0.9, 1.5), step=st.integers(20, 500))
def test_candidates_are_kept_or_sampled_out(surfaces, hours, seed, delayed_rate, budget, step):
    config = config_of(surfaces, hours, MixConfig(delayed_rate=delayed_rate, budget=budget))
    rows, window = impressions(config, 400, seed), window_of(config)
    rows |= {"user_id": rows["impression_id"], "ad_id": rows["surface"].astype(np.int64)}
    found = settled(config, window, rows)
    plan = plan_mix(config.mix, config.surfaces, found.costs)
    kept = found.take(kept_by(plan, found))
    labels = labels_at(config.objectives, rows, kept.place, kept.group)
    selection = Selection(labels=labels, order=labels.order())
    report = MixReport(config.surfaces, tuple(o.name for o in config.objectives))
    columns = ["impression_id", "surface", *SPANS]
    chunks = rows_of(config.objectives, rows, selection, columns=columns, step=step)
    sizes = [len(c["g"]) for c in report.counting("train", chunks)]
    assert all(s == step for s in sizes[:-1])
    figures = report.figures(plan)["surfaces"]
    for place, name in enumerate(config.surfaces):
        line = figures[name]
        assert line["candidates"] == line["kept"] + line["sampled_out"]
        assert line["candidates"] == np.count_nonzero(found.costs.surface == place)
        assert line["kept"] == np.count_nonzero(kept.costs.surface == place)
        assert (
            line["kept"]
            >= line["certain"]
            == np.count_nonzero(found.costs.certain & (found.costs.surface == place))
        )
    assert report.rows("train") == sum(sizes) == len(kept)
    assert found.known.sum() >= len(found) >= len(kept)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_looked_up_flops_are_those_of_the_model(seed):
    config = toy_config()
    rows = impressions(config, 200, seed)
    lengths = {
        e.name: np.clip(rows[f"end_{e.name}"] - rows[f"start_{e.name}"], 0, e.max_len)
        for e in config.features.events
    }
    expected = flops_per_row(config.model, config.features, 2, lengths, len(config.surfaces))
    assert row_flops(config, rows).tolist() == expected.astype(np.float64).tolist()
