"""Stage `publish`: the verified vectors become the store's generation in use."""

from __future__ import annotations

from pathlib import Path

from pipeline.loopfm.epoch import Epoch, epoch_in_force
from pipeline.run.manifest import (
    Manifest,
    Outcome,
    fingerprint_of,
    need_manifest,
    produce,
    write_json,
)
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, HOUR_US, day_begin_us
from pipeline.solaris.rankings import MINUTE_US
from pipeline.solaris.store import Generation, newest_of_pairs
from pipeline.solaris.stores import open_store, place_of
from pipeline.solaris.vectors import shard_names, verified


def publish(run: Run, unit: str) -> Manifest:
    """Write the run's vectors into the store of its lineage, and what was written to result.json.

    The store is brought up to date first, also when the result is there already: a store that
    was deleted comes back. A store that serves a newer day is left alone.
    """
    generation = generation_of(run, epoch_in_force(run))
    with open_store(place_of(run), write=True) as store:
        store.publish(generation, (verified(run, shard) for shard in shard_names(run)))

    def build(folder: Path) -> Outcome:
        counts = _counts(run, generation)
        write_json(folder / "result.json", counts | {"epoch": generation.epoch})
        return Outcome(rows=counts["published"], figures=counts)

    return produce(
        run.output("publish"),
        stage="publish",
        inputs=inputs_of(run),
        settings=run.config.solaris,
        build=build,
    )


def generation_of(run: Run, epoch: Epoch) -> Generation:
    """The generation that this run's vectors make, as of the end of its day."""
    solaris = run.config.solaris
    return Generation(
        fingerprint=fingerprint_of(
            {**inputs_of(run), "ttl": solaris.ttl_hours, "neighbours": solaris.neighbours}
        ),
        epoch=epoch.id,
        day=run.config.day,
        fm_cut_us=epoch.fm_cut_us,
        as_of_us=day_begin_us(run.config.day) + DAY_US,
        ttl_us=int(solaris.ttl_hours * HOUR_US),
        delay_us=int(solaris.delay_minutes * MINUTE_US),
        width=run.config.model.representation_dim,
        dtype=run.config.transfer.quantization,
        neighbours=solaris.neighbours,
    )


def inputs_of(run: Run) -> dict[str, str]:
    """Fingerprints of everything that the verified vectors come from."""
    shards = {f"precompute/{s}": run.output("precompute", s) for s in shard_names(run)}
    folders = {**shards, "verify": run.output("verify")}
    return {name: need_manifest(folder).fingerprint for name, folder in folders.items()}


def _counts(run: Run, generation: Generation) -> dict[str, int]:
    total = published = expired = 0
    for shard in shard_names(run):
        vectors = verified(run, shard)
        living = vectors.take(vectors.written_at_N + generation.ttl_us > generation.as_of_us)
        total += len(vectors)
        expired += len(vectors) - len(living)
        published += len(newest_of_pairs(living))
    return {
        "vectors": total,
        "expired": expired,
        "superseded": total - expired - published,
        "published": published,
    }
