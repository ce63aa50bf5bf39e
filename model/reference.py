"""Kunlun as its equations read: one row at a time, loops over heads and events, no batching.

Slow, and meant to be read and tested against. Each function takes the parameters of the fast
module of the same name, as `dict(module.named_parameters())`, in any floating type. Sections are
of Kunlun (arXiv 2602.10016) unless another paper is named. What the papers leave open and we
chose is marked [C].

Suffixes: N tokens, D model width, n summary tokens, T events of one tower, W tower width, K head
width, S seeds, Q pooled tokens, r rank, M trunk width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from model.config import EventType, FeatureSet, ModelConfig

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class EventRow:
    """One row's events of one type, oldest first: embedded attributes, gaps and ages (s)."""

    embedded_TX: Tensor
    gap_T: Tensor
    age_T: Tensor


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


# Kunlun, Algorithm 1


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


# The personalized feed-forward net


def summarize(x_ND: Tensor, w: Weights, config: ModelConfig) -> Tensor:
    """X_sum = (A X) * sigmoid((A X) G + g), A [n, N]; X is normed before [C]."""
    if config.summarize_norm:
        x_ND = layer_norm(x_ND, under(w, "norm"))
    mixed_nD = w["mix.weight"] @ x_ND
    return mixed_nD * torch.sigmoid(linear(mixed_nD, under(w, "gate")))


def weight_gen(
    x_sum_nD: Tensor, ad_X: Tensor, w: Weights, event: EventType
) -> tuple[Tensor, Tensor]:
    """Keys and values [N, W]: an MLP of each summary token, and rows straight from the ad [C]."""
    hidden = linear(x_sum_nD, under(w, "hidden"))
    kv_NX = linear(hidden * torch.sigmoid(hidden), under(w, "out"))
    if "short.weight" in w:
        short_X = linear(ad_X, under(w, "short"))
        kv_NX = torch.cat([kv_NX, short_X.reshape(-1, 2 * event.width)])
    return kv_NX[:, : event.width], kv_NX[:, event.width :]


def pffn(
    s_TW: Tensor, x_sum_nD: Tensor, ad_X: Tensor, w: Weights, event: EventType, config: ModelConfig
) -> Tensor:
    """S~ = GDPA(Norm(S), WeightGen(X_sum)) + S."""
    k_NW, v_NW = weight_gen(x_sum_nD, ad_X, under(w, "generate"), event)
    return s_TW + gdpa(layer_norm(s_TW, under(w, "norm")), k_NW, v_NW, w, event, config)


def gdpa(
    s_TW: Tensor, k_NW: Tensor, v_NW: Tensor, w: Weights, event: EventType, config: ModelConfig
) -> Tensor:
    """[O_1 .. O_H] W_O with O_h = Act_h(Q_h K_h^T / tau) V_h, Q_h = S W_Q^h; never a softmax."""
    names = config.gdpa_activations
    outputs = []
    for h, at in enumerate(heads_of(event.width, event.heads)):
        q_TK, k_NK, v_NK = (s_TW @ w["query.weight"].T)[:, at], k_NW[:, at], v_NW[:, at]
        if config.qk_norm:  # [C]
            q_TK, k_NK = unit(q_TK) * w["gain"][h], unit(k_NK)
        score_TN = q_TK @ k_NK.T / tau(event, config)
        outputs.append(activate(score_TN, names[h % len(names)]) @ v_NK)
    return torch.cat(outputs, dim=1) @ w["out.weight"].T


def tau(event: EventType, config: ModelConfig) -> float:
    """A constant: sqrt(K), the longest sequence that is configured, or a number [C]."""
    if config.gdpa_tau == "max_len":
        return event.max_len
    if config.gdpa_tau == "sqrt_k" or (config.gdpa_tau == "auto" and not config.qk_norm):
        return (event.width / event.heads) ** 0.5
    return 1.0 if isinstance(config.gdpa_tau, str) else config.gdpa_tau


def activate(x: Tensor, name: str) -> Tensor:
    """Act(x); every Act(0) = 0."""
    return {
        "gelu": lambda: x * (1 + torch.erf(x / 2**0.5)) / 2,
        "silu": lambda: x * torch.sigmoid(x),
        "relu": lambda: x * (x > 0),
        "relu_square": lambda: x * x * (x > 0),
        "identity": lambda: x,
    }[name]()


# Pooling


def pool(s_TW: Tensor, w: Weights, event: EventType, config: ModelConfig) -> Tensor:
    """H = HSP(S~), or PMA, the ablation."""
    if config.pooling == "pma":
        return pma(s_TW, w, event)
    z_SW = seed_attention(s_TW, under(w, "attend"), event.heads)
    v = under(w, "compress")
    if config.sumkron_rank == 0:
        h_QW = v["rows_QS"] @ z_SW
        return h_QW @ v["columns.weight"].T if "columns.weight" in v else h_QW
    return sum_kron_linear(z_SW, v, config.sumkron_rank)


def pma(s_TW: Tensor, w: Weights, event: EventType) -> Tensor:
    """Pooling by attention of Q seeds (arXiv 1810.00825, section 3.2), to the model's width."""
    return seed_attention(s_TW, under(w, "attend"), event.heads) @ w["out.weight"].T


def seed_attention(s_TW: Tensor, w: Weights, heads: int) -> Tensor:
    """Z = MHA(Norm(E), Norm(S), Norm(S)) with softmax; an empty sequence gives zeros [C]."""
    e_SW = layer_norm(w["seeds_SW"], under(w, "seed_norm"))
    if len(s_TW) == 0:
        return torch.zeros_like(e_SW)
    s_TW, outputs = layer_norm(s_TW, under(w, "norm")), []
    for h, at in enumerate(heads_of(e_SW.shape[1], heads)):
        q_SK = (e_SW @ w["query.weight"].T)[:, at]
        k_TK, v_TK = s_TW @ w["key_HKW"][h].T, s_TW @ w["value_HWK"][h]
        score_ST = q_SK @ k_TK.T / q_SK.shape[1] ** 0.5
        outputs.append(score_ST.softmax(-1) @ v_TK)
    return torch.cat(outputs, dim=1)


def sum_kron_linear(z_SW: Tensor, w: Weights, rank: int) -> Tensor:
    """H = sum_i A_i^T Z W_i, i = 1..rank: [S, W] -> [Q, D]."""
    width = z_SW.shape[1]
    terms = []
    for i in range(rank):
        a_QS, w_WD = w["rows_XS"][i::rank], w["columns.weight"].T[i * width : (i + 1) * width]
        terms.append(a_QS @ z_SW @ w_WD)
    return torch.stack(terms).sum(0)


# Self-attention


def rote(events: EventRow, num_pairs: int, config: ModelConfig) -> Tensor | None:
    """Angles t theta_r + tau_t phi_r, tau_t = log(1 + dt_t / tau_scale); phi = theta [C]."""
    if config.rote == "none":
        return None
    phi_base = config.rote_phi_base or config.rote_theta_base
    dt_T = events.gap_T if config.rote == "gap" else events.age_T
    angle_TR = dt_T.new_zeros(len(dt_T), num_pairs)
    for t, dt in enumerate(dt_T):
        for r in range(num_pairs):
            theta, phi = (b ** (-r / num_pairs) for b in (config.rote_theta_base, phi_base))
            angle_TR[t, r] = t * theta + torch.log1p(dt / config.rote_tau_s) * phi
    return angle_TR


def rotate(x_TK: Tensor, angle_TR: Tensor | None) -> Tensor:
    """Turn pair r, (x[2r], x[2r+1]), by angle r."""
    if angle_TR is None:
        return x_TK
    a, b, cos, sin = x_TK[:, 0::2], x_TK[:, 1::2], angle_TR.cos(), angle_TR.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=2).reshape(x_TK.shape)


def sees(i: int, j: int, event: EventType, config: ModelConfig) -> bool:
    """Whether event i may read event j: all, |i - j| <= w, or the same diagonal block."""
    if config.attention == "window":
        return abs(i - j) <= event.window
    if config.attention == "block":
        return i // config.attention_block == j // config.attention_block
    return True


def self_attention(
    s_TW: Tensor, angle_TR: Tensor | None, w: Weights, event: EventType, config: ModelConfig
) -> Tensor:
    """S + MHA(Norm(S)) with softmax and rotary time, over the events that each may see."""
    at_T = range(len(s_TW))
    seen = [[sees(i, j, event, config) for j in at_T] for i in at_T]
    hidden_TT = ~torch.tensor(seen, dtype=torch.bool).reshape(len(s_TW), len(s_TW))
    normed_TW, outputs = layer_norm(s_TW, under(w, "norm")), []
    q_weight, k_weight = w["query_key.weight"].chunk(2)
    for at in heads_of(event.width, event.heads):
        q_TK = rotate((normed_TW @ q_weight.T)[:, at], angle_TR)
        k_TK = rotate((normed_TW @ k_weight.T)[:, at], angle_TR)
        v_TK = (normed_TW @ w["value.weight"].T)[:, at]
        score_TT = (q_TK @ k_TK.T / q_TK.shape[1] ** 0.5).masked_fill(hidden_TT, -torch.inf)
        outputs.append(score_TT.softmax(-1) @ v_TK)
    return s_TW + torch.cat(outputs, dim=1) @ w["out.weight"].T


# Global interaction


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
    """LN(concat(FMB, LCB) + X), with X compressed to as many tokens (arXiv 2403.02545, 3.3-3.6)."""
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
    x_ND, h_QD = kunlun(x_ND, towers, ad_X, user, under(w, "kunlun"), features, config)
    read = [x_ND.flatten(), row.dense_C]
    if config.heads_read == "x_and_h":
        read.insert(1, h_QD.flatten())
    return heads(torch.cat(read), row.surface, under(w, "heads"), config)


def entry(events: EventRow, event: EventType, w: Weights, config: ModelConfig) -> Tower:
    """Attributes' embeddings and log times [C] of each event, projected to the tower's width."""
    times_T2 = torch.stack([events.gap_T, events.age_T], dim=1)
    times_T2 = 0.2 * torch.log1p(times_T2 / 60)
    state_TW = linear(torch.cat([events.embedded_TX, times_T2], dim=1), under(w, "project"))
    return Tower(state_TW, rote(events, event.width // event.heads // 2, config))


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


# Notation


def under(w: Weights, prefix: str) -> dict[str, Tensor]:
    """The parameters of a part: names that begin with `prefix` and a dot, without them."""
    return {k[len(prefix) + 1 :]: v for k, v in w.items() if k.startswith(f"{prefix}.")}


def heads_of(width: int, heads: int) -> list[slice]:
    """The columns of each head."""
    size = width // heads
    return [slice(h * size, (h + 1) * size) for h in range(heads)]


def linear(x: Tensor, w: Weights) -> Tensor:
    """x W^T + b."""
    return x @ w["weight"].T + w["bias"]


def layer_norm(x: Tensor, w: Weights) -> Tensor:
    """(x - mean) / sqrt(variance + 1e-5) * gain + bias, along the last axis."""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + 1e-5) * w["weight"] + w["bias"]


def unit(x: Tensor) -> Tensor:
    """x / |x| along the last axis."""
    return x / x.square().sum(-1, keepdim=True).sqrt().clamp_min(1e-12)
