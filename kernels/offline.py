"""Compile every Triton kernel for GPUs that need not be there, and report what each program takes.

`python -m kernels.offline [--widths 64]` prints registers, shared memory and spills per kernel,
chip and head width. A program fits when its shared memory does and no register is spilled.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.attention import triton_kernel as attention
from kernels.gdpa import triton_kernel as gdpa
from kernels.jagged_pool import triton_kernel as pool
from kernels.pooling import triton_kernel as pooling
from kernels.tiles import launch_of

CHIPS = (90, 100)
SHARED_LIMIT = {90: 232_448, 100: 232_448}  # bytes that one program may ask for
KINDS = {
    "*i64": ("begin_B", "length_B", "kv_begin_B", "kv_length_B"),
    "*i32": ("row_Z", "start_Z", "row_Y", "start_Y"),
    "*fp32": ("angle_q", "angle_k", "log_sum", "mean", "rows_q"),
    "fp32": ("scale",),
    "i32": ("num_keys", "heads", "first_head", "head_step", "reach", "num_seeds", "num_columns"),
}
NUMBERS = {name: kind for kind, names in KINDS.items() for name in names}


@dataclass(frozen=True, kw_only=True)
class Program:
    """What one compiled kernel takes: registers a thread, bytes of shared memory and of spills."""

    kernel: str
    chip: int
    width: int
    registers: int
    shared: int
    spilled: int

    @property
    def fits(self) -> bool:
        """Whether the chip runs it without spilling registers to memory."""
        return self.shared <= SHARED_LIMIT[self.chip] and self.spilled == 0


def programs(chips: Iterable[int] = CHIPS, widths: Iterable[int] = (64,)) -> Iterator[Program]:
    """Every kernel compiled in bfloat16, one by one; `RuntimeError` in interpreter mode."""
    for width, chip in product(widths, chips):
        for name, kernel, constants in kernels_of(width):
            options = launch_of(kernel.__module__.split(".")[1], chip)
            yield compiled(name, kernel, constants, chip, width, options)


def kernels_of(width: int) -> list[tuple[str, Any, dict[str, Any]]]:
    """(name, kernel, compile-time constants) of all kernels at a head width."""
    shared = {"K": width, "WIDTH": width, "OPERAND": tl.bfloat16, "SUM": tl.float32}
    of_gdpa = shared | {"QUERIES": gdpa.QUERIES, "KEYS": gdpa.KEYS, "ACTIVATION": 0}
    of_seeds = shared | {"TILE": pooling.TILE, "SEEDS": 16}
    found = [
        ("gdpa forward", gdpa.forward, of_gdpa),
        ("gdpa dQ", gdpa.backward_q, of_gdpa),
        ("gdpa dK dV", gdpa.backward_kv, of_gdpa),
        ("seeds forward", pooling.forward, of_seeds),
        ("seeds dQ", pooling.backward_q, of_seeds),
        ("seeds dK dV", pooling.backward_kv, of_seeds),
    ]
    of_pool = {"TILE": pool.TILE, "COLUMNS": pool.COLUMNS, "MODE": pool.SOFTMAX, "SUM": tl.float32}
    found += [("pool forward", pool.forward, of_pool), ("pool backward", pool.backward, of_pool)]
    for mode, label in enumerate(("full", "window", "block")):
        options = shared | {"TILE": attention.TILE, "MODE": mode, "TURNED": True}
        found += [
            (f"{label} attention forward", attention.forward, options),
            (f"{label} attention dQ", attention.backward_q, options),
            (f"{label} attention dK dV", attention.backward_kv, options),
        ]
    return found


def compiled(
    name: str,
    kernel: Any,
    constants: dict[str, Any],
    chip: int,
    width: int,
    options: dict[str, int],
) -> Program:
    """One kernel for one chip, with the warps and stages of its launch."""
    if not hasattr(kernel, "arg_names"):
        raise RuntimeError("kernels are interpreted; unset TRITON_INTERPRET to compile them")
    signature = {
        argument: "constexpr" if argument in constants else NUMBERS.get(argument, "*bf16")
        for argument in kernel.arg_names
    }
    # torch's allocator aligns every tensor, and so does a launch tell the compiler
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, argument in enumerate(kernel.arg_names)
        if signature[argument].startswith("*")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    built = triton.compile(source, target=GPUTarget("cuda", chip, 32), options=options)
    registers, stack = _usage(built.asm["cubin"])
    return Program(
        kernel=name,
        chip=chip,
        width=width,
        registers=registers,
        shared=built.metadata.shared,
        spilled=stack - asked_for(built.asm["ptx"]),
    )


def asked_for(ptx: str) -> int:
    """Bytes of stack in the program itself: sine and cosine of large angles take a small table."""
    sizes = re.findall(r"\.local .*__local_depot\d+\[(\d+)\]", ptx)
    return sum(-(-int(size) // 8) * 8 for size in sizes)


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers a thread and its bytes of stack, by the tool that ships with Triton."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    found = {key: int(value) for key, value in re.findall(r"(REG|LOCAL|STACK):(\d+)", told)}
    return found["REG"], found["LOCAL"] + found["STACK"]


def main(argv: list[str]) -> int:
    """Print the table, a line when its program is done; 1 when one does not fit."""
    parser = argparse.ArgumentParser(prog="python -m kernels.offline")
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128], help="of a head")
    parser.add_argument("--chips", type=int, nargs="+", default=list(CHIPS))
    options, misfits = parser.parse_args(argv), 0
    print(
        "| kernel | chip | width | registers | shared KiB | spilled B |\n|---|---|---|---|---|---|"
    )
    for p in programs(options.chips, options.widths):
        misfits += not p.fits
        print(
            f"| {p.kernel} | sm_{p.chip} | {p.width} | {p.registers} | {p.shared / 1024:.1f} | "
            f"{p.spilled}{'' if p.fits else ', does not fit'} |",
            flush=True,
        )
    return 1 if misfits else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
