from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from source_day import read_day

from model.config import ConfigError
from pipeline.mixing.land import land
from pipeline.run.codec import to_dict
from pipeline.run.manifest import write_json
from pipeline.run.paths import REPOSITORY, Run, run_folder
from pipeline.run.presets import preset, read_spec

DAY = "2026-11-20"
PAGE = (REPOSITORY / "docs" / "your-own-logs.md").read_text()


def block(kind: str) -> str:
    found = re.search(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found, kind
    return found.group(1)


@pytest.fixture
def shop(tmp_path: Path) -> Run:
    """The page's example, written out as the page says."""
    landing = tmp_path / "lake" / "landing" / "shop"
    (landing / "views" / DAY).mkdir(parents=True)
    (landing / "views" / DAY / "part.csv").write_text(block("csv views"))
    (landing / "orders.csv").write_text(block("csv orders"))
    (tmp_path / "shop.toml").write_text(block("toml"))
    config = preset(DAY, "small", str(tmp_path / "shop.toml"))
    run = Run(folder=run_folder(config, tmp_path), config=config)
    run.folder.mkdir(parents=True)
    write_json(run.folder / "run.json", to_dict(config))
    return run


def test_the_pages_example_reads_as_the_page_says(shop: Run) -> None:
    read = read_day(shop, "impressions", DAY)
    assert not read.broken
    rows = read.frame.to_dict(as_series=False)
    assert rows["impression_id"] == ["1", "2", "3", "4", "5"]
    assert rows["ts"][0] == 1795140000 * 1_000_000
    assert rows["surface"] == ["home", "home", "search", "search", "search"]
    assert rows["position"] == [0, 1, 0, 0, 0]
    assert rows["segment"] == ["gold", "gold", "none", "gold", "basic"]
    assert rows["price"] == [12.5, 8.0, 12.5, 30.0, 30.0]
    assert rows["objective"] == ["conversion"] * 5
    assert rows["user_id"][3] == "broken"  # left for ingest to refuse
    assert rows["request_id"][:2] == ["179514000001001"] * 2


def test_orders_lie_on_the_day_on_which_they_happen(shop: Run) -> None:
    for day, order in ((DAY, "2"), ("2026-11-21", "5")):
        read = read_day(shop, "conversions", day)
        assert read.frame["impression_id"].to_list() == [order]


def test_land_accepts_the_example(shop: Run) -> None:
    land(shop)
    assert (shop.output("land") / "index.json").is_file()


def test_the_example_declares_what_its_mapping_brings(shop: Run) -> None:
    assert shop.config.surfaces == ("home", "search")
    assert [o.window_hours for o in shop.config.objectives] == [0, 24]
    assert shop.config.features.dense_columns == (
        "price",
        "match_shown_ad_id",
        "match_shown_ad_id_acted",
    )
    assert replace(shop.config, day="2026-11-21").dataset == shop.config.dataset


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('table = "segment"\nscope', 'table = "segmant"\nscope', r"sparse\.segment\.table"),
        ('name = "shop" ', 'name = "my shop" ', r"source\.name must be letters"),
        ('format = "csv"', 'format = "orc"', r"source\.tables\[0\]\.format must be one of"),
        ("window_hours = 24", 'window_hours = "24"', r"objectives\[1\]\.window_hours must be of"),
        ("bootstrap_days = 8", "bootstrap_day = 8", r"window\.bootstrap_day must be a field"),
        ('event = "shown"\nkey', 'event = "seen"\nkey', r"matches\.seen must be a declared event"),
        ('surfaces = ["home", "search"]', "", r"surfaces must be given"),
        ("[window]", "[window", r"is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = block("toml")
    assert old in text
    path = tmp_path / "shop.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message):
        read_spec(path)


def test_a_missing_file_and_an_unknown_source_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist; check the path"):
        preset(DAY, "small", str(tmp_path / "no.toml"))
    with pytest.raises(ConfigError, match=r"docs/your-own-logs\.md"):
        preset(DAY, "small", "criteo")
