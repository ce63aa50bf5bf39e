"""Config, run folder, manifests and launch: standard library only."""
