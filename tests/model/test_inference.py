from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from model_world import make_batch, planted_features

from model.batch import Batch
from model.inference import forward_all


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    return [make_batch(planted_features(), 2 + seed, seed=seed) for seed in range(7)]


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_the_batches_order_without_gradients(
    batches: list[Batch], workers: int
) -> None:
    seen: list[tuple[bool, int]] = []

    def forward(batch: Batch) -> int:
        seen.append((torch.is_inference_mode_enabled(), torch.get_num_threads()))
        return batch.num_rows

    assert list(forward_all(forward, batches, workers=workers)) == [2, 3, 4, 5, 6, 7, 8]
    assert seen == [(True, 1)] * 7
    assert not torch.is_inference_mode_enabled()


def test_no_more_batches_are_taken_than_there_is_work_for(batches: list[Batch]) -> None:
    taken = []

    def source() -> Iterator[Batch]:
        for place, batch in enumerate(batches):
            taken.append(place)
            yield batch

    results = forward_all(lambda batch: batch.num_rows, source(), workers=2)
    assert next(results) == 2
    assert taken == [0, 1, 2]
    assert list(results) == [3, 4, 5, 6, 7, 8]


def test_what_a_batch_raises_reaches_the_caller(batches: list[Batch]) -> None:
    def forward(batch: Batch) -> int:
        if batch.num_rows == 4:
            raise ValueError("this one")
        return batch.num_rows

    before = threading.active_count()
    with pytest.raises(ValueError, match="this one"):
        list(forward_all(forward, batches, workers=2))
    assert threading.active_count() == before
