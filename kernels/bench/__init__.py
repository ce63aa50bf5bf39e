"""How fast the ops are beside PyTorch's own and beside what the machine can do at most."""
