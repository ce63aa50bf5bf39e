import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.run.contract import DOCS_DAYS, docs_index, require_columns, settle
from pipeline.run.errors import EXIT_CONTRACT, ContractError, exit_code
from pipeline.run.paths import Run
from pipeline.run.presets import preset


def verdict(success: bool, severity: str, column: str = "user_id") -> dict[str, Any]:
    return {
        "expectation": "ExpectColumnValuesToBeBetween",
        "on": "profile",
        "column": column,
        "severity": severity,
        "reason": "it is the key",
        "success": success,
        "observed": () if success else ("-9", "-8"),
    }


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "runs" / "2026-03-05" / "name"
    folder.mkdir(parents=True)
    return Run(folder=folder, config=preset("2026-03-05", "smoke"))


def test_warnings_are_published_and_counted(run: Run, tmp_path: Path) -> None:
    found = settle(
        run, "contracts", tmp_path, 7, [verdict(True, "critical"), verdict(False, "warning")]
    )
    assert found.figures == {"expectations": 2, "warnings": 1, "critical": 0}
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["success"] is True
    assert [e["success"] for e in result["expectations"]] == [True, False]


def test_a_critical_failure_stops_with_the_first_bad_values_and_is_kept(
    run: Run, tmp_path: Path
) -> None:
    with pytest.raises(
        ContractError, match=r"user_id breaks .* first -9, -8 \(it is the key\)"
    ) as e:
        settle(run, "contracts", tmp_path, 7, [verdict(False, "critical")])
    assert exit_code(e.value) == EXIT_CONTRACT
    assert not (tmp_path / "result.json").exists()
    kept = json.loads(run.inside("contract_failures", "contracts.json").read_text())
    assert kept["success"] is False
    settle(run, "contracts", tmp_path, 7, [verdict(True, "critical")])
    assert not run.inside("contract_failures", "contracts.json").exists()


def test_pages_of_sixty_days_are_kept_and_listed(run: Run, tmp_path: Path) -> None:
    today = dt.date.fromisoformat(run.config.day)
    for ago in (DOCS_DAYS, DOCS_DAYS - 1, 0):
        day = (today - dt.timedelta(days=ago)).isoformat()
        page = tmp_path / "runs" / day / "name" / "data_docs" / "contracts" / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text(day)
    settle(run, "contracts", tmp_path, 7, [verdict(True, "critical")])
    kept = sorted(p.parts[-4] for p in (tmp_path / "runs").glob("*/name/data_docs/contracts"))
    assert kept == ["2026-01-05", "2026-03-05"]
    index = docs_index(tmp_path).read_text()
    assert 'href="2026-01-05/name/data_docs/contracts/index.html"' in index
    assert index.index("2026-03-05") < index.index("2026-01-05")
    assert "2026-01-04" not in index


def test_many_failures_are_cut_in_the_message(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="and 5 more"):
        settle(run, "contracts", tmp_path, 7, [verdict(False, "critical")] * 15)


def test_missing_columns_are_named() -> None:
    with pytest.raises(ContractError, match="mix/train lacks the columns label_us"):
        require_columns("mix/train", ["g"], ["g", "label_us"])
