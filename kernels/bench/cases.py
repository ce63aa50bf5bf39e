"""What is measured: each op at each shape, and the forms of it that run side by side.

A contestant has its inputs ready-made in its own form: ours packed in a `Layout`, the padded ones
as [B, H, T, K] with an additive mask. One run is the output and the gradients of all inputs.

Suffixes: B rows, T longest row, E events, H heads, K head width, N keys per row, S seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from kernels.bench import flex

HEADS, WIDTH = 2, 32
WINDOW, BLOCK, KEYS, SEEDS = 128, 64, 64, 32


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """`outcome` is output and gradients in a form of its own; `events` brings them to flat rows."""

    compute: Callable[..., Tensor]
    inputs: list[Tensor]
    pull: Tensor
    events: Callable[[list[Tensor]], list[Tensor]]

    def outcome(self) -> list[Tensor]:
        """The output, then the gradient of every input."""
        out = self.compute(*self.inputs)
        return [out.detach(), *torch.autograd.grad(out, self.inputs, self.pull)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One op at one shape; FLOPs and bytes are what forward and backward need at least."""

    op: str
    num_rows: int
    longest: int
    fill: float
    flops: float
    num_bytes: float
    contestants: dict[str, Callable[[], Contestant]] = field(repr=False)

    @property
    def shape(self) -> str:
        """Rows and longest row."""
        return f"B{self.num_rows}-T{self.longest}"


def lengths_of(num_rows: int, longest: int, fill: float) -> Tensor:
    """Lengths longest * u^(1 / fill - 1), of mean fill * longest or so; one is the longest."""
    u_B = (torch.arange(num_rows, dtype=torch.float64) + 0.5) / num_rows
    length_B = (longest * u_B ** (1 / fill - 1)).round().long()
    length_B[-1] = longest
    return length_B[torch.randperm(num_rows, generator=torch.Generator().manual_seed(0))]


@dataclass(frozen=True)
class Rows:
    """Rows of one shape on a device, in both forms."""

    lengths_B: Tensor
    longest: int
    device: str
    dtype: torch.dtype

    @property
    def layout(self) -> kernels.Layout:
        """Ours."""
        return kernels.arrange(self.lengths_B).to(self.device)

    @property
    def valid_BT(self) -> Tensor:
        """Where the padded form holds an event."""
        return (torch.arange(self.longest) < self.lengths_B[:, None]).to(self.device)

    def rand(self, *shape: int) -> Tensor:
        """Random numbers, the same for the same shape."""
        source = torch.Generator().manual_seed(len(shape))
        return torch.randn(*shape, generator=source).to(self.device, self.dtype)

    def events(self, count: int) -> list[Tensor]:
        """Random flat [E, H, K] tensors."""
        total = int(self.lengths_B.sum())
        return list(self.rand(count, total, HEADS, WIDTH).unbind())

    def padded(self, x_EHK: Tensor) -> Tensor:
        """[B, H, T, K] with zeros where no event is."""
        x_BTHK = x_EHK.new_zeros(len(self.lengths_B), self.longest, *x_EHK.shape[1:])
        x_BTHK[self.valid_BT] = x_EHK
        return x_BTHK.transpose(1, 2).contiguous()

    def flat(self, x_BHTK: Tensor) -> Tensor:
        """Inverse of `padded`."""
        return x_BHTK.transpose(1, 2)[self.valid_BT]

    def bias(self, seen_BTT: Tensor) -> Tensor:
        """Additive [B, 1, T, T] mask; free slots see everything, so that none is empty."""
        seen_BTT = seen_BTT | ~self.valid_BT[:, :, None]
        bias_BTT = torch.zeros(seen_BTT.shape, dtype=self.dtype, device=self.device)
        return bias_BTT.masked_fill_(~seen_BTT, float("-inf"))[:, None]


def leaves(tensors: list[Tensor]) -> list[Tensor]:
    """Copies that take gradients."""
    return [x.detach().clone().requires_grad_() for x in tensors]


def attention_case(rows: Rows, op: str, fill: float) -> Case:
    """`op` is "window", "block" or "full" attention."""
    window, block = WINDOW if op == "window" else None, BLOCK if op == "block" else None
    *qkv, pull = rows.events(4)
    layout = rows.layout
    equal = bool((rows.lengths_B == rows.longest).all())
    contestants: dict[str, Callable[[], Contestant]] = {
        "ours": lambda: Contestant(
            compute=lambda q, k, v: kernels.jagged_attention(
                q, k, v, layout, window=window, block=block
            ),
            inputs=leaves([layout.pack(x) for x in qkv]),
            pull=layout.pack(pull),
            events=lambda outcome: [layout.unpack(x) for x in outcome],
        ),
        "padded": lambda: Contestant(
            compute=partial(F.scaled_dot_product_attention, attn_mask=_bias(rows, op)),
            inputs=leaves([rows.padded(x) for x in qkv]),
            pull=rows.padded(pull),
            events=lambda outcome: [rows.flat(x) for x in outcome],
        ),
    }
    if op == "block" and equal and rows.longest % BLOCK == 0:
        contestants["blocks as rows"] = lambda: Contestant(
            compute=F.scaled_dot_product_attention,
            inputs=leaves([_as_rows(x) for x in qkv]),
            pull=_as_rows(pull),
            events=lambda outcome: [x.transpose(1, 2).flatten(0, 1) for x in outcome],
        )
    if rows.device == "cuda":
        contestants["flex"] = lambda: Contestant(
            compute=flex.attention(rows.lengths_B, window=window, block=block),
            inputs=leaves([x.transpose(0, 1)[None].contiguous() for x in qkv]),
            pull=pull.transpose(0, 1)[None].contiguous(),
            events=lambda outcome: [x[0].transpose(0, 1) for x in outcome],
        )
    total = float(rows.lengths_B.sum())
    return Case(
        op=f"{op} attention",
        num_rows=len(rows.lengths_B),
        longest=rows.longest,
        fill=fill,
        flops=14.0 * WIDTH * HEADS * _pairs(rows.lengths_B, op),
        num_bytes=12.0 * total * HEADS * WIDTH * rows.dtype.itemsize,
        contestants=contestants,
    )


def _bias(rows: Rows, op: str) -> Tensor | None:
    """The padded form's mask; none where nothing is hidden."""
    at_T = torch.arange(rows.longest, device=rows.device)
    if op == "window":
        seen_TT = (at_T[:, None] - at_T).abs() <= WINDOW
    elif op == "block":
        seen_TT = at_T[:, None] // BLOCK == at_T // BLOCK
    elif rows.valid_BT.all():
        return None
    else:
        seen_TT = torch.ones_like(at_T, dtype=torch.bool).expand(rows.longest, -1)
    return rows.bias(seen_TT & rows.valid_BT[:, None])


def _as_rows(x_EHK: Tensor) -> Tensor:
    return x_EHK.view(-1, BLOCK, *x_EHK.shape[1:]).transpose(1, 2)


def _pairs(lengths_B: Tensor, op: str) -> float:
    """Pairs of a query and a key it sees."""
    n_B = lengths_B.double()
    if op == "block":
        whole_B, rest_B = n_B // BLOCK, n_B % BLOCK
        return float((whole_B * BLOCK**2 + rest_B**2).sum())
    if op == "window":
        cut_B = (n_B - 1 - WINDOW).clamp_min(0)
        return float((n_B**2 - cut_B * (cut_B + 1)).sum())
    return float((n_B**2).sum())


def gdpa_case(rows: Rows, fill: float) -> Case:
    """Queries against the row's own keys and values, under GELU."""
    scale, layout = WIDTH**-0.5, rows.layout
    q, pull = rows.events(2)
    kv = list(rows.rand(2, len(rows.lengths_B), HEADS, KEYS, WIDTH).unbind())

    def product(q_BHTK: Tensor, k_BHNK: Tensor, v_BHNK: Tensor) -> Tensor:
        score_BHTN = torch.matmul(q_BHTK, (k_BHNK * scale).transpose(-1, -2))
        return torch.matmul(F.gelu(score_BHTN), v_BHNK)

    def flat_first(change: Callable[[Tensor], Tensor]) -> Callable[[list[Tensor]], list[Tensor]]:
        return lambda outcome: [change(outcome[0]), change(outcome[1]), *outcome[2:]]

    total = float(rows.lengths_B.sum())
    numbers = 5 * total * HEADS * WIDTH + 6 * len(rows.lengths_B) * HEADS * KEYS * WIDTH
    return Case(
        op="gdpa",
        num_rows=len(rows.lengths_B),
        longest=rows.longest,
        fill=fill,
        flops=12.0 * total * HEADS * WIDTH * KEYS,
        num_bytes=numbers * rows.dtype.itemsize,
        contestants={
            "ours": lambda: Contestant(
                compute=lambda q, k, v: kernels.gdpa(q, k, v, layout, scale=scale),
                inputs=leaves([layout.pack(q), *kv]),
                pull=layout.pack(pull),
                events=flat_first(layout.unpack),
            ),
            "padded": lambda: Contestant(
                compute=product,
                inputs=leaves([rows.padded(q), *kv]),
                pull=rows.padded(pull),
                events=flat_first(rows.flat),
            ),
        },
    )


def seed_case(rows: Rows, fill: float) -> Case:
    """Shared queries against each row's events."""
    layout, num_rows = rows.layout, len(rows.lengths_B)
    kv = rows.events(2)
    seeds_SHK, pull = rows.rand(SEEDS, HEADS, WIDTH), rows.rand(num_rows, SEEDS, HEADS, WIDTH)
    bias = None
    if not rows.valid_BT.all():
        seen_BT = rows.valid_BT | (rows.lengths_B == 0).to(rows.device)[:, None]
        bias = torch.zeros(seen_BT.shape, dtype=rows.dtype, device=rows.device)
        bias = bias.masked_fill_(~seen_BT, float("-inf"))[:, None, None]

    def padded(q_SHK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        q_BHSK = q_SHK.transpose(0, 1).expand(num_rows, -1, -1, -1)
        return F.scaled_dot_product_attention(q_BHSK, k_BHTK, v_BHTK, attn_mask=bias)

    total = float(rows.lengths_B.sum())
    return Case(
        op="seeds",
        num_rows=num_rows,
        longest=rows.longest,
        fill=fill,
        flops=12.0 * total * HEADS * WIDTH * SEEDS,
        num_bytes=6.0 * total * HEADS * WIDTH * rows.dtype.itemsize,
        contestants={
            "ours": lambda: Contestant(
                compute=lambda q, k, v: kernels.seed_attention(q, k, v, layout),
                inputs=leaves([seeds_SHK, *(layout.pack(x) for x in kv)]),
                pull=pull,
                events=lambda o: [o[0], o[1], *map(layout.unpack, o[2:])],
            ),
            "padded": lambda: Contestant(
                compute=padded,
                inputs=leaves([seeds_SHK, *(rows.padded(x) for x in kv)]),
                pull=pull.transpose(1, 2).contiguous(),
                events=lambda o: [o[0].transpose(1, 2), o[1], *map(rows.flat, o[2:])],
            ),
        },
    )
