"""What a store answered, as the fields that a student reads."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from pipeline.loopfm.store_fields import fields_of
from pipeline.run.errors import DataError

ROWS = pl.DataFrame(
    {
        "pair": ["exact", "none", "neighbours", "exact"],
        "z": [[1.0, -1.0], [0.0, 0.0], [0.5, 0.25], [0.0, 1.0]],
        "age_s": [3_600.0, 0.0, 1_800.0, 60.0],
        "user": [False, False, True, True],
        "user_z": [[0.0, 0.0], [0.0, 0.0], [0.75, 0.5], [0.25, 0.0]],
        "user_age_s": [0.0, 0.0, 7_200.0, 60.0],
    }
)


def test_each_field_has_its_vectors_and_their_ages() -> None:
    fields = fields_of(ROWS, 2)
    there = {name: f.padded()[1][:, 0].tolist() for name, f in fields.items()}
    assert there == {
        "exact": [True, False, False, True],
        "neighbours": [False, False, True, False],
        "user": [False, False, True, True],
    }
    exact, near, user = (fields[n].padded()[0][:, 0] for n in ("exact", "neighbours", "user"))
    np.testing.assert_allclose(exact[0], [1.0, -1.0, np.log(2.0)], rtol=1e-6)
    np.testing.assert_allclose(near[2], [0.5, 0.25, np.log(1.5)], rtol=1e-6)
    np.testing.assert_allclose(user[2], [0.75, 0.5, np.log(3.0)], rtol=1e-6)


def test_missing_answers_are_nothing() -> None:
    empty = ROWS.with_columns(
        pair=pl.lit("none"),
        z=pl.lit(None, dtype=pl.List(pl.Float32)),
        user=pl.lit(None, dtype=pl.Boolean),
    )
    for field in fields_of(empty, 2).values():
        assert not field.padded()[1].any()
    assert len(fields_of(ROWS.clear(), 2)["exact"].begin_B) == 0


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("pair", "user", r"column pair must hold \['none', 'exact', 'neighbours'\], got 'user'"),
        ("pair", None, "column pair must hold .*, got None"),
        ("z", [1.0], "z of row 3 must be 2 numbers, got 1"),
        ("z", None, "z of row 3 must be 2 numbers, got 0"),
        ("z", [1.0, float("nan")], "z of row 3 must be finite"),
        ("age_s", -1.0, "age_s of row 3 must be positive, got -1"),
        ("age_s", 0.0, "age_s of row 3 must be positive, got 0"),
        ("age_s", None, "age_s of row 3 must be positive, got None"),
        ("user_z", [1.0, 2.0, 3.0], "user_z of row 3 must be 2 numbers, got 3"),
        ("user_age_s", float("nan"), "user_age_s of row 3 must be positive, got nan"),
    ],
)
def test_bad_answers_are_named(column: str, value: object, said: str) -> None:
    spoiled = [*ROWS[column].to_list()[:3], value]
    rows = ROWS.with_columns(pl.Series(column, spoiled, dtype=ROWS.schema[column]))
    with pytest.raises(DataError, match=said):
        fields_of(rows, 2)


def test_missing_columns_are_named() -> None:
    with pytest.raises(DataError, match=r"lack \['user_age_s', 'z'\]; join what lookups gave"):
        fields_of(ROWS.drop("z", "user_age_s"), 2)
