"""Build DeepSpeed's CPU communication op once, so that no training step waits for a compiler.

Run by deploy/install.py with the interpreter of .venv and TORCH_EXTENSIONS_DIR set; a machine with
a GPU, whose op is another one, builds nothing here.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch.distributed as dist


def main() -> None:
    """Start and end a group of one rank the way that training does."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    with tempfile.TemporaryDirectory() as folder:
        meet = f"file://{Path(folder) / 'meet'}"
        dist.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
        import deepspeed

        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
