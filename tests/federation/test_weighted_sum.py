"""The mean of updates that come one by one is the mean of all at once."""

import torch

from fedspill.federation.weighted_sum import RunningMean, weighted_sum

SHARES = [3, 5, 11]
UPDATES = [{"a": torch.randn(50, generator=torch.Generator().manual_seed(seed))} for seed in range(3)]


def test_if_all_come_as_expected_every_bit_is_the_same() -> None:
    mean = RunningMean(sum(SHARES))
    for update, share in zip(UPDATES, SHARES, strict=True):
        mean.add(update, share, share)
    weights = [share / sum(SHARES) for share in SHARES]
    assert torch.equal(mean.mean()["a"], weighted_sum(UPDATES, weights)["a"])


def test_who_does_not_answer_does_not_count() -> None:
    mean = RunningMean(sum(SHARES))
    for place in (0, 2):
        mean.add(UPDATES[place], SHARES[place], SHARES[place])
    expected = weighted_sum([UPDATES[0], UPDATES[2]], [3 / 14, 11 / 14])
    torch.testing.assert_close(mean.mean()["a"], expected["a"])


def test_a_client_that_claims_more_than_was_expected_is_weighed_by_its_claim() -> None:
    """However much it is: nothing overflows on the way."""
    mean = RunningMean(sum(SHARES))
    for update, claimed, share in zip(UPDATES, [3, 1 << 53, 11], SHARES, strict=True):
        mean.add(update, claimed, share)
    torch.testing.assert_close(mean.mean()["a"], UPDATES[1]["a"])


def test_updates_stay_as_they_are() -> None:
    before = [update["a"].clone() for update in UPDATES]
    mean = RunningMean(3)
    for update in UPDATES:
        mean.add(update, 1, 1)
    mean.mean()
    assert all(torch.equal(update["a"], own) for update, own in zip(UPDATES, before, strict=True))
