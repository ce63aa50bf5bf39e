import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_summary import predictions

from pipeline.evaluation import report_sections
from pipeline.evaluation.lineage import earlier_runs
from pipeline.evaluation.report import count, percent, report, spread
from pipeline.evaluation.summary import summarise
from pipeline.run.codec import to_dict
from pipeline.run.config import Parent
from pipeline.run.manifest import Outcome, produce, write_json
from pipeline.run.paths import Run, open_run, run_folder
from pipeline.run.presets import preset

MEASURED = summarise(predictions(), ("feed", "reels", "stories"), ("click", "conversion"), 20)


def publish(
    run: Run, stage: str, files: dict[str, Any], figures: dict[str, Any] | None = None
) -> None:
    def build(folder: Path) -> Outcome:
        for name, value in files.items():
            if isinstance(value, str):
                (folder / name).write_text(value)
            else:
                write_json(folder / name, value)
        return Outcome(rows=1_234, figures=figures or {})

    target = run.inside(*stage.split("/"))
    produce(target, stage=stage, inputs={}, settings=[], build=build)


def make_run(home: Path, day: str, parent: Parent | None = None, alpha: float = 0.7) -> Run:
    config = preset(day, "smoke")
    config = replace(config, parent=parent, mix=replace(config.mix, alpha=alpha))
    folder = run_folder(config, home)
    folder.mkdir(parents=True)
    write_json(folder / "run.json", to_dict(config))
    run = open_run(folder)
    publish(run, "evaluate", {"metrics.json": MEASURED | {"champion": None}})
    gate = {"gate": "calibrated", "passed": False, "reason": "1.4 <script>alert(1)</script>"}
    decision = {"decision": "kept", "reasons": ["x"], "gates": [gate], "champion": None}
    publish(run, "promote", {"decision.json": decision})
    return run


def fill(run: Run) -> None:
    """Every other part of a run folder that the report shows."""
    lines = [{"step": s, "loss": 1 / (s + 1), "ne": {"click": 0.9}} for s in range(4)]
    publish(run, "pretrain", {"metrics.jsonl": "\n".join(map(json.dumps, lines))})
    surface = {"candidates": 10, "certain": 2, "kept": 5, "sampled_out": 5, "rate": 0.4}
    figures = {
        "surfaces": {"feed": surface, "reels": surface},
        "flops_ratio": 0.98,
        "reference_surface": "feed",
        "feature_bytes_copied": 0,
    }
    publish(run, "mix", {}, figures)
    warning = {
        "expectation": "E", "on": "profile", "column": "psi_x", "severity": "warning",
        "reason": "it moved", "success": False, "observed": ["0.4"],
    }  # fmt: skip
    result = {"success": True, "rows": 10, "expectations": [warning]}
    publish(run, "contracts", {"result.json": result})
    entry = {"rows_in": 10, "rows_out": 8, "quarantined": 1, "duplicates": 1}
    publish(run, "ingest/feed", {"ledger.json": {"totals": {"impressions": entry}}})
    arm = {"surface": "feed", "objective": "click", "arm": "kd_loopfm", "ne": [0.9, 0.8, 1.0],
           "gain": [0.02, 0.01, 0.03], "tr": [0.5, 0.4, 0.6], "auc": [0.7, 0.6, 0.8],
           "calibration": [1.0, 0.9, 1.1]}  # fmt: skip
    publish(run, "evaluate_students", {"table.json": {"rows": [arm], "truth": [arm]}})
    serves = {"decision": "promoted", "reasons": ["gain"], "arm": "kd_loopfm", "champion": None}
    publish(run, "promote_students", {"decision.json": {"surfaces": {"feed": serves}}})
    part = {"count": 100, "exact": 0.4, "user": 0.5, "neighbours": 0.0625, "none": 0.0375,
            "covered": 0.9, "age_h_exact": {"p50": 5.25}}  # fmt: skip
    point = {"exact": 0.1875, "user": 0.5, "none": 0.3125}
    coverage = {"asked": part, "shown": part, "shown_by_surface": {"feed": part},
                "budget": {"allowed": 10, "used": 0.5}}  # fmt: skip
    coverage["sweeps"] = {"budget_percent": {"20": point}, "ttl_hours": {"48": point}}
    publish(run, "replay", {"coverage.json": coverage})


def page_of(run: Run) -> str:
    report(run)
    return (run.output("report") / "report.html").read_text()


def sections_of(page: str) -> set[str]:
    return set(re.findall(r'<section id="(\w+)"', page))


def test_a_full_run_has_every_section_and_needs_no_network(tmp_path: Path) -> None:
    first = make_run(tmp_path, "2026-03-05")
    parent = Parent(
        day="2026-03-05", folder=str(first.folder.relative_to(tmp_path)), cut_us=1, fingerprint="f"
    )
    run = make_run(tmp_path, "2026-03-06", parent, alpha=0.5)
    fill(run)
    page = page_of(run)
    assert sections_of(page) == {
        "headline", "decision", "quality", "slices", "transfer", "solaris", "training", "mix",
        "contracts", "ledger", "history", "config", "timings",
    }  # fmt: skip
    assert "mix.alpha" in page
    assert "KD + LoopFM" in page
    outside = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"|url\(\s*["\']?http|@import', outside)
    assert "<script" not in page  # reasons are escaped


def test_absent_parts_have_no_section(tmp_path: Path) -> None:
    run = make_run(tmp_path, "2026-03-05")
    assert sections_of(page_of(run)) == {"headline", "decision", "quality", "slices", "timings"}


def test_an_empty_run_gives_a_page(tmp_path: Path) -> None:
    config = preset("2026-03-05", "smoke")
    folder = run_folder(config, tmp_path)
    folder.mkdir(parents=True)
    write_json(folder / "run.json", to_dict(config))
    assert sections_of(page_of(open_run(folder))) == set()


def test_twice_is_the_same_and_a_new_part_makes_a_new_page(tmp_path: Path) -> None:
    run = make_run(tmp_path, "2026-03-05")
    first = report(run)
    (run.output("report") / "report.html").unlink()
    assert report(run).fingerprint == first.fingerprint
    fill(run)
    assert report(run).fingerprint != first.fingerprint


def test_intervals_keep_their_order_though_json_sorts_keys(tmp_path: Path) -> None:
    run = make_run(tmp_path, "2026-03-05")
    ne = json.loads((run.output("evaluate") / "metrics.json").read_text())["overall"]["click"][
        "challenger"
    ]["ne"]
    assert list(ne) == ["high", "low", "value"]
    text = spread(ne)
    assert text == f"{ne['value']:.4f} [{ne['low']:.4f}, {ne['high']:.4f}]"


def test_history_lists_this_lineage_alone_newest_first(tmp_path: Path) -> None:
    days = ["2026-03-04", "2026-03-05", "2026-03-06"]
    runs = [make_run(tmp_path, day) for day in days]
    other = replace(preset("2026-03-05", "small"))
    folder = run_folder(other, tmp_path)
    folder.mkdir(parents=True)
    write_json(folder / "run.json", to_dict(other))
    (folder / "promote").mkdir()
    write_json(folder / "promote" / "decision.json", {})
    assert [r.config.day for r in earlier_runs(runs[-1])] == days[1::-1]
    assert [r.config.day for r in earlier_runs(runs[-1], limit=1)] == days[1:2]
    found = report_sections.history(runs[-1])
    assert found
    assert [row["day"] for row in found["rows"]] == days[::-1]
    assert report_sections.history(runs[0]) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count(1234567), "1\u202f234\u202f567"),
        (count(None), "\u2013"),
        (percent(0.1234), "12.3\u202f%"),
        (spread([0.5, None, None]), "0.5000"),
        (spread([0.5, 0.4, 0.6], 2, "+"), "+0.50 [+0.40, +0.60]"),
        (spread(None), "\u2013"),
    ],
)
def test_numbers_for_people(text: str, expected: str) -> None:
    assert text == expected


def test_solaris_shows_similar_users_ages_and_sweeps(tmp_path: Path) -> None:
    run = make_run(tmp_path, "2026-03-05")
    fill(run)
    text = page_of(run)
    section = text[text.index('id="solaris"') : text.index('id="training"')]
    for shown in ("similar users", "6.2", "5.2", "life of a vector, hours", "18.8"):
        assert shown in section, shown
