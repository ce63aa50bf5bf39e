"""Tensors that ranks hold in pieces: a file per rank, readable by any other number of ranks.

A piece is a block of a whole tensor: `rank_R.safetensors` holds blocks by name, and in its header
where each begins. A reader asks for any block of a whole and gets it from whichever files have it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank's piece lies in the whole tensor; of replicas one is `mine` to write."""

    begin: tuple[int, ...]
    shape: tuple[int, ...]
    whole: tuple[int, ...]
    mine: bool = True

    @staticmethod
    def all_of(tensor: Tensor, *, mine: bool) -> Place:
        """The place of a whole tensor."""
        shape = tuple(tensor.shape)
        return Place((0,) * len(shape), shape, shape, mine)

    def within(self, whole: Tensor) -> Tensor:
        """The view of this place in a whole tensor."""
        return whole[tuple(slice(b, b + n) for b, n in zip(self.begin, self.shape, strict=True))]


def write_pieces(path: Path, pieces: Mapping[str, Tensor], places: Mapping[str, Place]) -> None:
    """Write the pieces that are this rank's to write; the same ones always give the same bytes."""
    mine = {n: pieces[n].contiguous() for n in sorted(pieces) if places[n].mine}
    begins = {n: places[n].begin for n in mine}
    save_file(mine, path, metadata={"begins": json.dumps(begins, sort_keys=True)})


class PieceReader:
    """The pieces in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pieces: dict[str, list[tuple[Any, tuple[int, ...]]]] = {}  # file, begin
        for path in sorted(folder.glob("rank_*.safetensors")):
            file: Any = safe_open(path, framework="pt")
            begins = json.loads(file.metadata()["begins"])
            for name in file.keys():  # noqa: SIM118 (not a dict)
                self._pieces.setdefault(name, []).append((file, tuple(begins[name])))

    def names(self) -> set[str]:
        """Names of the tensors that some rank wrote."""
        return set(self._pieces)

    def read(self, name: str, place: Place) -> Tensor:
        """A block of a whole tensor; `ValueError` when the files hold only a part of it."""
        out, filled = torch.zeros(place.shape), 0
        for file, begin in self._pieces[name]:
            if not begin:
                return file.get_tensor(name)
            source = file.get_slice(name)
            shape = tuple(source.get_shape())
            low = [max(a, b) for a, b in zip(place.begin, begin, strict=True)]
            high = [
                min(a + n, b + m)
                for a, n, b, m in zip(place.begin, place.shape, begin, shape, strict=True)
            ]
            size = [h - w for h, w in zip(high, low, strict=True)]
            if min(size) <= 0:
                continue
            block = source[tuple(_span(low, size, begin))]
            if not filled:
                out = out.to(block.dtype)
            out[tuple(_span(low, size, place.begin))] = block
            filled += math.prod(size)
        if filled != math.prod(place.shape):
            raise ValueError(
                f"{self.folder} holds {filled} of {math.prod(place.shape)} values of {name}; "
                "remove this checkpoint"
            )
        return out


def _span(low: list[int], size: list[int], begin: tuple[int, ...]) -> Iterator[slice]:
    """Slices of a block, counted from where its holder begins."""
    return (slice(w - b, w - b + n) for w, n, b in zip(low, size, begin, strict=True))
