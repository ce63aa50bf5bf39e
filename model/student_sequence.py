"""How a student reads a sequence of a user's past: mean, sum, DIN or DMIN.

Sequences are stored once and pointed at: a row has the places of its first and last event, and a
batch gathers its own. Users without a past read zeros.

Suffixes: N stored events, S numbers of one, B rows, L events of a row (padded), D width, H heads,
T target width, X distinct pasts of a store's rows (of a layer: numbers that it gives).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Encoder = Literal["mean", "sum", "din", "dmin"]
Padded = tuple[Tensor, Tensor]  # events [B, L, S] and where there are any [B, L]
HEADS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Row b reads `stored_NS[begin_b:end_b]`, oldest first; at most `length` events.

    `means_XS`: the mean of each distinct past, where it is kept; row b has the one at `span_B[b]`.
    With them a mean or a sum costs one look-up, however long the history.
    """

    stored_NS: Tensor
    begin_B: Tensor
    end_B: Tensor
    length: int
    means_XS: Tensor | None = None
    span_B: Tensor | None = None

    def part(self, rows: slice | Tensor) -> History:
        """The chosen rows, of the same store."""
        span_B = None if self.span_B is None else self.span_B[rows]
        return replace(self, begin_B=self.begin_B[rows], end_B=self.end_B[rows], span_B=span_B)

    def without(self, dropped_B: Tensor) -> History:
        """The same rows; those that are dropped read nothing."""
        end_B = torch.where(dropped_B, self.begin_B, self.end_B)
        return replace(self, end_B=end_B, means_XS=None, span_B=None)

    def with_stored(self, stored_NS: Tensor) -> History:
        """The same places in another store; means are made again where there were any."""
        other = replace(self, stored_NS=stored_NS)
        return other if self.means_XS is None else other.with_means()

    def with_means(self) -> History:
        """The same with the means of its rows' pasts."""
        key_B = self.begin_B * (len(self.stored_NS) + 1) + self.end_B
        key_X, span_B = torch.unique(key_B, return_inverse=True)
        begin_X = key_X // (len(self.stored_NS) + 1)
        end_X = key_X % (len(self.stored_NS) + 1)
        totals_TS = _totals(self.stored_NS)
        count_X1 = (end_X - begin_X)[:, None]
        means_XS = (totals_TS[end_X] - totals_TS[begin_X]) / count_X1.clamp_min(1)
        return replace(self, means_XS=means_XS.to(self.stored_NS.dtype), span_B=span_B)

    def padded(self) -> Padded:
        """Events [B, L, S], the last of a row in its last place, and where there are any [B, L]."""
        place_BL = self.end_B[:, None] - torch.arange(self.length, 0, -1)
        mask_BL = place_BL >= self.begin_B[:, None]
        chosen_R = (place_BL * mask_BL).flatten()
        if not len(self.stored_NS):
            shape = (*mask_BL.shape, self.stored_NS.shape[1])
            return self.stored_NS.new_zeros(shape), mask_BL
        gathered_RS = self.stored_NS.index_select(0, chosen_R)
        return gathered_RS.view(*mask_BL.shape, -1), mask_BL

    def pooled(self, encoder: Encoder) -> Padded:
        """What an encoder reads: for a mean or a sum one event that stands for all, if it can."""
        if self.means_XS is None or self.span_B is None or encoder not in ("mean", "sum"):
            return self.padded()
        event_B1S = self.means_XS.index_select(0, self.span_B)[:, None]
        count_B1 = (self.end_B - self.begin_B)[:, None]
        if encoder == "sum":
            event_B1S = event_B1S * count_B1[:, :, None]
        return event_B1S, count_B1 > 0


def _totals(stored_NS: Tensor) -> Tensor:
    """Sums of all events before each place [N + 1, S], float64."""
    zero_1S = stored_NS.new_zeros((1, stored_NS.shape[1]), dtype=torch.float64)
    return torch.cat([zero_1S, stored_NS.cumsum(0, dtype=torch.float64)])


class SequencePool(nn.Module):
    """One vector per sequence: plain pooling, or attention that the target ad directs.

    It is projected to `out_width` numbers, for a trunk's cost grows with the square of what it
    reads. A row without events gives zeros, any other one a bias too: that there are some is told,
    but not how many, which grows with an epoch's age, beyond what was trained on.
    """

    def __init__(
        self, encoder: Encoder, width: int, target: int, length: int, out_width: int
    ) -> None:
        super().__init__()
        self.encoder, self.length, self.out_width = encoder, length, out_width
        self.refine = SelfAttention(width) if encoder == "dmin" else None
        self.attend = TargetAttention(width, target) if encoder in ("din", "dmin") else None
        self.project = nn.Linear(width if self.attend is None else HEADS * width, out_width)

    def forward(self, s_BLD: Tensor, mask_BL: Tensor, target_BT: Tensor) -> Tensor:
        """Pooled vectors [B, out_width]; zeros where the mask is empty."""
        pooled_BX: Tensor = self.project(self._pooled(s_BLD, mask_BL, target_BT))
        return pooled_BX * mask_BL.any(1, keepdim=True)

    def _pooled(self, s_BLD: Tensor, mask_BL: Tensor, target_BT: Tensor) -> Tensor:
        if self.attend is None:
            return self._plain(s_BLD, mask_BL)
        if self.refine is not None:
            s_BLD = self.refine(s_BLD, mask_BL)
        pooled_BX: Tensor = self.attend(s_BLD, mask_BL, target_BT)
        return pooled_BX

    def _plain(self, s_BLD: Tensor, mask_BL: Tensor) -> Tensor:
        if s_BLD.shape[1] == 1:  # stands for all; where it is none, the caller drops it
            sum_BD, count_B1 = s_BLD[:, 0], None
        else:
            sum_BD = torch.einsum("bld,bl->bd", s_BLD, mask_BL.to(s_BLD.dtype))
            count_B1 = mask_BL.sum(1, keepdim=True).clamp_min(1)
        if self.encoder == "sum":
            return sum_BD / self.length**0.5  # a constant: sums of long sequences stay small
        return sum_BD if count_B1 is None else sum_BD / count_B1


class TargetAttention(nn.Module):
    """DIN's activation unit (arXiv 1706.06978, section 4.3) with bilinear scores, in heads.

    Every head weighs the events by their product with its own projection of the target.
    """

    def __init__(self, width: int, target: int) -> None:
        super().__init__()
        self.query = nn.Linear(target, HEADS * width)

    def forward(self, s_BLD: Tensor, mask_BL: Tensor, target_BT: Tensor) -> Tensor:
        """Heads side by side [B, H x D]."""
        query_BHD = self.query(target_BT).unflatten(1, (HEADS, -1))
        scores_BHL = query_BHD @ s_BLD.transpose(1, 2) / s_BLD.shape[2] ** 0.5
        weights_BHL = masked_softmax(scores_BHL, mask_BL[:, None])
        return (weights_BHL @ s_BLD).flatten(1)


class SelfAttention(nn.Module):
    """DMIN's refiner (CIKM 2020, doi 10.1145/3340531.3412092): events read each other.

    Causal masks would tell nothing here: all events precede the impression.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, s_BLD: Tensor, mask_BL: Tensor) -> Tensor:
        """Refined events [B, L, D], beside what they were (a residual)."""
        q_BLD, k_BLD, v_BLD = self.project(s_BLD).chunk(3, dim=2)
        scores_BLL = q_BLD @ k_BLD.transpose(1, 2) / s_BLD.shape[2] ** 0.5
        weights_BLL = masked_softmax(scores_BLL, mask_BL[:, None])
        refined_BLD: Tensor = s_BLD + F.relu(self.out(weights_BLL @ v_BLD))
        return refined_BLD


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension where the mask holds; zeros where it holds nowhere."""
    weights = torch.softmax(scores.masked_fill(~mask, -1e9), dim=-1)
    return weights * mask
