"""The baselines' trunks row by row, as their papers' equations read; no layout, no batched op.

A reference takes the trunk's own parameters, `x_ND` of one row and its events: `{name: (state_TW,
angle_TR)}`, and gives (X, H, shallow), flat.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.attention.reference import rotate
from model.baselines.dcnv2 import DCNv2
from model.baselines.din import DIN, TargetAttention
from model.baselines.interformer import Gate, InterFormer, PersonalizedLinear, SequenceSummary
from model.baselines.wukong import MeanPooling, Wukong
from model.interaction import WukongLayer
from model.pooling import PlainPooling, SeedAttention
from model.sequence import SequenceAttention

Events = dict[str, tuple[Tensor, Tensor]]
Output = tuple[Tensor, Tensor, Tensor]


def dcnv2(trunk: DCNv2, x_ND: Tensor, ad: Tensor, events: Events) -> Output:
    flat = torch.cat([x_ND.flatten(), *(mean(s) for s, _ in events.values())])
    crossed, shallow = flat, None
    for layer in trunk.cross:
        crossed = flat * (layer.weight @ crossed + layer.bias) + crossed
        shallow = crossed if shallow is None else shallow
    return torch.cat([crossed, mlp(trunk.deep, flat)[-1]]), flat[:0], shallow


def din(trunk: DIN, x_ND: Tensor, ad: Tensor, events: Events) -> Output:
    read = [target_attention(trunk.attend[n], s, ad) for n, (s, _) in events.items()]
    hidden = mlp(trunk.deep, torch.cat([x_ND.flatten(), *read]))
    return hidden[-1], x_ND.flatten()[:0], hidden[0]


def wukong(trunk: Wukong, x_ND: Tensor, ad: Tensor, events: Events) -> Output:
    pooled = [pool(trunk.pool[name], s) for name, (s, _) in events.items()]
    states = [torch.cat([x_ND, *pooled])]
    for layer in trunk.layers:
        states.append(wukong_layer(layer, states[-1]))
    return states[-1].flatten(), x_ND.flatten()[:0], states[1].flatten()


def interformer(trunk: InterFormer, x_ND: Tensor, ad: Tensor, events: Events) -> Output:
    towers = {}
    for name, (state_TW, angle_TR) in events.items():
        cls = gate(trunk.cls.gate, trunk.cls.compress.weight_MN @ x_ND)
        before = F.linear(cls, trunk.enter[name].weight, trunk.enter[name].bias)
        angle = torch.cat([angle_TR.new_zeros(len(cls), angle_TR.shape[1]), angle_TR])
        towers[name] = torch.cat([before, state_TW]), angle
    shallow = None
    for layer, cross in zip(trunk.layers, trunk.cross, strict=False):
        found = [sequence_summary(cross[n], s) for n, (s, _) in towers.items()]
        next_ND = wukong_layer(layer.interact, torch.cat([x_ND, *found]))
        if towers:
            summarize = layer.summarize
            x_sum = gate(summarize.gate, summarize.compress.weight_MN @ x_ND)
        for name, (state, angle) in towers.items():
            state = personal(layer.feed_forward[name], state, x_sum)
            towers[name] = attention(layer.attention[name], state, angle), angle
        x_ND = next_ND
        shallow = x_ND if shallow is None else shallow
    last = [sequence_summary(trunk.cross[-1][n], s) for n, (s, _) in towers.items()]
    h = torch.cat(last) if last else x_ND[:0]
    return x_ND.flatten(), h.flatten(), shallow.flatten()


REFERENCES = {
    "dcnv2": dcnv2,
    "din": din,
    "wukong": wukong,
    "wukong_pma": wukong,
    "interformer": interformer,
}


def mean(state_TW: Tensor) -> Tensor:
    return state_TW.sum(0) / max(1, len(state_TW))


def mlp(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    hidden = []
    for linear, _ in layers:
        x = F.silu(linear.weight @ x + linear.bias)
        hidden.append(x)
    return hidden


def target_attention(unit: TargetAttention, state_TW: Tensor, ad: Tensor) -> Tensor:
    v = unit.query.weight @ ad + unit.query.bias
    total = torch.zeros_like(v)
    for s in state_TW:
        own = unit.own.weight @ torch.cat([s, s * v]) + unit.own.bias
        weight = unit.out.weight @ F.silu(own + unit.ad.weight @ v) + unit.out.bias
        total = total + weight * s
    return total


def pool(module: MeanPooling | PlainPooling, state_TW: Tensor) -> Tensor:
    if isinstance(module, MeanPooling):
        return (module.out.weight @ mean(state_TW)).view(-1, module.width)
    return seeds(module.attend, state_TW) @ module.out.weight.T


def seeds(module: SeedAttention, state_TW: Tensor) -> Tensor:
    """Z = MHA(Norm(E), Norm(S), Norm(S)); no events give zeros."""
    if not len(state_TW):
        return torch.zeros_like(module.seeds_SW)
    query = module.seed_norm(module.seeds_SW) @ module.query.weight.T
    state_TW, heads = module.norm(state_TW), []
    for head in range(module.heads):
        part = slice(head * module.head_width, (head + 1) * module.head_width)
        key, value = state_TW @ module.key_HKW[head].T, state_TW @ module.value_HWK[head]
        score = query[:, part] @ key.T / module.head_width**0.5
        heads.append(score.softmax(-1) @ value)
    return torch.cat(heads, dim=1)


def wukong_layer(layer: WukongLayer, x_ND: Tensor) -> Tensor:
    """LN(concat(MLP(LN(X X^T Y)), L X) + R X) with Y from a compressed X."""
    fm = layer.pairs
    y = fm.attend((fm.compress.weight_MN @ x_ND).flatten()).view(len(x_ND), fm.rank)
    pairs = fm.mlp(fm.norm(((x_ND @ x_ND.T) @ y).flatten())).view(-1, fm.width)
    linear = [] if layer.linear is None else [layer.linear.weight_MN @ x_ND]
    return layer.norm(torch.cat([pairs, *linear]) + layer.residual.weight_MN @ x_ND)


def gate(module: Gate, z: Tensor) -> Tensor:
    return torch.sigmoid(z * module.mlp(z))


def sequence_summary(module: SequenceSummary, state: Tensor) -> Tensor:
    """4 CLS tokens, 2 pooled ones, the latest event and the one before it."""
    if len(state) == 4:
        return state.new_zeros(8, module.out.weight.shape[0])
    recent = [state[-1], state[-2]]
    z = gate(module.gate, torch.stack([*state[:4], *seeds(module.attend, state), *recent]))
    exists = torch.tensor([1.0] * 7 + [float(len(state) > 5)])[:, None]
    return (z * exists.to(z.dtype)) @ module.out.weight.T


def personal(module: PersonalizedLinear, state: Tensor, x_sum: Tensor) -> Tensor:
    matrix = module.weight(x_sum.flatten()).view(module.width, module.width)
    return state + module.norm(state) @ matrix / module.width**0.5


def attention(module: SequenceAttention, state: Tensor, angle: Tensor) -> Tensor:
    """S + MHA(Norm(S)), every event with every other, queries and keys turned by their angles."""
    normed, shape = module.norm(state), (len(state), module.heads, -1)
    query, key = F.linear(normed, module.query_key.weight).chunk(2, dim=1)
    query, key = rotate(query.view(shape), angle), rotate(key.view(shape), angle)
    value, heads = F.linear(normed, module.value.weight).view(shape), []
    for head in range(module.heads):
        score = query[:, head] @ key[:, head].T / key.shape[-1] ** 0.5
        heads.append(score.softmax(-1) @ value[:, head])
    return state + torch.cat(heads, dim=1) @ module.out.weight.T
