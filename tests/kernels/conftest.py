"""Memory that an op takes and does not fill holds NaN in these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def poisoned_memory() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # fills new memory, on every device
    assert torch.empty(2).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)
