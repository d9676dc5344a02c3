"""A generated stand-in for COP-MODE, drawn from the statistics that its authors published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspill.data.cop_mode_table import encode_requests
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import UsageError

USERS, REQUESTS, GRANTED = 93, 65_261, 0.66
MOSTLY_ALLOW, MOSTLY_DENY = 17, 26  # users; the others are mixed
QUARTILES = (51, 270, 446, 680)  # requests of the users at rank 0, 23, 46 and 69 of 92
LARGEST = 8_358
NETWORKS = ("DISCONNECTED", "METERED", "NOT_METERED")
PLACES = ("HOME", "OTHER", "TRAVELLING", "WORK")
PERMISSIONS = ("CALENDAR", "CALL_LOG", "CAMERA", "CONTACTS", "LOCATION", "MICROPHONE", "PHONE", "SMS", "STORAGE")
_NAMES = """
    ART_AND_DESIGN AUTO_AND_VEHICLES BEAUTY BOOKS_AND_REFERENCE BUSINESS COMMUNICATION DATING EDUCATION ENTERTAINMENT
    EVENTS FINANCE FOOD_AND_DRINK GAME HEALTH_AND_FITNESS HOUSE_AND_HOME LIBRARIES_AND_DEMO LIFESTYLE
    MAPS_AND_NAVIGATION MEDICAL MUSIC_AND_AUDIO NEWS_AND_MAGAZINES PERSONALIZATION PHOTOGRAPHY PRODUCTIVITY SHOPPING
    SOCIAL SPORTS TOOLS TRAVEL_AND_LOCAL VIDEO_PLAYERS
"""
CATEGORIES = tuple(_NAMES.split())


@dataclass(frozen=True)
class CopModeStandin(DataSource):
    """Generated permission requests: published sizes, users, grant rates and columns; everything else is invented."""

    name = "cop-mode-standin"
    title = "COP-MODE stand-in (generated)"
    paper = "Mendes, Brandao, Vilela, Beresford: Effect of user expectancy on mobile app privacy, PerCom 2022"
    source = "nowhere: it is generated"

    seed: int = 0
    test_share: float = 0.2

    def read(self, folder: Path) -> Dataset:
        if self.seed < 0:
            raise UsageError(f"seed must be at least 0, got {self.seed}.")
        requests = generate_requests(np.random.default_rng(self.seed))
        note = "Generated from COP-MODE's published statistics; no row is a real person's."
        return encode_requests(self.name, requests, self.test_share, note)


def sizes_of_users() -> NDArray[np.int64]:
    """Requests per user, ascending: the published minimum, quartiles, mean and maximum, exactly."""
    lower = np.rint(np.interp(np.arange(70), (0, 23, 46, 69), QUARTILES)).astype(np.int64)
    rest = REQUESTS - int(lower.sum()) - LARGEST
    growth = 1.0
    while (QUARTILES[-1] * growth ** np.arange(1, 23)).sum() < rest:
        growth += 1e-4
    upper = (QUARTILES[-1] * growth ** np.arange(1, 23)).astype(np.int64)
    upper[-1] += rest - upper.sum()
    return np.concatenate([lower, upper, [LARGEST]])


def grant_rates(sizes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    """How much each user grants: 17 mostly allow, 26 mostly deny, the mixed ones fill up to 66 % of all requests."""
    rates = np.full(USERS, np.nan)
    deny = rng.permutation(70)[:MOSTLY_DENY]  # invented: they are among the three quarters with fewer requests
    rates[deny] = rng.uniform(0.05, 0.3, MOSTLY_DENY)
    allow = rng.permutation(np.flatnonzero(np.isnan(rates))[:-1])[:MOSTLY_ALLOW]  # the largest user is mixed
    rates[allow] = rng.uniform(0.92, 0.99, MOSTLY_ALLOW)
    mixed = np.isnan(rates)
    needed = (GRANTED * REQUESTS - (sizes * rates)[~mixed].sum()) / sizes[mixed].sum()
    spread = rng.uniform(-0.15, 0.15, mixed.sum())
    rates[mixed] = needed + spread - np.average(spread, weights=sizes[mixed])
    return rates


def generate_requests(rng: np.random.Generator) -> dict[str, list[str]]:
    """The columns of the authors' table, as text."""
    sizes = sizes_of_users()
    rates = grant_rates(sizes, rng)
    user = np.repeat(np.arange(USERS), sizes)
    habits = {
        "networkStatus": (NETWORKS, np.array([0.1, 0.3, 0.6])),
        "checkedPermissionGroup": (PERMISSIONS, np.array([2, 3, 8, 20, 18, 5, 12, 4, 28]) / 100),
        "selectedSemanticLoc": (PLACES, np.array([0.58, 0.14, 0.1, 0.18])),
        "category": (CATEGORIES, rng.dirichlet(np.full(len(CATEGORIES), 1.5))),
    }
    codes = {name: _draw(user, common, rng) for name, (_, common) in habits.items()}
    hour = np.rint(rng.normal(15.5, 4.5, REQUESTS)).astype(np.int64) % 24
    foreground = rng.random(REQUESTS) < 0.75
    on_top = foreground & (rng.random(REQUESTS) < 0.8)
    taste = (
        rng.normal(0, 0.7, len(PERMISSIONS))[codes["checkedPermissionGroup"]]
        + rng.normal(0, 0.7, len(CATEGORIES))[codes["category"]]
        + rng.normal(0, 0.7, (USERS, len(PERMISSIONS)))[user, codes["checkedPermissionGroup"]]
        + 0.8 * on_top
    )
    expected = np.clip(np.rint(1.2 + 0.5 * taste + 1.2 * (rates[user] - 0.5) + rng.normal(0, 0.7, REQUESTS)), 0, 2)
    liking = taste + 1.5 * expected + rng.logistic(0, 1, REQUESTS)
    granted = np.zeros(REQUESTS, dtype=bool)
    for one, (size, rate) in enumerate(zip(sizes, rates, strict=True)):
        rows = np.flatnonzero(user == one)
        granted[rows[np.argsort(-liking[rows])[: round(size * rate)]]] = True
    names = {name: np.array(values)[codes[name]] for name, (values, _) in habits.items()}
    columns: dict[str, NDArray[Any]] = {
        "userID": np.char.add("1.", np.char.zfill(rng.permutation(USERS)[user].astype(str), 2)),
        "callState": rng.choice(3, REQUESTS, p=(0.97, 0.01, 0.02)),
        "plugState": rng.choice(3, REQUESTS, p=(0.75, 0.15, 0.1)),
        **names,
        "wasRequestExpected": expected.astype(np.int64),
        "isTopAppRequestingApp": on_top,
        "isForeground": foreground,
        "hour": hour,
        "isWeekend": rng.random(REQUESTS) < 0.28,
        "grantResult": granted.astype(np.int64) - 1,
    }
    return {name: values.astype(str).tolist() for name, values in columns.items()}


def _draw(user: NDArray[np.int64], common: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """One value per request, by each user's own habits around the common ones."""
    habits = rng.dirichlet(12 * common + 0.05, USERS).cumsum(axis=1)
    codes: NDArray[np.int64] = (rng.random(len(user))[:, None] > habits[user, :-1]).sum(axis=1)
    return codes
