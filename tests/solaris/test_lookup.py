from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from store_world import AS_OF, HOUR, generation, vectors

from pipeline.run.errors import ConfigError
from pipeline.solaris.lookup import lookup
from pipeline.solaris.lookup_command import main
from pipeline.solaris.serving import EXACT, NONE, USER
from pipeline.solaris.stores import open_store


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with open_store(tmp_path / "store" / "one", write=True) as store:
        store.publish(generation(), [vectors([1, 1, 2], [5, 6, 5], [1, 13, 2], [127, -127, 64])])
    return tmp_path


def test_the_pair_and_its_user_have_fields_of_their_own(home: Path) -> None:
    with open_store(home / "store" / "one") as store:
        got = lookup(store, np.array([1, 1, 2, 9]), np.array([6, 7, 9, 5]), AS_OF)
    assert list(got.source_B) == [EXACT, USER, USER, NONE]
    assert list(got.pair_B) == [EXACT, NONE, NONE, NONE]
    assert list(got.user_B) == [True, True, True, False]
    assert got.z_Bd[0, 0] == -1.0
    assert not got.z_Bd[1:].any()
    assert list(got.age_s_B) == [13 * 3600, 0, 0, 0]
    weight = np.exp(-1 / 12) / (np.exp(-1 / 12) + np.exp(-13 / 12))
    assert np.allclose(got.user_z_Bd[:2], 2 * weight - 1)
    assert np.allclose(got.user_age_s_B[:2], 3600 * (weight + 13 * (1 - weight)))
    assert np.allclose(got.user_z_Bd[2], 64 / 127)
    assert not got.user_z_Bd[3].any()
    assert got.user_age_s_B[3] == 0


def test_command_prints_vector_source_and_age(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--home", str(home), "--user", "2", "--ad", "5"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["source"], answer["pair"]["age_s"]) == ("exact", 7200.0)
    assert answer["pair"]["vector"] == answer["user_mean"]["vector"] == [round(64 / 127, 6)] * 4
    late = "1970-02-12T16:00:00"  # hour 1024 since 1970: 26 hours after the vector
    assert AS_OF + 24 * HOUR == 1024 * HOUR
    assert main(["--home", str(home), "--user", "2", "--ad", "5", "--at", late]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "none"


def test_bad_usage_is_one_clear_line(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--at must be a time"):
        main(["--home", str(home), "--user", "2", "--ad", "5", "--at", "noon"])
    with pytest.raises(ConfigError, match="holds no Solaris store"):
        main(["--home", str(tmp_path / "nowhere"), "--user", "2", "--ad", "5"])
    with pytest.raises(ConfigError, match="outside"):
        main(["--home", str(home), "--lineage", "../..", "--user", "2", "--ad", "5"])
