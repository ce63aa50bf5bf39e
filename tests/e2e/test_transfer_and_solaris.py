"""From the mix to the students and the replay, on a small planted day."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chain_world import DAY, chain_config, make_run, open_epoch, run_plane, run_solaris

from pipeline.loopfm.epoch import epoch_in_force
from pipeline.loopfm.export import export
from pipeline.loopfm.lake import day_folder, read_representations
from pipeline.loopfm.represent import represent
from pipeline.loopfm.served import load_student
from pipeline.loopfm.transfer import transfer
from pipeline.run.config import with_overrides
from pipeline.run.errors import ConfigError, ContractError, DataError
from pipeline.run.manifest import need_manifest, write_json
from pipeline.run.paths import Run, open_run
from pipeline.run.window import DAY_US, HOUR_US, window_of
from pipeline.solaris.history import VectorHistory
from pipeline.solaris.lookup import lookup
from pipeline.solaris.lookup_command import main
from pipeline.solaris.precompute import precompute
from pipeline.solaris.publish import generation_of, publish
from pipeline.solaris.replay import replay
from pipeline.solaris.serving import EXACT, NONE, USER, Served
from pipeline.solaris.stores import open_store
from pipeline.solaris.vectors import shard_names, written

SURFACE = "feed"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run up to the mix, with an epoch; tests work on copies of it."""
    run = make_run(tmp_path_factory.mktemp("home"), chain_config())
    run_plane(run)
    open_epoch(run)
    return run


@pytest.fixture(scope="module")
def done(planted: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, str]]:
    """A copy on which every stage has run."""
    run = copy(planted, tmp_path_factory.mktemp("done"))
    prints = run_solaris(run)
    return run, prints | {"transfer": transfer(run, SURFACE).fingerprint}


def copy(run: Run, target: Path) -> Run:
    """The whole home of a run, elsewhere."""
    shutil.copytree(run.home, target, dirs_exist_ok=True)
    return open_run(target / run.folder.relative_to(run.home))


def test_a_second_run_computes_nothing(done: tuple[Run, dict[str, str]]) -> None:
    run, prints = done
    before = {p: p.stat().st_mtime_ns for p in run.folder.rglob("manifest.json")}
    again = run_solaris(run) | {"transfer": transfer(run, SURFACE).fingerprint}
    assert again == prints
    assert {p: p.stat().st_mtime_ns for p in run.folder.rglob("manifest.json")} == before


def test_elsewhere_the_same_inputs_give_the_same_bytes(
    planted: Run, done: tuple[Run, dict[str, str]], tmp_path: Path
) -> None:
    run = copy(planted, tmp_path)
    assert run_solaris(run) | {"transfer": transfer(run, SURFACE).fingerprint} == done[1]


STAGES = {
    "represent": represent,
    "precompute": precompute,
    "publish": publish,
    "transfer": transfer,
}
KILLED = """
import os, signal, sys
from pipeline.run.paths import open_run
import {module} as module

original, calls = module.{name}, []

def dying(*arguments, **options):
    calls.append(1)
    if len(calls) == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **options)

module.{name} = dying
module.{stage}(open_run(sys.argv[1]), {unit!r})
"""


@pytest.mark.parametrize(
    ("module", "name", "at", "stage", "unit"),
    [
        ("pipeline.loopfm.represent", "write_bucket", 3, "represent", ""),
        ("pipeline.solaris.precompute", "write_vectors", 1, "precompute", "1"),
        ("pipeline.solaris.publish", "verified", 2, "publish", ""),
        ("pipeline.loopfm.transfer", "train_student", 3, "transfer", SURFACE),
    ],
    ids=["represent", "precompute", "publish", "transfer"],
)
def test_kill_9_midway_then_again_equals_an_unkilled_run(
    done: tuple[Run, dict[str, str]],
    tmp_path: Path,
    module: str,
    name: str,
    at: int,
    stage: str,
    unit: str,
) -> None:
    run = copy(done[0], tmp_path)
    shutil.rmtree(run.output(stage, unit))
    if stage == "represent":
        shutil.rmtree(run.lake("representations"))
    shutil.rmtree(run.store())
    script = KILLED.format(module=module, name=name, at=at, stage=stage, unit=unit)
    child = subprocess.run(
        [sys.executable, "-c", script, str(run.folder)],
        check=False,
        capture_output=True,
        env=dict(os.environ),
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()[-2000:]
    assert not run.output(stage, unit).exists()
    again = STAGES[stage](run, unit)
    assert again.fingerprint == need_manifest(done[0].output(stage, unit)).fingerprint
    if stage == "publish":
        assert stored(run) == stored(done[0])


def stored(run: Run) -> list[tuple[bytes, int, bytes]]:
    with open_store(run.store()) as store:
        return list(store.content())


def test_a_deleted_store_comes_back(done: tuple[Run, dict[str, str]], tmp_path: Path) -> None:
    run = copy(done[0], tmp_path)
    shutil.rmtree(run.store())
    assert publish(run, "").fingerprint == done[1]["publish"]
    assert stored(run) == stored(done[0])


def test_the_store_serves_what_the_replay_says(done: tuple[Run, dict[str, str]]) -> None:
    run, _ = done
    now = window_of(run.config).day_end
    generation, near = generation_of(run, epoch_in_force(run)), run.config.solaris.neighbours
    history = VectorHistory(written(run), generation, near)
    rng = np.random.default_rng(0)
    shown = pl.read_parquet(run.output("predict") / "pairs" / "shard=0.parquet")
    users, ads = shown["user_id"].to_numpy(), shown["ad_id"].to_numpy()
    user = np.where(rng.random(500) < 0.1, -5, rng.choice(users, 500))  # nobody is user -5
    ad = np.where(rng.random(500) < 0.5, rng.choice(ads, 500), -1)
    user[:100], ad[:100] = users[-100:], ads[-100:]
    replayed = history.serve(user, ad, np.full(500, now))
    with open_store(run.store()) as store:
        served = lookup(store, user, ad, now)
    for part in fields(Served):
        found, wanted = getattr(served, part.name), getattr(replayed, part.name)
        assert np.allclose(found, wanted, atol=1e-6), part.name
    assert {NONE, USER, EXACT} <= set(served.source_B.tolist())


def test_coverage_and_served_rows(done: tuple[Run, dict[str, str]]) -> None:
    run, _ = done
    coverage = json.loads((run.output("replay") / "coverage.json").read_text())
    served = pl.read_parquet(run.output("replay") / "served.parquet")
    assert coverage["asked"]["covered"] > 0.5
    assert coverage["shown"]["count"] == len(served)
    counted = served.group_by("source").len().to_dicts()
    shares = {row["source"]: row["len"] / len(served) for row in counted}
    assert shares["exact"] == pytest.approx(coverage["shown"]["exact"])
    assert set(coverage["shown_by_surface"]) == set(run.config.surfaces)
    assert coverage["asked"]["age_h_exact"]["p99"] < run.config.solaris.ttl_hours
    assert coverage["budget"]["chosen"] <= coverage["budget"]["allowed"]
    empty = served.filter(pl.col("source") == "none")
    assert not np.stack(empty["z"].to_numpy()).any()
    assert not np.stack(empty["user_z"].to_numpy()).any()


def test_coverage_under_the_floor_publishes_nothing(
    done: tuple[Run, dict[str, str]], tmp_path: Path
) -> None:
    run = copy(done[0], tmp_path)
    shutil.rmtree(run.output("replay"))
    strict = Run(
        folder=run.folder, config=with_overrides(run.config, {"solaris.coverage_floor": 0.999})
    )
    with pytest.raises(ContractError, match=r"coverage_floor is 0\.999"):
        replay(strict, "")
    assert not run.output("replay").exists()


def test_every_pair_is_computed_or_counted(done: tuple[Run, dict[str, str]]) -> None:
    run, _ = done
    for shard in shard_names(run):
        manifest = need_manifest(run.output("precompute", shard))
        figures = manifest.read_figures()
        assert manifest.rows > 0
        lost = figures["unknown_users"] + figures["unknown_ads"]
        assert manifest.rows + lost == figures["pairs"]


def test_lookup_command_reads_the_runs_store(
    done: tuple[Run, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = done
    last = pl.read_parquet(run.output("predict") / "pairs" / "shard=0.parquet").row(-1, named=True)
    pair = ["--user", str(last["user_id"]), "--ad", str(last["ad_id"])]
    assert main(["--run", str(run.folder), *pair]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["source"] == "exact"
    assert len(answer["pair"]["vector"]) == run.config.model.representation_dim


def test_a_model_that_saw_the_students_labels_is_refused(planted: Run, tmp_path: Path) -> None:
    run = copy(planted, tmp_path)
    shutil.rmtree(run.output("pretrain"))
    open_epoch(run, fm_cut_us=window_of(run.config).students_begin + 1)
    with pytest.raises(ContractError, match="saw labels up to"):
        represent(run, "")
    with pytest.raises(ContractError, match="saw labels up to"):
        precompute(run, "0")


def test_leaking_vectors_in_the_lake_stop_the_students(
    done: tuple[Run, dict[str, str]], tmp_path: Path
) -> None:
    run = copy(done[0], tmp_path)
    shutil.rmtree(run.output("transfer", SURFACE))
    path = day_folder(run, "first", DAY) / "bucket=0.parquet"
    table = pq.read_table(path)
    later = pa.array(table["fm_cut_us"].to_numpy() + 2 * DAY_US)
    pq.write_table(
        table.set_column(table.column_names.index("fm_cut_us"), "fm_cut_us", later), path
    )
    with pytest.raises(ContractError, match="representations of epoch first are older"):
        transfer(run, SURFACE)


def test_a_day_of_the_same_epoch_is_not_computed_again(
    done: tuple[Run, dict[str, str]], tmp_path: Path
) -> None:
    run = copy(done[0], tmp_path)
    last = day_folder(run, "first", DAY)
    shutil.rmtree(last)
    kept = day_folder(run, "first", "2026-11-28") / "manifest.json"
    before = kept.stat().st_mtime_ns
    assert represent(run, "").fingerprint == done[1]["represent"]
    assert kept.stat().st_mtime_ns == before
    assert last.is_dir()


def test_a_new_epoch_is_written_beside_the_old_one(
    done: tuple[Run, dict[str, str]], tmp_path: Path
) -> None:
    run = copy(done[0], tmp_path)
    summary = json.loads((run.output("pretrain") / "summary.json").read_text())
    summary["epoch"]["id"] = "second"
    write_json(run.output("pretrain") / "summary.json", summary)
    represent(run, "")
    assert day_folder(run, "first", DAY).is_dir()
    assert day_folder(run, "second", DAY).is_dir()
    rows = read_representations(run)
    assert len(rows) == need_manifest(run.output("represent")).rows
    assert len(np.unique(rows.impression_N)) == len(rows)


def test_students_are_scored_on_labels_from_the_cut_on(done: tuple[Run, dict[str, str]]) -> None:
    run, _ = done
    window = window_of(run.config)
    frame = pl.read_parquet(run.output("transfer", SURFACE) / "predictions.parquet")
    clicks = frame.filter("m_click")
    assert len(clicks) > 100
    assert clicks["ts_us"].min() >= window.cut  # type: ignore[operator]
    window_us = 24 * HOUR_US
    conversions = frame.filter("m_conversion")
    assert len(conversions) > 100
    assert (conversions["ts_us"] + window_us).min() >= window.cut  # type: ignore[operator]
    assert (conversions["ts_us"] + window_us).max() < window.day_end  # type: ignore[operator]
    trained = ("none", "kd", "loopfm", "kd_loopfm", "kd_loopfm_solaris")
    arms = ["fm", *(f"{a}_s0" for a in trained)]
    for name in arms:
        for objective in ("click", "conversion"):
            assert frame[f"p_{name}_{objective}"].is_between(0, 1).all()
    metrics = json.loads((run.output("transfer", SURFACE) / "metrics.json").read_text())
    assert sorted(metrics["arms"]) == sorted(arms)
    files = sorted(p.parent.parent.name for p in run.output("transfer").rglob("*.safetensors"))
    assert files == sorted(trained)


def test_a_student_is_exported_and_every_path_gives_what_training_saw(
    done: tuple[Run, dict[str, str]], tmp_path: Path
) -> None:
    run = copy(done[0], tmp_path)
    card = export(run, SURFACE)
    folder = run.inside("exports", SURFACE)
    assert {p.name for p in folder.iterdir()} == {"student.pt2", "golden.parquet", "card.json"}
    assert card["bytes"] > 0
    assert set(card["latency_ms"]) == {"rows_1", "rows_64"}
    golden = pl.read_parquet(folder / "golden.parquet")
    served = load_student(run.output("transfer", SURFACE) / "arms" / "kd_loopfm" / "seed=0")
    found = served.predict(golden.to_pandas())
    np.testing.assert_allclose(found["click"], golden["p_click"], atol=1e-6)
    with pytest.raises(DataError, match=r"lack \['ad_id', 'representations'\]"):
        served.probabilities(golden.drop("ad_id", "representations"))
    short = golden.with_columns(representations=pl.lit([[0.1]]))
    with pytest.raises(DataError, match="must be finite vectors of 16 numbers"):
        served.probabilities(short)
    mlflow = pytest.importorskip("mlflow")
    loaded = mlflow.pyfunc.load_model(str(run.output("transfer", SURFACE) / "arms" / "kd_loopfm"))
    np.testing.assert_array_equal(loaded.predict(golden.to_pandas()), found)


def test_a_spoiled_student_is_not_exported(
    done: tuple[Run, dict[str, str]], tmp_path: Path
) -> None:
    run = copy(done[0], tmp_path)
    arms = run.output("transfer", SURFACE) / "arms"
    other = arms / "kd" / "seed=0" / "weights.safetensors"
    shape = json.loads((arms / "kd" / "seed=0" / "student.json").read_text())
    target = arms / "kd_loopfm" / "seed=0"
    shutil.copy(other, target / "weights.safetensors")
    write_json(target / "student.json", shape)
    with pytest.raises(ContractError, match=r"differs by .* the student is not exported"):
        export(run, SURFACE)
    assert not run.inside("exports", SURFACE).exists()


def test_bad_units_are_one_clear_line(done: tuple[Run, dict[str, str]]) -> None:
    run, _ = done
    with pytest.raises(ConfigError, match="unit must be a surface, got 'tv'"):
        transfer(run, "tv")
    with pytest.raises(ConfigError, match="unit must be a shard, got '9'"):
        precompute(run, "9")
