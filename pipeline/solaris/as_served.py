"""Stage `as_served`: what the store would have served to the impressions that students learn from.

The vectors of the run's shards, computed by the run's own policy as of each tick of the students'
span, are walked in event time: an impression finds those that had become available and still live.
Students that learn from these see in training what they will see in use (arXiv 2604.12110).
"""

from __future__ import annotations

from pathlib import Path

from pipeline.loopfm.arms import readers_of_store
from pipeline.mixing.canonical import partitions
from pipeline.run.manifest import Manifest, Outcome, produce
from pipeline.run.paths import Run
from pipeline.run.window import days_between, window_of
from pipeline.solaris.bulk_lookups import history_of, serve_to, shown_rows
from pipeline.solaris.publish import inputs_of


def as_served(run: Run, unit: str = "") -> Manifest:
    """Write surface=S.parquet: per impression of the students' span what it would have got.

    Nothing is looked up, and nothing written, where no arm of `transfer.arms` reads the store.
    Figures: the arms that do, and for every surface the share of its impressions by source.
    """
    config, window = run.config, window_of(run.config)
    readers = readers_of_store(config)
    parts = partitions(run, "impressions", days_between(window.students_begin, window.day_end))
    inputs: dict[str, str] = {}
    if readers:
        lake = {str(p.folder.relative_to(run.lake())): p.manifest.fingerprint for p in parts}
        inputs = inputs_of(run) | lake

    def build(folder: Path) -> Outcome:
        if not readers:
            return Outcome(rows=0, figures={"arms": []})
        history, rows, shares = history_of(run), 0, {}
        for index, surface in enumerate(config.surfaces):
            shown = shown_rows([p for p in parts if p.surface == index])
            counted = serve_to(folder / f"surface={surface}.parquet", history, shown)
            shares[surface] = counted.shares()
            rows += len(shown)
        return Outcome(rows=rows, figures={"arms": readers, "shown_by_surface": shares})

    return produce(
        run.output("as_served"),
        stage="as_served",
        inputs=inputs,
        settings=(config.solaris, config.surfaces, readers, window),
        build=build,
    )
