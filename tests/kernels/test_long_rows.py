"""The CPU forms for long rows against the references in float64, in every number format."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import kernels
from kernels.attention import reference as attention
from kernels.gdpa import reference as gdpa_reference
from kernels.pooling import reference as pooling

LENGTHS = {
    "skewed": [3, 700, 0, 129, 260, 1],
    "equal": [320, 320],
    "one": [513],
    "many-short": [5] * 30 + [300],
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 2e-2}
ids = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda d: str(d).removeprefix("torch."))


def rand(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_()


def near(got: Tensor, want: Tensor, inputs: list[Tensor]) -> None:
    """Outputs and all gradients, by the norm of the difference."""
    pull = torch.randn(2, *want.shape, dtype=want.dtype)[1]  # lies within a larger tensor
    got_grads = torch.autograd.grad(got, inputs, pull.to(got.dtype))
    want_grads = torch.autograd.grad(want, inputs, pull)
    for g, w in zip((got.detach(), *got_grads), (want.detach(), *want_grads), strict=True):
        assert g.shape == w.shape
        # a gradient that cancels to nothing is judged by what came in
        size = max(float(w.double().norm()), 0.1 * float(pull.norm()))
        assert float((g.double() - w.double()).norm()) <= TOLERANCE[got.dtype] * size


@dtypes
@ids
@pytest.mark.parametrize(
    "sight",
    [{}, {"window": 0}, {"window": 5}, {"window": 64}, {"window": 100}, {"block": 64}],
    ids=["full", "window-0", "window-5", "window-64", "window-100", "block-64"],
)
def test_attention_on_long_rows(sight, lengths, dtype):
    layout = kernels.arrange(torch.tensor(lengths))
    inputs = [rand(dtype, sum(lengths), 2, 8) for _ in range(3)]
    packed = [layout.pack(x) for x in inputs]
    got = layout.unpack(kernels.jagged_attention(*packed, layout, **sight))
    exact = [x.double() for x in inputs]
    near(got, attention.jagged_attention(*exact, layout.lengths_B, **sight), inputs)


@dtypes
@ids
# without relu: its slope jumps at 0, where bfloat16 scores have the other sign now and then
@pytest.mark.parametrize(
    "names", ["gelu", ("silu", "relu_square"), ("identity", "silu", "gelu", "silu")]
)
def test_gdpa_on_long_rows(names, lengths, dtype):
    layout, rows = kernels.arrange(torch.tensor(lengths)), len(lengths)
    inputs = [rand(dtype, sum(lengths), 4, 8), *(rand(dtype, rows, 4, 5, 8) for _ in range(2))]
    q, k, v = inputs
    got = layout.unpack(kernels.gdpa(layout.pack(q), k, v, layout, scale=0.3, activation=names))
    exact = [x.double() for x in inputs]
    want = gdpa_reference.gdpa(*exact, layout.lengths_B, scale=0.3, activation=names)
    near(got, want, inputs)


@dtypes
@ids
@pytest.mark.parametrize("heads", [1, 2])
def test_seeds_on_long_rows(heads, lengths, dtype):
    layout = kernels.arrange(torch.tensor(lengths))
    kv = [rand(dtype, sum(lengths), heads, 8) for _ in range(2)]
    inputs = [rand(dtype, 5, heads, 8), *kv]
    got = kernels.seed_attention(inputs[0], *map(layout.pack, kv), layout)
    exact = [x.double() for x in inputs]
    near(got, pooling.seed_attention(*exact, layout.lengths_B), inputs)


def test_rows_do_not_see_each_other_under_a_window():
    layout = kernels.arrange(torch.tensor([300, 400]))
    q, k, v = (torch.randn(700, 1, 8) for _ in range(3))
    clean = kernels.jagged_attention(*map(layout.pack, (q, k, v)), layout, window=9)
    k[300:], v[300:] = 7.0, -7.0
    other = kernels.jagged_attention(*map(layout.pack, (q, k, v)), layout, window=9)
    torch.testing.assert_close(layout.unpack(other)[:300], layout.unpack(clean)[:300])


@ids
def test_gdpa_under_relu_on_long_rows(lengths):
    layout, rows = kernels.arrange(torch.tensor(lengths)), len(lengths)
    shapes = [(sum(lengths), 3, 8), (rows, 3, 5, 8), (rows, 3, 5, 8)]
    inputs = [rand(torch.float64, *shape) for shape in shapes]
    names = ("relu", "identity")
    q, k, v = inputs
    got = layout.unpack(kernels.gdpa(layout.pack(q), k, v, layout, scale=0.3, activation=names))
    want = gdpa_reference.gdpa(*inputs, layout.lengths_B, scale=0.3, activation=names)
    near(got, want, inputs)


@ids
def test_free_slots_stay_zero(lengths):
    layout, rows = kernels.arrange(torch.tensor(lengths)), len(lengths)
    free = layout.pack(torch.ones(sum(lengths), 1, 1)) == 0
    q, k, v = (layout.pack(rand(torch.float32, sum(lengths), 2, 8)).detach() for _ in range(3))
    keys, values, seeds = (rand(torch.float32, n, 2, 5, 8).detach() for n in (rows, rows, 1))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    gdpa = kernels.gdpa(q, keys, values, layout, scale=0.3)
    pooled = kernels.seed_attention(seeds[0].transpose(0, 1), k, v, layout)
    grads = torch.autograd.grad(gdpa.sum() + pooled.square().sum(), leaves)
    for slots in (gdpa, *grads):
        assert (slots * free == 0).all()
