"""Kunlun as its equations read: one row at a time, loops over heads and experts, no batching.

Slow, and meant to be read and tested against: stack.py first (Algorithm 1), then towers.py. Each
function takes the parameters of the fast module of the same name, as
`dict(module.named_parameters())`, in any floating type. Formulas are those of Kunlun
(arXiv 2602.10016), in the section named above them, unless another paper is cited. What the papers
leave open and we chose is marked [C].
"""
