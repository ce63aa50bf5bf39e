"""What a training step takes at one length of histories: seconds and memory, in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks._steps import engine_of, jagged, step, synthetic
from benchmarks._trials import DAY
from pipeline.run.config import RunConfig
from pipeline.run.presets import preset

GB = 1024**3


def at_length(length: int, num_rows: int, repeats: int) -> dict[str, float]:
    """Steps of the `small` preset on jagged rows of up to `length` events in each tower.

    `seconds`: of the processor, median; `step_bytes`: what the steps add to the resident set;
    `peak_gb`: the largest resident set of the whole process.
    """
    config = config_of(length)
    engine = engine_of(config)
    names = [event.name for event in config.features.events]
    step(engine, synthetic(config, {name: jagged(4, 64, i) for i, name in enumerate(names)}, 0))
    lengths = {name: jagged(num_rows, length, i) for i, name in enumerate(names)}
    batch = synthetic(config, lengths, seed=0)
    before = _status_bytes("VmRSS")
    seconds = median(step(engine, batch) for _ in range(repeats))
    peak = _status_bytes("VmHWM")
    return {
        "events": float(sum(int(x.sum()) for x in lengths.values())),
        "seconds": seconds,
        "step_bytes": peak - before,
        "peak_gb": peak / GB,
    }


def config_of(length: int) -> RunConfig:
    """The `small` preset, window attention and all, with towers that read so many events."""
    config = preset(DAY, "small")
    events = tuple(replace(event, max_len=length) for event in config.features.events)
    return replace(config, features=replace(config.features, events=events))


def _status_bytes(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return float(line.split()[1]) * 1024
    raise KeyError(key)
