"""What an audit of differential privacy found: typed, with its confidence, its assumption and its limit."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

CONFIDENCE = 0.999  # with which a violation is said; all statistics of an audit share the allowed error


class DpTest(BaseModel):
    """One statistic: what it estimates, what is surely there, and what it could have shown at most."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str  # "client canaries at 30 x the clip, pooled"
    estimate: float  # of epsilon
    lower: float  # epsilon is at least this
    confidence: float
    assumption: str
    largest: float  # the largest lower bound that this test can give, however bad the code is
    accuses: bool = True  # False: shown beside others, and not counted when a violation is said

    def violates(self, claimed: float) -> bool:
        return self.accuses and self.lower > claimed


class DpResult(BaseModel):
    """A claim, and what was found out about it. There is no verdict that a claim holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    claimed: float  # epsilon of what was tested
    delta: float
    tests: tuple[DpTest, ...]
    notes: tuple[str, ...] = ()
    not_tested: str = ""  # why, of one that no test could be made for
    whole: float | None = None  # epsilon of the whole deployment, of which what was tested may be a few steps

    @property
    def violated(self) -> bool:
        return any(test.violates(self.claimed) for test in self.tests)

    @property
    def lower(self) -> float:
        """The largest lower bound among the tests that count."""
        return self.strongest.lower if self.strongest else 0.0

    @property
    def largest(self) -> float:
        return max((test.largest for test in self.tests if test.accuses), default=0.0)

    @property
    def strongest(self) -> DpTest | None:
        """The test with the largest lower bound; None where none was made."""
        return max((test for test in self.tests if test.accuses), key=lambda test: test.lower, default=None)

    @property
    def verdict(self) -> str:
        worst = self.strongest
        if worst is None:
            return f"not tested: {self.not_tested}"
        if worst.violates(self.claimed):
            return (
                f"violated: epsilon is at least {_said(worst.lower)} with {worst.confidence:.4%} confidence "
                f"({worst.name}), claimed was {_said(self.claimed)}"
            )
        return f"no violation above {_said(self.lower)} found; these tests could have shown up to {_said(self.largest)}"


def _said(epsilon: float) -> str:
    return f"{epsilon:,.0f}" if epsilon >= 100 else f"{epsilon:.3g}"


def shared_confidence(statistics: int) -> float:
    """Each statistic's own, so that all of them together are wrong no more often than one may be (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / statistics
