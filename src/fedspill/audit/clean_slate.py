"""What one unit of work may leave to the next in its process, which is nothing, and where its errors came from."""

from __future__ import annotations

import random
from pathlib import Path


def place_of(error: BaseException) -> str:
    """The innermost line of code, as file and number."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""


def as_if_fresh() -> None:
    """No job may leave anything to the next: threads, random state, defaults."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    np.random.seed(0)  # noqa: NPY002 - the global state is what is put back
    random.seed(0)
