"""Every op against its reference: outputs and gradients, with empty and unequal rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

import kernels
from kernels.attention import reference as attention
from kernels.gdpa import reference as gdpa_reference
from kernels.jagged_pool import reference as pool_reference
from kernels.pooling import reference as pooling

LENGTHS = {
    "mixed": [3, 0, 7, 1, 0, 5],
    "equal": [4, 4, 4],
    "empty": [0, 0],
    "no-rows": [],
    "skewed": [1] * 40 + [150],
}
ids = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
torch.manual_seed(0)


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def many_buckets(monkeypatch: pytest.MonkeyPatch, lengths: list[int]) -> kernels.Layout:
    monkeypatch.setattr("kernels.layout.BUCKET_COST", 1)
    return kernels.arrange(torch.tensor(lengths, dtype=torch.int64))


def same(got: Tensor, want: Tensor, inputs: list[Tensor]) -> None:
    assert got.shape == want.shape
    torch.testing.assert_close(got, want)
    if want.numel() == 0 or not (got.requires_grad and want.requires_grad):
        assert not got.any()  # nothing to pool: zeros, which depend on no input
        return
    seed = torch.randn_like(want)
    got_grads = torch.autograd.grad((got * seed).sum(), inputs, allow_unused=True)
    want_grads = torch.autograd.grad((want * seed).sum(), inputs, allow_unused=True)
    for g, w, x in zip(got_grads, want_grads, inputs, strict=True):
        zero = torch.zeros_like(x)
        torch.testing.assert_close(zero if g is None else g, zero if w is None else w)


@ids
def test_pack_and_unpack_are_inverse(lengths, monkeypatch):
    layout = many_buckets(monkeypatch, lengths)
    x = rand(sum(lengths), 3)
    same(layout.unpack(layout.pack(x) * 1.0), x * 1.0, [x])
    y = rand(len(lengths), 2)
    kept = (layout.lengths_B > 0).double()[:, None]
    same(layout.put_rows(layout.take_rows(y)), y * kept, [y])


def test_slots_follow_the_events_and_not_the_longest_row():
    lengths = torch.tensor([1] * 4_000 + [1_000] * 4, dtype=torch.int64)
    assert kernels.arrange(lengths).num_slots < 1.5 * int(lengths.sum())
    assert kernels.arrange(torch.full((64,), 9)).slot_E is None


@ids
@pytest.mark.parametrize("window", [None, 2, 70])
def test_attention(lengths, window, monkeypatch):
    layout = many_buckets(monkeypatch, lengths)
    q, k, v = inputs = [rand(sum(lengths), 2, 4) for _ in range(3)]
    packed = [layout.pack(x) for x in inputs]
    got = layout.unpack(kernels.jagged_attention(*packed, layout, window=window))
    want = attention.jagged_attention(q, k, v, layout.lengths_B, window=window)
    same(got, want, inputs)


@ids
@pytest.mark.parametrize("block", [1, 3, 64, 140])
def test_block_attention(lengths, block, monkeypatch):
    layout = many_buckets(monkeypatch, lengths)
    q, k, v = inputs = [rand(sum(lengths), 2, 4) for _ in range(3)]
    packed = [layout.pack(x) for x in inputs]
    got = layout.unpack(kernels.jagged_attention(*packed, layout, block=block))
    want = attention.jagged_attention(q, k, v, layout.lengths_B, block=block)
    same(got, want, inputs)


@pytest.mark.parametrize(("reach", "share"), [({"block": 64}, 64 / 4096), ({"window": 50}, 0.06)])
def test_window_and_block_multiply_few_pairs(reach, share):
    layout, shape = kernels.arrange(torch.tensor([4096])), (4096, 1, 2)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # not counted by itself
    count = {flash: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)}
    with FlopCounterMode(display=False, custom_mapping=count) as counter, torch.no_grad():
        kernels.jagged_attention(*(torch.zeros(shape) for _ in range(3)), layout, **reach)
    assert 0 < counter.get_total_flops() <= share * 4 * 2 * 4096**2


def test_window_and_block_exclude_each_other():
    layout, x = kernels.arrange(torch.tensor([1])), rand(1, 1, 2)
    with pytest.raises(ValueError, match="window=2 and block=3; drop one"):
        kernels.jagged_attention(x, x, x, layout, window=2, block=3)


def test_rotation():
    x, angle = rand(6, 2, 4), rand(6, 2)
    same(kernels.rotate(x, angle), attention.rotate(x, angle), [x, angle])
    norms = kernels.rotate(x, angle).norm(dim=-1)
    torch.testing.assert_close(norms, x.norm(dim=-1))


@ids
@pytest.mark.parametrize("activation", ["gelu", "silu", "relu", "relu_square", "identity"])
@pytest.mark.parametrize("heads", [1, 2])
def test_gdpa(lengths, activation, heads, monkeypatch):
    layout = many_buckets(monkeypatch, lengths)
    q, k, v = rand(sum(lengths), heads, 4), *(rand(len(lengths), heads, 3, 4) for _ in range(2))
    got = kernels.gdpa(layout.pack(q), k, v, layout, scale=0.5, activation=activation)
    want = gdpa_reference.gdpa(q, k, v, layout.lengths_B, scale=0.5, activation=activation)
    same(layout.unpack(got), want, [q, k, v])


@ids
@pytest.mark.parametrize("names", [("relu_square", "identity"), ("silu", "gelu", "relu", "gelu")])
def test_gdpa_heads_take_activations_in_turn(lengths, names, monkeypatch):
    layout = many_buckets(monkeypatch, lengths)
    q, k, v = rand(sum(lengths), 4, 2), *(rand(len(lengths), 4, 3, 2) for _ in range(2))
    got = kernels.gdpa(layout.pack(q), k, v, layout, scale=0.5, activation=names)
    want = gdpa_reference.gdpa(q, k, v, layout.lengths_B, scale=0.5, activation=names)
    same(layout.unpack(got), want, [q, k, v])


@ids
def test_seed_attention(lengths, monkeypatch):
    layout = many_buckets(monkeypatch, lengths)
    seeds, k, v = rand(5, 2, 4), rand(sum(lengths), 2, 4), rand(sum(lengths), 2, 4)
    got = kernels.seed_attention(seeds, layout.pack(k), layout.pack(v), layout)
    same(got, pooling.seed_attention(seeds, k, v, layout.lengths_B), [seeds, k, v])


@ids
@pytest.mark.parametrize("mode", ["mean", "sum", "softmax"])
def test_pool(lengths, mode, monkeypatch):
    layout = many_buckets(monkeypatch, lengths)
    x, logits = rand(sum(lengths), 3), rand(sum(lengths))
    weights = logits if mode == "softmax" else None
    packed = None if weights is None else layout.pack(weights)
    got = kernels.jagged_pool(layout.pack(x), layout, mode=mode, logits_P=packed)
    want = pool_reference.jagged_pool(x, layout.lengths_B, mode=mode, logits_E=weights)
    same(got, want, [x, logits])


def test_references_pass_gradcheck():
    lengths = torch.tensor([2, 0, 1])
    e = [rand(3, 1, 2) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *x: attention.jagged_attention(*x, lengths, window=1), e)
    kv = [rand(3, 1, 2, 2) for _ in range(2)]
    assert torch.autograd.gradcheck(
        lambda q, k, v: gdpa_reference.gdpa(q, k, v, lengths, scale=0.7), [e[0], *kv]
    )
    assert torch.autograd.gradcheck(
        lambda q, k, v: pooling.seed_attention(q, k, v, lengths), [rand(2, 1, 2), e[1], e[2]]
    )


@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_an_unknown_way_to_pool_is_refused_alike(backend):
    layout = kernels.arrange(torch.tensor([2]))
    with pytest.raises(ValueError, match="mode must be mean, sum or softmax, got 'max'"):
        kernels.jagged_pool(torch.ones(2, 3), layout, mode="max", backend=backend)
