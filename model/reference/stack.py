"""The stack over all towers of one row, and what lies around it (arXiv 2602.10016).

Suffixes: F sparse features, C dense columns, N context tokens, D model width, T events, W tower
width, Q pooled tokens, M trunk width, K objectives, L head width, r rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from model.config import EventType, FeatureSet, ModelConfig
from model.reference.notation import Weights, layer_norm, linear, normed, under
from model.reference.towers import EventRow, pffn, pma, pool, rote, self_attention, summarize


@dataclass(frozen=True, slots=True)
class Row:
    """One row at the model's input: embedded features, numbers, events, surface index."""

    embedded_FD: Tensor
    dense_C: Tensor
    events: Mapping[str, EventRow]
    surface: int


@dataclass(slots=True)
class Tower:
    """One event type's sequence S, its rotation angles, and what was last pooled from it."""

    state_TW: Tensor
    angle_TR: Tensor | None
    h_QD: Tensor | None = None


# Kunlun: Algorithm 1, CompSkip, event-level personalization


def kunlun(
    x_ND: Tensor,
    towers: dict[str, Tower],
    ad_X: Tensor,
    user_ND: Tensor | None,
    w: Weights,
    features: FeatureSet,
    config: ModelConfig,
) -> tuple[Tensor, Tensor]:
    """X of the last layer and H of all towers (Algorithm 1)."""
    for layer in range(config.layers):
        v = under(w, f"layers.{layer}")
        x_sum_nD = None
        for event in features.events:
            skip_pffn, skip_hsp, _ = skips(layer, event, config)
            tower = towers[event.name]
            if not skip_pffn:
                if x_sum_nD is None:
                    read_ND = x_ND if user_ND is None else user_ND
                    x_sum_nD = summarize(read_ND, under(v, "summarize"), config)
                u = under(v, f"feed_forward.{event.name}")
                tower.state_TW = pffn(tower.state_TW, x_sum_nD, ad_X, u, event, config)
            if not skip_hsp:
                tower.h_QD = pool(tower.state_TW, under(v, f"pool.{event.name}"), event, config)
        h_QD = all_pooled(towers, x_ND)
        x_ND = global_interaction(x_ND, h_QD, layer, under(v, "interact"), config)
        for event in features.events:
            tower, last = towers[event.name], layer == (event.layers or config.layers) - 1
            if not skips(layer, event, config)[2]:
                u = under(v, f"attention.{event.name}")
                tower.state_TW = self_attention(tower.state_TW, tower.angle_TR, u, event, config)
                if last:  # [C] nobody would read this attention: pool once more
                    tower.h_QD = pma(tower.state_TW, under(w, f"read_out.{event.name}"), event)
    return x_ND, all_pooled(towers, x_ND)


def skips(layer: int, event: EventType, config: ModelConfig) -> tuple[bool, bool, bool]:
    """(skip PFFN, skip HSP, skip self-attention): CompSkip, and towers that end early."""
    num_layers = event.layers or config.layers
    over = layer >= num_layers
    even, odd = config.compskip and layer % 2 == 0, config.compskip and layer % 2 == 1
    unread = layer == num_layers - 1 and config.last_attention == "skip"
    return over or odd or config.pffn == "none", over or odd, over or even or unread


def all_pooled(towers: dict[str, Tower], x_ND: Tensor) -> Tensor:
    """H: the pooled tokens of all towers."""
    return torch.cat([x_ND[:0], *(t.h_QD for t in towers.values() if t.h_QD is not None)])


# Global interaction: mixture of Wukong experts


def global_interaction(
    x_ND: Tensor, h_QD: Tensor, layer: int, w: Weights, config: ModelConfig
) -> Tensor:
    """Tokens of [X | H] over M Wukong experts by a fixed partition; outputs are concatenated."""
    both_ND = torch.cat([x_ND, h_QD])
    experts, kind = min(config.wukong_experts, len(x_ND)), config.partition
    if kind == "alternate":  # [C]
        kind = "interleaved" if layer % 2 == 0 else "contiguous"
    outputs, begin = [], 0
    for m in range(experts):
        size, num_out = (n // experts + (m < n % experts) for n in (len(both_ND), len(x_ND)))
        mine = both_ND[m::experts] if kind == "interleaved" else both_ND[begin : begin + size]
        begin += size
        outputs.append(wukong(mine, num_out, under(w, f"experts.{m}"), config))
    return torch.cat(outputs)


def wukong(x_ND: Tensor, num_out: int, w: Weights, config: ModelConfig) -> Tensor:
    """LN(concat(FMB, LCB) + X), X compressed to as many tokens (arXiv 2403.02545, its layer)."""
    v = under(w, "pairs")
    compressed_X = (v["compress.weight_MN"] @ x_ND).flatten()
    y_Nr = linear(compressed_X, under(v, "attend")).reshape(len(x_ND), config.fm_rank)
    pairs_X = layer_norm((x_ND @ x_ND.T @ y_Nr).flatten(), under(v, "norm"))
    hidden = linear(pairs_X, under(v, "mlp.0"))
    out_X = linear(hidden * torch.sigmoid(hidden), under(v, "mlp.2"))
    blocks = [out_X.reshape(-1, x_ND.shape[1])]
    if len(blocks[0]) < num_out:
        blocks.append(w["linear.weight_MN"] @ x_ND)
    return layer_norm(torch.cat(blocks) + w["residual.weight_MN"] @ x_ND, under(w, "norm"))


# Around the stack: inputs, surface experts, task heads


def foundation(row: Row, w: Weights, features: FeatureSet, config: ModelConfig) -> Tensor:
    """Logits [K] of a row, from its embedded features and events."""
    x_ND = row.embedded_FD
    if "to_width.weight" in w:
        x_ND = x_ND @ w["to_width.weight"].T
    scopes = [f.scope for f in features.sparse]
    ad_X = x_ND[[i for i, s in enumerate(scopes) if s == "ad"]].flatten()
    user_ND = x_ND[[i for i, s in enumerate(scopes) if s != "ad"]]
    if len(row.dense_C):
        x_ND = torch.cat([x_ND, linear(row.dense_C, under(w, "dense_token"))[None]])
    towers = {
        e.name: entry(row.events[e.name], e, under(w, f"entry.{e.name}"), config)
        for e in features.events
    }
    user = user_ND if config.gdpa_context == "user" else None
    x_ND, h_QD = kunlun(x_ND, towers, ad_X, user, under(w, "trunk"), features, config)
    read = [x_ND.flatten(), row.dense_C]
    if config.heads_read == "x_and_h":
        read.insert(1, h_QD.flatten())
    if config.ad_products and len(ad_X):
        for e in features.events:
            v = under(w, f"products.{e.name}")
            read.insert(-1, ad_products(row.events[e.name], ad_X, v, e))
    return heads(torch.cat(read), row.surface, under(w, "heads"), config)


def entry(events: EventRow, event: EventType, w: Weights, config: ModelConfig) -> Tower:
    """Attributes' embeddings and log times [C] of each event, projected to the tower's width."""
    times_T2 = torch.stack([events.gap_T, events.age_T], dim=1)
    times_T2 = 0.2 * torch.log1p(times_T2 / 60)
    state_TW = linear(torch.cat([events.embedded_TX, times_T2], dim=1), under(w, "project"))
    return Tower(state_TW, rote(events, event.width // event.heads // 2, config))


def ad_products(events: EventRow, ad_X: Tensor, w: Weights, event: EventType) -> Tensor:
    """(P [z_1 .. z_K]) * (C ad), z_k = sum_e exp(-age_e lambda_k) v_e / sqrt(max_len) [C]."""
    attributes = len(event.attributes)
    num_v = w["mix.weight"].shape[1] // len(w["log_rate_K"])
    z_KV = [torch.zeros(num_v, dtype=ad_X.dtype) for _ in w["log_rate_K"]]
    for embedded_X, age in zip(events.embedded_TX, events.age_T, strict=True):
        v = [normed(b_D) for b_D in embedded_X.chunk(attributes)]
        if attributes > 1:
            v.append(torch.stack(v).prod(0))
        for k, log_rate in enumerate(w["log_rate_K"]):
            z_KV[k] = z_KV[k] + torch.exp(-age / 86_400 * log_rate.exp()) * torch.cat(v)
    z_X = torch.cat(z_KV) / event.max_len**0.5
    return linear(z_X, under(w, "mix")) * linear(normed(ad_X), under(w, "ad"))


def surface_experts(x_M: Tensor, surface: int, w: Weights, rank: int) -> Tensor:
    """x (1 + gate_z) + U_z V_z x of surface z [C]."""
    mine = slice(surface * rank, (surface + 1) * rank)
    low_r = w["down.weight"][mine] @ x_M
    return x_M * (1 + w["gate.weight"][:, surface]) + w["up.weight"][:, mine] @ low_r


def heads(x_X: Tensor, surface: int, w: Weights, config: ModelConfig) -> Tensor:
    """Logits [K]: an MLP per objective on a shared trunk, and a bias per surface [C]."""
    trunk = linear(x_X, under(w, "trunk"))
    trunk_M = trunk * torch.sigmoid(trunk)
    if config.surface_experts:
        trunk_M = surface_experts(trunk_M, surface, under(w, "experts"), config.adapter_rank)
    hidden = linear(trunk_M, under(w, "hidden"))
    hidden_KL = (hidden * torch.sigmoid(hidden)).reshape(w["out_KL"].shape)
    logits = [out_L @ hidden_L for out_L, hidden_L in zip(w["out_KL"], hidden_KL, strict=True)]
    return torch.stack(logits) + w["bias_ZK"][surface]
