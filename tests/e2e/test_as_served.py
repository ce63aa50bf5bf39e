"""Students that read the store: trained on what it would have served, and served the same."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from chain_world import chain_config, make_run, open_epoch, run_plane, run_solaris
from redis_server import Server

from pipeline.evaluation.students import evaluate_students, promote_students
from pipeline.loopfm.arms import FIELDS
from pipeline.loopfm.compress import unpack
from pipeline.loopfm.epoch import epoch_in_force
from pipeline.loopfm.export import export
from pipeline.loopfm.lake import read_representations
from pipeline.loopfm.served import load_student
from pipeline.loopfm.store_fields import COLUMNS, fields_of
from pipeline.loopfm.transfer import transfer
from pipeline.run.config import with_overrides
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.manifest import need_manifest
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, window_of
from pipeline.solaris.as_served import as_served
from pipeline.solaris.bulk_lookups import history_of, served_table
from pipeline.solaris.degraded import Lookups
from pipeline.solaris.history import VectorHistory
from pipeline.solaris.lookup import lookup
from pipeline.solaris.publish import generation_of
from pipeline.solaris.serving import EXACT, Served
from pipeline.solaris.store import Vectors
from pipeline.solaris.stores import Place, open_store

SURFACE, ARM = "feed", "kd_loopfm_solaris"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose students read the store, and serve with it."""
    arms = {"transfer.arms": ["none", "solaris", ARM], "transfer.serves": ARM}
    run = make_run(tmp_path_factory.mktemp("home"), chain_config(**arms))
    run_plane(run)
    open_epoch(run)
    run_solaris(run)
    for surface in run.config.surfaces:
        transfer(run, surface)
    return run


def table_of(run: Run, surface: str = SURFACE) -> pl.DataFrame:
    return pl.read_parquet(run.output("as_served") / f"surface={surface}.parquet")


def test_every_impression_of_the_span_was_looked_up(done: Run) -> None:
    window, stored = window_of(done.config), read_representations(done)
    tables = {surface: table_of(done, surface) for surface in done.config.surfaces}
    found = pl.concat(tables.values())["impression_id"]
    assert found.n_unique() == len(found)
    assert set(stored.impression_N.tolist()) <= set(found.to_list())
    figures = need_manifest(done.output("as_served")).read_figures()
    assert figures["arms"] == ["solaris", ARM]
    for surface, table in tables.items():
        assert table["ts_us"].is_between(window.students_begin, window.day_end).all()
        shares = figures["shown_by_surface"][surface]
        assert shares["count"] == len(table)
        for source in ("exact", "user", "neighbours", "none"):
            assert shares[source] == pytest.approx((table["source"] == source).mean())
        assert 0.05 < shares["exact"] < 0.95


def test_students_are_given_what_had_been_computed_by_then(done: Run) -> None:
    solaris = done.config.solaris
    history, stored = history_of(done), read_representations(done)
    served = history.serve(stored.user_N, stored.ad_N, stored.ts_us_N)
    exact, age_s = served.pair_B == EXACT, served.age_s_B[served.pair_B == EXACT]
    assert age_s.min() >= solaris.delay_minutes * 60
    assert age_s.max() < solaris.ttl_hours * 3600
    made_us = stored.ts_us_N[exact] - np.round(age_s * 1e6).astype(np.int64)
    assert made_us.min() > window_of(done.config).students_begin
    width = done.config.model.representation_dim
    fields = fields_of(pl.DataFrame(pl.from_arrow(served_table(served))), width)
    assert set(fields) == set(FIELDS)
    for name, there in (("exact", exact), ("user", served.user_B)):
        events, mask = fields[name].padded()
        assert np.array_equal(mask[:, 0].numpy(), there)
        assert events.shape == (len(there), 1, width + 1)
    np.testing.assert_allclose(
        fields["exact"].padded()[0][exact, 0, -1], np.log1p(age_s / 3600), rtol=1e-5
    )
    # a vector resembles what the same model says of the impression itself
    own = unpack(stored.z_Nd)[exact]
    likeness = [np.mean(served.z_Bd[exact] * z) for z in (own, np.roll(own, 1, axis=0))]
    assert likeness[0] > likeness[1]


def test_a_lookup_gives_what_the_student_was_trained_on(done: Run, tmp_path: Path) -> None:
    history = history_of(done)
    rows = table_of(done)
    at_us = int(rows["ts_us"].quantile(0.7, interpolation="nearest"))  # type: ignore[arg-type]
    row = rows.filter((pl.col("ts_us") >= at_us) & (pl.col("source") == "exact"))[0]
    moment = int(row["ts_us"][0])
    stored = read_representations(done)
    (place,) = np.flatnonzero(stored.impression_N == row["impression_id"][0])
    pair = stored.user_N[[place]], stored.ad_N[[place]]
    generation = replace(generation_of(done, epoch_in_force(done)), as_of_us=moment)
    v = history.vectors
    before = v.written_at_N + generation.delay_us <= moment
    with open_store(Place(folder=tmp_path / "store"), write=True) as store:
        store.publish(generation, [v.take(np.flatnonzero(before))])
        answered = pl.DataFrame(pl.from_arrow(served_table(lookup(store, *pair, moment))))
    for name in COLUMNS:
        if name in ("z", "user_z"):
            mine, theirs = (np.array(f[name][0].to_list()) for f in (answered, row))
            np.testing.assert_allclose(mine, theirs, atol=1e-6)
        elif name in ("age_s", "user_age_s"):
            assert answered[name][0] == pytest.approx(row[name][0], rel=1e-6)
        else:
            assert answered[name][0] == row[name][0]


def test_the_student_that_serves_is_exported_with_its_store(done: Run) -> None:
    card = export(done, SURFACE)
    assert card["arm"] == ARM
    golden = pl.read_parquet(done.inside("exports", SURFACE) / "golden.parquet")
    assert {*COLUMNS, "representations"} <= set(golden.columns)
    folder = done.output("transfer", SURFACE) / "arms" / ARM
    served = load_student(folder / "seed=0")
    found = served.predict(golden.to_pandas())
    np.testing.assert_allclose(found["click"], golden["p_click"], atol=1e-6)
    nothing = golden.with_columns(pair=pl.lit("none"), user=pl.lit(value=False))
    assert np.abs(served.predict(nothing.to_pandas())["click"] - found["click"]).max() > 1e-4
    with pytest.raises(DataError, match=r"lack \['user_z', 'z'\]"):
        served.probabilities(golden.drop("z", "user_z"))
    mlflow = pytest.importorskip("mlflow")
    loaded = mlflow.pyfunc.load_model(str(folder))
    np.testing.assert_array_equal(loaded.predict(golden.to_pandas()), found)


def test_the_arm_that_serves_is_decided_upon(done: Run) -> None:
    evaluate_students(done)
    promote_students(done)
    path = done.output("promote_students") / "decision.json"
    decision = json.loads(path.read_text())["surfaces"][SURFACE]
    assert decision["arm"] == ARM
    with pytest.raises(ConfigError, match=r"transfer\.serves must be an arm that can serve"):
        with_overrides(done.config, {"transfer.serves": "kd_raw_solaris"})


def test_a_second_run_plays_nothing(done: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = need_manifest(done.output("as_served")).fingerprint
    monkeypatch.setattr("pipeline.solaris.as_served.history_of", None)
    assert as_served(done).fingerprint == before


def test_nothing_is_played_for_students_without_a_store(done: Run, tmp_path: Path) -> None:
    plain = make_run(tmp_path, with_overrides(done.config, {"transfer.arms": ["none", "kd"]}))
    made = as_served(plain)
    assert made.rows == 0
    assert not list(plain.output("as_served").glob("*.parquet"))


def test_an_impression_that_was_not_looked_up_is_named(done: Run) -> None:
    path = done.output("as_served") / f"surface={SURFACE}.parquet"
    whole = path.read_bytes()
    rows = pl.read_parquet(path)
    rows.filter(pl.col("ts_us") < window_of(done.config).cut).write_parquet(path)
    try:
        with pytest.raises(DataError, match=r"impressions on feed were never looked up, first"):
            export(done, SURFACE)
    finally:
        path.write_bytes(whole)


def test_a_vector_written_after_the_impression_is_refused(done: Run) -> None:
    """As a lookup at another time than the request's would give it."""
    rows = table_of(done)
    found = rows.with_row_index("row").filter(pl.col("pair") == "exact")["row"][0]
    late = rows.with_columns(
        age_s=pl.when(pl.int_range(len(rows)) == found).then(-60.0).otherwise("age_s")
    )
    with pytest.raises(DataError, match=rf"age_s of row {found} must be positive, got -60"):
        fields_of(late, done.config.model.representation_dim)


def test_a_vector_made_after_the_impression_is_not_served(done: Run, tmp_path: Path) -> None:
    """It saw the click: neither the student's rows nor a lookup may find it, until it is due."""
    stored, generation = read_representations(done), generation_of(done, epoch_in_force(done))
    last_N = pl.DataFrame({"user": stored.user_N, "ts": stored.ts_us_N, "n": range(len(stored))})
    place_U = last_N.sort("ts").group_by("user").last().sort("user")["n"].to_numpy()
    user_U, ad_U, ts_us_U = (x[place_U] for x in (stored.user_N, stored.ad_N, stored.ts_us_N))
    asked = (stored.user_N, stored.ad_N, stored.ts_us_N)
    before = history_of(done).vectors

    def with_planted(written_at_U: np.ndarray) -> VectorHistory:
        z_Ud = np.full((len(user_U), before.z_Nd.shape[1]), 127, dtype=before.z_Nd.dtype)
        score_U = np.zeros(len(user_U), dtype=before.score_N.dtype)
        planted = (user_U, ad_U, written_at_U, score_U, z_Ud)
        names = ("user_N", "ad_N", "written_at_N", "score_N", "z_Nd")
        both = {
            n: np.concatenate([getattr(before, n), x]) for n, x in zip(names, planted, strict=True)
        }
        return VectorHistory(Vectors(**both), generation)

    late, clean = with_planted(ts_us_U + 1), VectorHistory(before, generation)
    for name, want in vars_of(clean.serve(*asked)).items():
        assert np.array_equal(vars_of(late.serve(*asked))[name], want), name
    due = with_planted(ts_us_U - generation.delay_us).serve(*asked)
    assert (due.z_Bd[place_U] == 1.0).all()  # the check above can fail
    with open_store(Place(folder=tmp_path / "store"), write=True) as store:
        store.publish(replace(generation, neighbours=0), [late.vectors])
        one = (user_U[:1], ad_U[:1])
        assert not (lookup(store, *one, int(ts_us_U[0])).z_Bd == 1.0).all()
        due_us = int(ts_us_U[0]) + 1 + generation.delay_us
        assert (lookup(store, *one, due_us).z_Bd == 1.0).all()


def test_students_are_served_while_the_store_restarts_in_mid_replay(
    done: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, generation = done, generation_of(done, epoch_in_force(done))
    golden = golden_frame(run)
    student = load_student(run.output("transfer", SURFACE) / "arms" / ARM / "seed=0")
    asks = table_of(run).tail(90)  # the store holds what is newest at the end of the day
    stored = read_representations(run)
    who = pl.DataFrame(
        {
            "impression_id": stored.impression_N,
            "ts_us": stored.ts_us_N,
            "user_id": stored.user_N,
            "ad_id": stored.ad_N,
        }
    )
    asks = asks.join(who, on=["impression_id", "ts_us"], how="left", maintain_order="left")
    server, clock = Server(tmp_path, "--appendonly", "yes"), [0.0]
    try:
        place = Place(url=server.url, lineage="one")
        with open_store(place, write=True) as store:
            store.publish(generation, [history_of(run).vectors])
            whole = [answer_of(partial(lookup, store), row) for row in asks.iter_rows(named=True)]
        answers = []
        width = run.config.model.representation_dim
        with Lookups(place, width=width, timeout_s=2.0, clock=lambda: clock[0]) as lookups:
            for at, row in enumerate(asks.iter_rows(named=True)):
                clock[0] += 0.2  # five requests a second
                if at == 30:
                    server.stop()
                if at == 60:
                    server.start()
                with caplog.at_level(logging.WARNING):
                    answers.append(answer_of(lookups.lookup, row))
                p_BK = student.probabilities(golden.head(1).hstack(answers[-1]))
                assert bool(p_BK.isfinite().all())
    finally:
        server.stop()
    source = [answer["source"][0] for answer in answers]
    assert len(answers) == len(asks)
    assert set(source[30:60]) == {"none"}
    for at in (*range(30), *range(80, 90)):
        assert answers[at].equals(whole[at]), at
    assert {"exact", "user"} <= {answer["source"][0] for answer in whole}
    assert lookups.faults["down"] >= 1
    assert lookups.faults["down"] + lookups.faults["resting"] == source[30:80].count("none") - sum(
        answer["source"][0] == "none" for answer in whole[60:80]
    )
    assert len([r for r in caplog.records if "solaris store down" in r.getMessage()]) == 1


def answer_of(look: Callable[..., Served], row: dict[str, int]) -> pl.DataFrame:
    served = look(np.array([row["user_id"]]), np.array([row["ad_id"]]), row["ts_us"])
    return pl.DataFrame(pl.from_arrow(served_table(served)))


def golden_frame(run: Run) -> pl.DataFrame:
    """Features of a scored row, without what a store answered."""
    export(run, SURFACE)
    golden = pl.read_parquet(run.inside("exports", SURFACE) / "golden.parquet")
    return golden.drop(*COLUMNS, "source", strict=False)


def vars_of(served: Served) -> dict[str, np.ndarray]:
    return {f.name: getattr(served, f.name) for f in fields(Served)}


def test_the_vectors_cover_the_span(done: Run) -> None:
    window = window_of(done.config)
    written_at_N = history_of(done).vectors.written_at_N
    assert written_at_N.min() >= window.students_begin
    first_day = table_of(done).filter(pl.col("ts_us") < window.students_begin + DAY_US)
    assert (first_day["source"] == "exact").mean() > 0.05
