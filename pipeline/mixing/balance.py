"""Which rank reads which buckets, and which of its rows make a step, so that no rank waits.

What a row costs is the events that it reads, and one for itself. Buckets are dealt to ranks by
their cost. Every rank then walks through its own rows at the pace of all rows together: a window
of steps ends where the same part of the cost is done on each. Within a window sub-batches of rows
are dealt to the steps, the heaviest beside the lightest, and the steps are cut at equal cost.
Nothing is drawn: all follows from the rows, the batch size and the number of ranks.
Suffixes: B buckets, N rows of a rank in time order, T moments, S steps, W windows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

SUB_BATCH: Final = 128  # rows that stay together, in time order
WINDOW_STEPS: Final = 16  # a sub-batch moves by fewer steps than this


def assign_buckets(cost_B: np.ndarray, world_size: int) -> np.ndarray:
    """The rank of every bucket, int64: the costliest first, each to the rank with least so far."""
    rank_B = np.zeros(len(cost_B), dtype=np.int64)
    load, held = np.zeros(world_size), np.zeros(world_size, dtype=np.int64)
    for bucket in np.argsort(-np.asarray(cost_B, dtype=np.float64), kind="stable"):
        rank = np.lexsort((held, load))[0]
        rank_B[bucket] = rank
        load[rank] += cost_B[bucket]
        held[rank] += 1
    return rank_B


def even_bounds(num_rows: int, total_rows: int, batch_size: int) -> np.ndarray:
    """Where every step's rows begin, and the end, by number of rows alone: int64 [S + 1].

    Every rank has `ceil(total_rows / batch_size)` steps. With all rows on one rank a step has
    `batch_size` of them, the last one what is left.
    """
    end = np.arange(-(-total_rows // batch_size) + 1, dtype=np.int64) * batch_size
    return np.minimum(end, total_rows) * num_rows // max(total_rows, 1)


def window_parts(rows_T: np.ndarray, cost_T: np.ndarray, batch_size: int) -> np.ndarray:
    """The part of all cost that is done when each window ends: ascending, from 0 to 1, [W + 1].

    `rows_T` and `cost_T` are those of all ranks at ascending moments; a step is `batch_size` rows.
    """
    rows = np.concatenate([[0], np.cumsum(rows_T)])
    cost = np.concatenate([[0], np.cumsum(cost_T)])
    steps = -(-int(rows[-1]) // batch_size)
    ends = np.minimum(np.arange(-(-steps // WINDOW_STEPS) + 1) * WINDOW_STEPS, steps) * batch_size
    done = np.interp(np.minimum(ends, rows[-1]), rows, cost)
    return done / max(int(cost[-1]), 1)


def balanced_steps(
    cost_N: np.ndarray, parts_W: np.ndarray, num_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """The order of a rank's rows, int64 [N], and where each step begins in it, int64 [S + 1].

    `parts_W` are `window_parts`: a row keeps its window, and rows of a sub-batch their order.
    """
    total = np.concatenate([[0], np.cumsum(cost_N, dtype=np.int64)])
    edges = np.searchsorted(total, np.rint(parts_W * total[-1]))
    edges[0], edges[-1] = 0, len(cost_N)
    order = [np.zeros(0, dtype=np.int64)]
    bounds = [np.zeros(1, dtype=np.int64)]
    for window, begin in enumerate(edges[:-1]):
        steps = min(WINDOW_STEPS, num_steps - window * WINDOW_STEPS)
        dealt = begin + _dealt(total[begin : edges[window + 1] + 1] - total[begin], steps)
        order.append(dealt)
        done = np.concatenate([[0], np.cumsum(cost_N[dealt], dtype=np.int64)])
        targets = np.arange(1, steps + 1) * done[-1] / steps
        bounds.append(begin + _nearest(done, targets))
    return np.concatenate(order), np.concatenate(bounds)


def _dealt(total: np.ndarray, steps: int) -> np.ndarray:
    """A window's rows step by step; `total` counts the cost before each row, and all of it."""
    rows = len(total) - 1
    pairs = steps * max(1, round(rows / steps / (2 * SUB_BATCH)))
    edges = np.arange(2 * pairs + 1) * rows // (2 * pairs)
    heavy_first = np.argsort(-np.diff(total[edges]), kind="stable")
    pair = np.stack([heavy_first[:pairs], heavy_first[::-1][:pairs]], axis=1)
    # to and fro over the steps: the one with a round's heaviest pair gets the next one's lightest
    by_sum = pair[np.argsort(-np.diff(total[edges])[pair].sum(axis=1), kind="stable")]
    rounds = by_sum.reshape(-1, steps, 2).copy()
    rounds[1::2] = rounds[1::2, ::-1]
    begin, size = edges[:-1], np.diff(edges)
    sub = rounds.transpose(1, 0, 2).ravel()
    before = np.cumsum(size[sub]) - size[sub]
    return np.repeat(begin[sub] - before, size[sub]) + np.arange(rows)


def _nearest(done: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The place in ascending `done` whose value is nearest to each target; the end for the last."""
    after = np.clip(np.searchsorted(done, targets), 1, max(len(done) - 1, 1))
    after = np.minimum(after, len(done) - 1)
    before = np.maximum(after - 1, 0)
    place = np.where(targets - done[before] < done[after] - targets, before, after)
    place[-1] = len(done) - 1
    return np.maximum.accumulate(place)
