"""A cluster as the planner sees it: devices in hosts, hosts in zones, zones behind thinner links.

A topology is a TOML file (deploy/topologies, docs/planner.md). Bandwidths are those that one device
reaches in one direction, not what a data sheet adds up.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

from model.config import ConfigError, require
from pipeline.run.codec import from_dict

Precision = Literal["float32", "bfloat16", "mxfp8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
MICRO, GIGA, TERA = 1e-6, 1e9, 1e12


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Dense peak rates of one device in TFLOP/s; 0: the device has no such products."""

    float32: float
    bfloat16: float = 0.0
    mxfp8: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device, which runs one rank.

    `usable`: share of the memory that tensors may fill (contexts, communication buffers and
    fragmentation have the rest). `local_mfu`: share of the peak that the dense part reaches where
    nothing is exchanged. A step takes `step_overhead_ms` and, per layer of the trunk,
    `layer_overhead_ms` besides: launches and Python.
    """

    name: str
    tflops: Peaks
    local_mfu: float
    memory_gb: float
    memory_gb_per_s: float
    usable: float = 0.9
    step_overhead_ms: float = 0.0
    layer_overhead_ms: float = 0.0

    def __post_init__(self) -> None:
        _positive(self, "device", "memory_gb", "memory_gb_per_s")
        for name in ("local_mfu", "usable"):
            value = getattr(self, name)
            require(0 < value <= 1, f"device.{name}", "in (0, 1]", value, "give a share, as 0.4")
        for name in ("step_overhead_ms", "layer_overhead_ms"):
            value = getattr(self, name)
            require(value >= 0, f"device.{name}", "at least 0", value, "use 0 to leave it out")
        require(
            self.tflops.float32 > 0,
            "device.tflops.float32",
            "above 0",
            self.tflops.float32,
            "give the dense peak, without sparsity",
        )


@dataclass(frozen=True, kw_only=True)
class Host:
    """Devices with the fastest links; on CPU hosts `cores` are shared by all ranks of the host."""

    devices: int
    gb_per_s: float
    latency_us: float
    cores: int = 0

    def __post_init__(self) -> None:
        _positive(self, "host", "devices", "gb_per_s", "latency_us")
        require(self.cores >= 0, "host.cores", "at least 0", self.cores, "use 0 for GPUs")


@dataclass(frozen=True, kw_only=True)
class Zone:
    """Hosts that reach each other by RDMA at full rate; the rate is that of one device's NIC."""

    hosts: int
    gb_per_s: float
    latency_us: float

    def __post_init__(self) -> None:
        _positive(self, "zone", "hosts", "gb_per_s", "latency_us")


@dataclass(frozen=True, kw_only=True)
class Across:
    """Between zones a device has its NIC's rate divided by `oversubscription`."""

    zones: int = 1
    oversubscription: float = 1.0
    latency_us: float = 20.0

    def __post_init__(self) -> None:
        _positive(self, "across", "zones", "latency_us")
        require(
            self.oversubscription >= 1,
            "across.oversubscription",
            "at least 1",
            self.oversubscription,
            "use 1 for none",
        )


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Shares of a time of computing behind which traffic can hide; 0: it is always waited for.

    `gradients` behind backward, `weights` behind forward and backward (ZeRO-3's gathering),
    `sparse` behind forward and backward (lookups of the next batch).
    """

    gradients: float = 0.0
    weights: float = 0.0
    sparse: float = 0.0

    def __post_init__(self) -> None:
        for name in ("gradients", "weights", "sparse"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"overlap.{name}", "in [0, 1]", value, "use 0 for none")


@dataclass(frozen=True, slots=True)
class Level:
    """What devices share at one level: a domain of `size` devices, and a device's link inside."""

    name: str
    size: int
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Device, host, zone, what lies across zones, and what overlaps."""

    name: str
    device: Device
    host: Host
    zone: Zone
    across: Across = field(default_factory=Across)
    overlap: Overlap = field(default_factory=Overlap)

    @property
    def num_devices(self) -> int:
        """Devices of the whole cluster."""
        return self.host.devices * self.zone.hosts * self.across.zones

    @property
    def levels(self) -> tuple[Level, ...]:
        """Host, zone, cluster."""
        host, zone, across = self.host, self.zone, self.across
        in_zone = host.devices * zone.hosts
        nic = zone.gb_per_s * GIGA
        far = max(zone.latency_us, across.latency_us)
        return (
            Level("host", host.devices, host.gb_per_s * GIGA, host.latency_us * MICRO),
            Level("zone", in_zone, nic, zone.latency_us * MICRO),
            Level("across", self.num_devices, nic / across.oversubscription, far * MICRO),
        )

    def peak(self, precision: Precision) -> float:
        """Peak FLOP/s of a device; `ConfigError` where it has no such products."""
        rate: float = getattr(self.device.tflops, precision)
        known = [f.name for f in fields(Peaks) if getattr(self.device.tflops, f.name)]
        require(
            rate > 0,
            "precision",
            f"one that {self.device.name} computes in",
            precision,
            f"choose among {known}, or add device.tflops.{precision} to the topology",
        )
        return rate * TERA

    def slowdown(self, world: int) -> float:
        """How many ranks share one core of a host; 1 where each has a device or core of its own."""
        on_host = min(world, self.host.devices)
        return max(1.0, on_host / self.host.cores) if self.host.cores else 1.0


@dataclass(frozen=True, slots=True)
class Group:
    """`size` ranks, `stride` apart: every group of one degree has this shape."""

    size: int
    stride: int = 1

    def inside(self, domain: int) -> int:
        """How many of its ranks lie in one domain of so many neighbouring devices."""
        return max(1, min(self.size, math.ceil(domain / self.stride)))

    def even(self, domain: int) -> bool:
        """Whether domains of so many devices hold whole groups, or groups fill whole domains."""
        block = self.size * self.stride
        return domain % block == 0 or block % domain == 0

    def span(self, topology: Topology) -> Level:
        """The smallest level that holds the whole group."""
        levels = topology.levels
        reach = (self.size - 1) * self.stride + 1
        return next((level for level in levels if reach <= level.size), levels[-1])

    def crossed(self, topology: Topology) -> Iterator[tuple[Level, int, int]]:
        """Levels whose links the group uses: the level, its ranks in a domain below, and in one."""
        below = 1
        for level in topology.levels:
            within = self.inside(level.size)
            if within > below:
                yield level, below, within
            below = max(below, within)


def read_topology(path: Path) -> Topology:
    """A topology file; `ConfigError` names the file, the key, the value and the remedy."""
    try:
        data = tomllib.loads(path.read_text())
    except OSError:
        known = sorted(p.stem for p in path.parent.glob("*.toml"))
        raise ConfigError(f"{path} is not a topology file; beside it are {known}") from None
    except ValueError as error:  # not TOML, not UTF-8
        raise ConfigError(f"{path} is not TOML: {error}; mend that line") from None
    try:
        return from_dict(Topology, data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _positive(part: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(part, name)
        require(value > 0, f"{prefix}.{name}", "above 0", value, "give what one device has")
