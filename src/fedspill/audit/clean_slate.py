"""What one unit of work may leave to the next in its process: nothing."""

from __future__ import annotations

import ctypes
import random
import sys


def as_if_fresh() -> None:
    """No job may leave anything to the next: threads, random state, defaults, memory."""
    import numpy as np
    import torch

    from fedspill.placement import use_full_precision

    torch.set_num_threads(1)
    use_full_precision()
    torch.manual_seed(0)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    np.random.seed(0)  # noqa: NPY002 - the global state is what is put back
    random.seed(0)
    _give_back_memory()


def _give_back_memory() -> None:
    """What was freed goes back to the system: a federation of a large model leaves gigabytes to a worker that waits."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; others give back by themselves
        if trim is not None:
            trim(0)
