"""The scaling law: a ladder of models of every family, each trained in one pass."""
