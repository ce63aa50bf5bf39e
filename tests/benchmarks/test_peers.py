"""`benchmarks.peers` without a peer: the export, our side, the metrics, the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks._measure import BenchmarkError
from benchmarks._peers import contestants, data, environments, references, table, verdict
from benchmarks._peers.contestants import OURS, Result, Training
from benchmarks._peers.data import Prepared
from benchmarks._peers.side import Contest, Meta, Rows, Trained, play
from pipeline.mixing.hashing import table_row
from pipeline.mixing.loader import Loader
from pipeline.run.config import with_overrides
from pipeline.run.paths import Run, open_run


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A tiny planted run and its export."""
    config = with_overrides(
        data.config_of("planted", quick=True),
        {
            "source.planted.rows_per_day": 1_500,
            "source.planted.users": 150,
            "window.bootstrap_days": 2,
            "window.student_days": 1,
        },
    )
    home = tmp_path_factory.mktemp("peers")
    run = data.mixed(config, home)
    (home / "data").mkdir()
    return data.export(run, home / "data")


@pytest.fixture(scope="module")
def run(prepared: Prepared) -> Run:
    return open_run(prepared.run)


def meta_of(prepared: Prepared) -> Meta:
    return Meta(**json.loads((Path(prepared.data) / "meta.json").read_text()))


def test_every_known_label_of_the_span_is_exported(prepared: Prepared, run: Run) -> None:
    train, holdout = Loader(run, batch_size=64), Loader(run, "holdout", batch_size=64)
    assert prepared.rows == train.num_rows > 1_000
    assert len(Rows.read(Path(prepared.data) / "holdout.npz", 0, 10**9).label) == holdout.num_rows
    assert (train.columns["w_click"] == 1).all(), "nothing is sampled, so nothing is weighed"


def test_peers_read_the_rows_that_ours_reads(prepared: Prepared, run: Run) -> None:
    rows = Rows.read(Path(prepared.data) / "train.npz", 0, prepared.rows)
    loader = Loader(run, batch_size=100)
    for index in range(loader.num_batches):
        batch, mine = loader.batch(index), slice(index * 100, index * 100 + 100)
        np.testing.assert_array_equal(rows.ids[mine], batch.ids_BF.numpy() + 1)
        np.testing.assert_array_equal(rows.dense[mine], batch.dense_BC.numpy())
        np.testing.assert_array_equal(rows.label[mine], batch.labels_BK[:, 0].numpy())
        events = iter(batch.events["shown"].ids_EA.numpy() + 1)
        for history, length in zip(
            rows.history[mine], batch.events["shown"].lengths_B, strict=True
        ):
            for event in history[:length]:
                np.testing.assert_array_equal(event, next(events))
            assert (history[length:] == 0).all(), "padding comes last and is the id 0"


def test_ids_fit_the_tables_that_peers_are_told(prepared: Prepared) -> None:
    meta = meta_of(prepared)
    rows = Rows.read(Path(prepared.data) / "train.npz", 0, prepared.rows)
    for place, (_, name) in enumerate(meta.sparse):
        assert 1 <= rows.ids[:, place].min() <= rows.ids[:, place].max() < meta.tables[name]
    for place, (_, name, _) in enumerate(meta.history):
        assert rows.history[:, :, place].max() < meta.tables[name]


def test_an_event_attribute_shares_the_ids_of_what_it_is_compared_with(prepared: Prepared) -> None:
    meta = meta_of(prepared)
    columns = meta.columns(Rows.read(Path(prepared.data) / "train.npz", 0, prepared.rows))
    assert meta.targets == ["ad_id", "category_id", "surface", "action_wanted"]
    for event, target in zip(meta.events, meta.targets, strict=True):
        seen = set(np.unique(columns[event]).tolist()) - {0}
        assert seen & set(np.unique(columns[target]).tolist()), f"{event} never meets {target}"
    clicked = int(table_row(np.array([1 + data.ACTION_ID_BASE]), 64)[0]) + 1
    assert set(columns["action_wanted"].tolist()) == {clicked}


def test_both_sides_split_at_the_same_rows(prepared: Prepared, run: Run) -> None:
    for part in ("test", "valid", "last"):
        training = Training(by="fuxictr", model="din", part=part, rate=1e-3)
        theirs = contestants.contest(training, prepared, Path("x"))
        entry = contestants.entry(replace(training, by=OURS), prepared, Path("x"))
        loader = Loader(run, begin_us=entry["begin_us"], end_us=entry["end_us"], batch_size=64)
        assert theirs.end - theirs.begin == loader.num_rows, part


def test_our_side_trains_and_predicts_the_holdout(prepared: Prepared, tmp_path: Path) -> None:
    training = Training(by=OURS, model="din", part="test", rate=3e-3)
    found = contestants.run(training, prepared, {}, tmp_path / "din")
    p_N = np.load(found.predictions)
    assert found.rows == prepared.rows
    assert found.memory_mb > 0
    assert p_N.shape == verdict.Holdout.read(prepared.data).y_N.shape
    assert 0 < p_N.min() < p_N.max() < 1
    assert not list(Path(prepared.run).parent.glob("*-din")), "its run folder is removed"


def test_a_peers_process_writes_what_it_predicted(prepared: Prepared, tmp_path: Path) -> None:
    training = Training(by="fuxictr", model="din", part="valid", rate=1e-3)
    call = tmp_path / "call.json"
    call.write_text(json.dumps(contestants.contest(training, prepared, tmp_path / "a").__dict__))

    def train(contest: Contest, meta: Meta, rows: Rows) -> Trained:
        assert len(rows.label) == prepared.valid
        return Trained(
            wall_s=2.0, processor_s=1.0, parameters=7, predict=lambda scored: scored.label
        )

    assert play([str(call)], train) == 0
    answer = json.loads((tmp_path / "a.json").read_text())
    assert answer == {"rows": prepared.valid, "wall_s": 2.0, "processor_s": 1.0, "parameters": 7}
    assert len(np.load(tmp_path / "a.npy")) == prepared.rows - prepared.valid


def holdout_of(y: list[float], users: list[int]) -> verdict.Holdout:
    y_N = np.array(y)
    return verdict.Holdout(y_N=y_N, judged_N=y_N, user_N=np.array(users))


def test_metrics_of_given_predictions() -> None:
    holdout = holdout_of([0, 1, 0, 1], [1, 1, 2, 2])
    right, half = np.array([0.1, 0.9, 0.2, 0.8]), np.array([0.1, 0.9, 0.8, 0.2])
    perfect = verdict.score(holdout, [right])
    mixed = verdict.score(holdout, [right, half])
    assert perfect.auc.value == perfect.gauc == 1.0
    assert mixed.auc.value == pytest.approx((1 + 0.75) / 2)
    assert mixed.gauc == pytest.approx((1 + 0.5) / 2)
    assert verdict.gap(perfect, mixed).value == pytest.approx(0.125)
    assert verdict.best_peer({OURS: perfect, "a": mixed, "b": perfect}) == "b"


def test_predictions_of_other_rows_are_refused() -> None:
    with pytest.raises(BenchmarkError, match="2 predictions for 3"):
        verdict.score(holdout_of([0, 1, 1], [1, 1, 2]), [np.array([0.1, 0.2])])


def test_the_running_bias_sees_the_past_alone() -> None:
    user, ad, y = np.array([1, 1, 2, 1]), np.array([5, 6, 5, 5]), np.array([1.0, 1.0, 0.0, 0.0])
    ts = np.array([0, 10, 20, 30]) * 1_000_000
    scores = references.running_bias(user, ad, ts, y, delay_s=0)
    changed = references.running_bias(user, ad, ts, np.array([1.0, 1.0, 0.0, 1.0]), delay_s=0)
    np.testing.assert_array_equal(scores, changed)
    assert scores[0] == 0.5, "nothing is known before the first row"
    assert scores[1] > scores[0], "the user's first click speaks for the second"
    late = references.running_bias(user, ad, ts, y, delay_s=3_600)
    assert set(late.tolist()) == {0.5}, "within the hour no label is known"


def test_an_environment_that_cannot_be_made_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments.sys, "executable", "/bin/false")
    with pytest.raises(BenchmarkError, match=r"fuxictr could not be installed.*--peers"):
        environments.ready(tmp_path, "fuxictr")
    assert not (tmp_path / "environments" / "fuxictr" / environments.STAMP).exists()


def results(rate: float) -> list[Result]:
    shared = {"wall_s": 1.0, "parameters": 5, "memory_mb": 1.0, "predictions": ""}
    return [Result(rows=int(rate), processor_s=1.0, **shared)] * 3  # type: ignore[arg-type]


def test_the_section_names_everybody_and_says_what_was_lost() -> None:
    holdout = holdout_of([0, 1, 0, 1], [1, 1, 2, 2])
    worse = verdict.score(holdout, [np.array([0.1, 0.9, 0.8, 0.2])])
    better = verdict.score(holdout, [np.array([0.1, 0.9, 0.2, 0.8])])
    found = {model: {OURS: worse, "fuxictr": better} for model in contestants.MODELS}
    sides = {(by, m): results(10) for m in contestants.MODELS for by in (OURS, "fuxictr")}
    told = {
        "quick": True,
        "seeds": 1,
        "rows": {"planted": 4},
        "versions": ["fuxictr==2.3.10"],
        "rates": {f"{by}/{model}": 1e-3 for by, model in sides},
        "large_parameters": 5,
    }
    large = table.large_rates(
        {table.TOGETHER: results(7), table.RANKS: results(9), table.APART: results(6)}
    )
    assert large["kunlun_5m_rows_per_s"] == 9  # two trainings side by side are not one
    assert large["kunlun_5m_two_jobs_rows_per_s"] == 12
    text = table.section(told, {"planted": found}, {"planted": sides}, {}, large)
    assert "| planted | din | 1.00 | -0.2500 " in text
    assert "fuxictr==2.3.10" in text


def test_speed_is_compared_with_the_fastest_peer() -> None:
    sides = {(OURS, "din"): results(30), ("a", "din"): results(10), ("b", "din"): results(20)}
    assert table.speed_ratio(sides, "din") == 1.5
