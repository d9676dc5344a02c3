"""How much larger errors of real clients are than those of the make-believe ones that they are read by."""

from __future__ import annotations

import math


def rareness(classes: int) -> float:
    """How much larger errors are than those of make-believe clients say, which rest on few auxiliary samples.

    Make-believe clients hold many halves of these, but all real ones are read by the same samples: one draw for each
    class. An error whose size is known from so many draws is distributed as Student's t, whose mean absolute value is
    larger than the normal law's by this factor: 1.77 for two classes, 1.08 for ten, 1.01 for a hundred.
    """
    draws = float(max(classes, 2))
    log_mean = math.lgamma((draws + 1) / 2) - math.lgamma(draws / 2) + 0.5 * math.log(draws)
    return 2 * math.exp(log_mean) / (draws - 1) / math.sqrt(2)
