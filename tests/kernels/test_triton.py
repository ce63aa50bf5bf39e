"""GPU kernels against the references in float64; interpreted where there is no GPU.

Lengths cover empty rows, one event, several tiles, and a row far longer than the rest.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

import kernels
from kernels.attention import reference as attention
from kernels.attention import triton_op as attention_op
from kernels.dispatch import choose_backend
from kernels.gdpa import reference as gdpa_reference
from kernels.jagged_pool import reference as pool_reference
from kernels.pooling import reference as pooling
from kernels.tiles import tiles_of

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
LENGTHS = [3, 0, 17, 1, 0, 70]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
if DEVICE == "cpu":
    DTYPES.insert(0, torch.float64)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Whichever tests run before: bfloat16's worst draws come near its tolerance."""
    torch.manual_seed(0)


def rand(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(DEVICE, dtype).requires_grad_()


def layout_of(lengths: list[int]) -> kernels.Layout:
    return kernels.arrange(torch.tensor(lengths, dtype=torch.int64)).to(DEVICE)


def near(got: Tensor, want: Tensor, inputs: list[Tensor], dtype: torch.dtype) -> None:
    """Outputs and all gradients, by the norm of the difference."""
    assert got.shape == want.shape
    pull = torch.randn_like(want)
    got_grads = torch.autograd.grad(got, inputs, pull.to(got.dtype), allow_unused=True)
    want_grads = torch.autograd.grad(want, inputs, pull, allow_unused=True)
    for g, w in zip((got.detach(), *got_grads), (want.detach(), *want_grads), strict=True):
        if g is None or w is None:
            assert not any(x.any() for x in (g, w) if x is not None)
            continue
        error = float((g.double() - w.double()).norm())
        # a gradient that cancels to nothing is judged by what came in
        size = max(float(w.double().norm()), 0.1 * float(pull.norm()))
        assert error <= TOLERANCE[dtype] * size, (error, size)


@by_dtype
@pytest.mark.parametrize("activation", ["gelu", "silu", "relu", "relu_square", "identity"])
def test_gdpa_equals_its_formula(activation, dtype):
    layout, lengths = layout_of(LENGTHS), torch.tensor(LENGTHS)
    q, k, v = rand(dtype, 91, 1, 8), rand(dtype, 6, 1, 5, 8), rand(dtype, 6, 1, 5, 8)
    got = layout.unpack(
        kernels.gdpa(
            layout.pack(q), k, v, layout, scale=0.3, activation=activation, backend="triton"
        )
    )
    inputs = [q, k, v]
    exact = [x.double() for x in inputs]
    want = gdpa_reference.gdpa(*exact, lengths, scale=0.3, activation=activation)
    near(got, want, inputs, dtype)


def test_gdpa_heads_take_their_activations_in_turn_over_more_keys_than_a_tile():
    layout, lengths = layout_of([2, 65]), torch.tensor([2, 65])
    dtype = DTYPES[0]
    q, k, v = rand(dtype, 67, 3, 4), rand(dtype, 2, 3, 70, 4), rand(dtype, 2, 3, 70, 4)
    names = ("gelu", "relu")
    got = kernels.gdpa(layout.pack(q), k, v, layout, scale=1.0, activation=names, backend="triton")
    exact = [x.double() for x in (q, k, v)]
    want = gdpa_reference.gdpa(*exact, lengths, scale=1.0, activation=names)
    near(layout.unpack(got), want, [q, k, v], dtype)


@by_dtype
@pytest.mark.parametrize(
    "sight",
    [{}, {"window": 5}, {"window": 0}, {"block": 16}, {"block": 64}],
    ids=["full", "window-5", "window-0", "block-16", "block-64"],
)
def test_attention_equals_its_formula(sight, dtype):
    layout, lengths = layout_of(LENGTHS), torch.tensor(LENGTHS)
    q, k, v = (rand(dtype, 91, 2, 8) for _ in range(3))
    angle = torch.randn(91, 4, dtype=torch.float64) * 3
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    packed = [layout.pack(x) for x in (q, k, v)]
    got = layout.unpack(
        kernels.jagged_attention(
            *packed,
            layout,
            angle_PR=layout.pack(angle.to(DEVICE, wide)),
            backend="triton",
            **sight,
        )
    )
    turned = [attention.rotate(x.double(), angle.to(DEVICE)) for x in (q, k)]
    want = attention.jagged_attention(*turned, v.double(), lengths, **sight)
    near(got, want, [q, k, v], dtype)


def test_queries_and_keys_may_have_lengths_of_their_own():
    dtype, ours, theirs = DTYPES[0], [4, 0, 2, 70], [70, 3, 0, 5]
    layout, kv_layout = layout_of(ours), layout_of(theirs)
    q, k, v = rand(dtype, 76, 1, 8), rand(dtype, 78, 1, 8), rand(dtype, 78, 1, 8)
    got = attention_op.jagged_attention(
        layout.pack(q), kv_layout.pack(k), kv_layout.pack(v), layout, kv_layout=kv_layout
    )
    rows, at, there = [], 0, 0
    for mine, others in zip(ours, theirs, strict=True):
        score = q[at : at + mine, 0].double() @ k[there : there + others, 0].double().T
        rows.append((score * 8**-0.5).softmax(-1) @ v[there : there + others, 0].double())
        at, there = at + mine, there + others
    near(layout.unpack(got), torch.cat(rows)[:, None], [q, k, v], dtype)


@by_dtype
def test_seeds_read_rows_as_their_formula_says(dtype):
    layout, lengths = layout_of(LENGTHS), torch.tensor(LENGTHS)
    q, k, v = rand(dtype, 5, 2, 8), rand(dtype, 91, 2, 8), rand(dtype, 91, 2, 8)
    packed = [layout.pack(x) for x in (k, v)]
    got = kernels.seed_attention(q, *packed, layout, backend="triton")
    want = pooling.seed_attention(q.double(), k.double(), v.double(), lengths)
    near(got, want, [q, k, v], dtype)


@by_dtype
@pytest.mark.parametrize("mode", ["mean", "sum", "softmax"])
@pytest.mark.parametrize("columns", [3, 70])
def test_rows_are_pooled_as_their_formula_says(columns, mode, dtype):
    layout, lengths = layout_of(LENGTHS), torch.tensor(LENGTHS)
    x, logits = rand(dtype, 91, columns), rand(dtype, 91)
    weighted = mode == "softmax"
    packed = layout.pack(logits) if weighted else None
    got = kernels.jagged_pool(layout.pack(x), layout, mode=mode, logits_P=packed, backend="triton")
    exact = logits.double() if weighted else None
    want = pool_reference.jagged_pool(x.double(), lengths, mode=mode, logits_E=exact)
    near(got, want, [x, logits], dtype)


@pytest.mark.parametrize("lengths", [[], [0, 0]], ids=["no-rows", "empty-rows"])
def test_nothing_to_read_gives_zeros(lengths):
    layout = layout_of(lengths)
    nothing = rand(torch.float32, 0, 2, 8)
    seeds = rand(torch.float32, 3, 2, 8)
    keys = rand(torch.float32, len(lengths), 2, 4, 8)
    outs = [
        kernels.jagged_attention(nothing, nothing, nothing, layout, window=3, backend="triton"),
        kernels.seed_attention(seeds, nothing, nothing, layout, backend="triton"),
        kernels.gdpa(nothing, keys, keys, layout, scale=1.0, backend="triton"),
        kernels.jagged_pool(nothing[:, 0], layout, backend="triton"),
    ]
    rows = len(lengths)
    assert [tuple(o.shape) for o in outs] == [(0, 2, 8), (rows, 3, 2, 8), (0, 2, 8), (rows, 8)]
    assert not any(o.any() for o in outs)


@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_an_unknown_activation_is_refused_alike(backend):
    layout, x = layout_of([1]), torch.randn(1, 1, 1, 8, device=DEVICE)
    with pytest.raises(ValueError, match="relu_square or identity, got 'tanh'; choose one"):
        kernels.gdpa(x[0], x, x, layout, scale=1.0, activation="tanh", backend=backend)


def test_values_that_are_not_packed_are_refused():
    layout = layout_of([3, 5])
    flat = torch.randn(8, 1, 8, device=DEVICE)
    assert layout.num_slots == 10
    for run in (
        lambda: kernels.jagged_attention(flat, flat, flat, layout, backend="triton"),
        lambda: kernels.seed_attention(flat, flat, flat, layout, backend="triton"),
        lambda: kernels.gdpa(flat, flat, flat, layout, scale=1.0, backend="triton"),
        lambda: kernels.jagged_pool(flat[:, 0], layout, backend="triton"),
    ):
        with pytest.raises(ValueError, match="must have 10 slots, got 8; pack them"):
            run()


@pytest.mark.parametrize("lengths", [[3, 0, 70], [300, 250], [260, 260]], ids=str)
@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_inputs_may_be_parts_of_wider_tensors(lengths, backend):
    layout = layout_of(lengths)
    q, k, v = torch.randn(layout.num_slots, 2, 24, device=DEVICE).chunk(3, -1)
    seeds = torch.randn(2, 5, 16, device=DEVICE)[..., ::2].transpose(0, 1)
    keys = torch.randn(len(lengths), 2, 4, 16, device=DEVICE)[..., :8]

    def outcome(*inputs: Tensor) -> list[Tensor]:
        q, k, v, seeds, keys = inputs = tuple(x.detach().requires_grad_() for x in inputs)
        outs = [
            kernels.jagged_attention(q, k, v, layout, window=9, backend=backend),
            kernels.seed_attention(seeds, k, v, layout, backend=backend),
            kernels.gdpa(q, keys, keys, layout, scale=0.3, backend=backend),
            kernels.jagged_pool(q[:, 0], layout, backend=backend),
        ]
        total = sum(layout.unpack(o).square().sum() if len(o) == len(q) else o.sum() for o in outs)
        return [*outs, *torch.autograd.grad(total, inputs)]

    strided = (q, k, v, seeds, keys)
    whole = [x.contiguous() for x in strided]
    assert not any(x.is_contiguous() for x in strided)
    for got, want in zip(outcome(*strided), outcome(*whole), strict=True):
        torch.testing.assert_close(got, want)


def test_a_poisoned_row_stays_alone():
    layout = layout_of([3, 70, 2])
    q, k, v = (torch.randn(75, 1, 8, device=DEVICE) for _ in range(3))
    clean = layout.unpack(kernels.jagged_attention(*map(layout.pack, (q, k, v)), layout))
    for x in (q, k, v):
        x[3:73] = torch.nan
    packed = [layout.pack(x) for x in (q, k, v)]
    got = layout.unpack(kernels.jagged_attention(*packed, layout, backend="triton"))
    torch.testing.assert_close(got[:3], clean[:3])
    torch.testing.assert_close(got[73:], clean[73:])
    assert got[3:73].isnan().all()


def test_each_op_is_one_node_whose_fake_tells_the_truth():
    layout = layout_of([3, 0, 5])
    tiles = tiles_of(layout, attention_op.TILE).tensors()
    slots = layout.num_slots
    q, k, v = (torch.randn(slots, 1, 8, device=DEVICE, requires_grad=True) for _ in range(3))
    keys = torch.randn(3, 1, 4, 8, device=DEVICE, requires_grad=True)
    ops = torch.ops.headwater
    calls = [
        (ops.jagged_attention.default, (q, k, v, [], tiles + tiles, 0, 0)),
        (ops.seed_attention.default, (q[:2], k, v, tiles)),
        (ops.gdpa.default, (q, keys, keys, tiles, 0.5, [0])),
        (ops.jagged_pool.default, (q[:, 0], q[:, 0, 0].contiguous(), tiles, 2)),
    ]
    for op, arguments in calls:
        checks = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(op, arguments, test_utils=checks)
        real = described(op(*arguments))
        with FakeTensorMode() as mode:
            fake = described(op(*tree_map_only(Tensor, mode.from_tensor, arguments)))
        assert fake == real


def described(outputs: Tensor | tuple[Tensor, ...]) -> list[tuple[object, ...]]:
    each = (outputs,) if isinstance(outputs, Tensor) else outputs
    return [(tuple(x.shape), x.stride(), x.dtype, x.requires_grad) for x in each]


def test_the_choice_has_a_reason(monkeypatch):
    assert choose_backend("auto", "cpu") == ("eager", "tensors are on the CPU")
    with pytest.raises(ValueError, match="must be auto, eager or triton, got 'fast'"):
        choose_backend("fast")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    choose_backend.cache_clear()
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1 is not set; use backend='auto'"):
        choose_backend("triton", "cpu")
    choose_backend.cache_clear()
