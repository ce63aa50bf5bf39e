"""The batch: what the loader hands to every model.

Suffixes: B rows, F sparse features, C dense columns, K objectives, E events of one type over the
whole batch (jagged, row-major), A attributes of an event, U users.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class EventBatch:
    """Events of one type for all rows, concatenated, oldest first; row b owns `lengths_B[b]`.

    `gap_E`: seconds since the user's previous event in the slice (0 for the first one);
    `age_E`: seconds from the event to the impression.
    """

    ids_EA: Tensor  # int64, already hashed into the attribute's table
    lengths_B: Tensor  # int64
    gap_E: Tensor  # float32, seconds
    age_E: Tensor  # float32, seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One mini-batch; features in `FeatureSet` order, objectives in config order."""

    ids_BF: Tensor  # int64, hashed into the feature's table
    dense_BC: Tensor  # float32, FeatureSet.dense_columns, transforms applied
    events: dict[str, EventBatch]
    surface_B: Tensor  # int64, index into config.surfaces
    labels_BK: Tensor  # float32 in {0, 1}; 0 where masked
    mask_BK: Tensor  # float32; 1 where the label is mature and part of the loss
    weight_BK: Tensor  # float32 loss weight (1/r of the mix; 1 outside training)
    row_B: Tensor  # int64, position in the selection that the loader reads

    @property
    def num_rows(self) -> int:
        """Rows in the batch."""
        return int(self.surface_B.shape[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    """Whose history each row of a batch reads, where its events are one history per user.

    `owner_B`: the place of a row's user among the U histories. `first_U`: one row of each user, to
    read there what all rows of the user have in common.
    """

    owner_B: Tensor  # int64
    first_U: Tensor  # int64
