"""Where the ranks of a training go on a cluster, and what a step then takes: docs/planner.md."""
