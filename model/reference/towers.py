"""What happens within one row's tower: PFFN, pooling, self-attention (arXiv 2602.10016).

Suffixes: N keys or context tokens, D model width, n summary tokens, T events, W tower width,
K head width, R = K / 2, S seeds, Q pooled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model.config import EventType, ModelConfig
from model.reference.notation import Weights, activate, heads_of, layer_norm, linear, under, unit


@dataclass(frozen=True, slots=True)
class EventRow:
    """One row's events of one type, oldest first: embedded attributes, gaps and ages (s)."""

    embedded_TX: Tensor
    gap_T: Tensor
    age_T: Tensor


# The personalized feed-forward net: generalized dot-product attention (GDPA)


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


# Hierarchical seed pooling (HSP) and SumKronLinear


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


# Sliding window attention, and rotary temporal embedding (ROTE)


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
