"""Where a process computes: the device a configuration means, CPU threads, ranks of a launch."""

from __future__ import annotations

import os

import torch


def process_rank() -> tuple[int, int]:
    """(rank, rank on this machine) among the processes of `accelerate launch`; zeros without."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))


def use_hardware(device: str, threads: int) -> str:
    """Set the number of CPU threads (0 = torch's choice) and name the device.

    Args:
        device: "auto" = this rank's CUDA card where there is one, else the CPU.
    """
    if threads:
        torch.set_num_threads(threads)
    if device != "auto":
        return device
    return f"cuda:{process_rank()[1]}" if torch.cuda.is_available() else "cpu"
