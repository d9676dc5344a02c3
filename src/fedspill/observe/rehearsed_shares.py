"""Label counts by rehearsal: the adversary does what the clients did, with data of known labels, and compares.

    broad    for every round, make-believe clients of all kinds of label shares; a first estimate for each real client
    known    a model that was trained on a client's samples pushes them less than others like them. The adversary's are
             others, so the model is first let learn from them for a while; how long, what the clients sent decides
    near     for every client, make-believe ones with shares around its estimate, as far off as the estimates before
             were; they hold the same samples in all rounds, as it does, so that all its rounds are read together
    layers   if asked for: the whole layer's change, by the make-believe clients of all (whole_layer.py), mixed with the
             readings; then once more around what was found
    together clients whose estimates scatter no more than errors do are alike, and each is read by all

What was done to the samples on the way (optimizer, drift, clipping, noise) is in what the make-believe clients sent,
so that nothing needs to be known of it. How far their own estimates are off says how sure the result is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.observe.clients_together import read_together
from fedspill.observe.drawn_clients import broad_shares, counts_of_shares, deal, deal_apart
from fedspill.observe.habits import unsaid_habits
from fedspill.observe.head_readings import SHARES_ALONE, HeadReader
from fedspill.observe.make_believe import Workshop
from fedspill.observe.real_errors import rareness
from fedspill.observe.rehearsed_result import RehearsedShares
from fedspill.observe.share_fits import ShareFit, fits_of, mixed, positive
from fedspill.observe.whole_layer import Surroundings, can_be_read, read_whole_layer
from fedspill.training import Tensors

DIVERGED = "Not rehearsed: make-believe clients do not stay finite"
CONTRADICTS = 4.0  # times as far apart as make-believe clients' rounds: not of the same samples (of those 3.8 was seen)
CLEAR = 0.5  # nats for each number, by which a habit must explain more; draws differ by up to 0.3 (convention)
CLEAR_OF = 30  # numbers of a client: three readings of ten classes, which that was seen on
UNUSUAL = 0.1  # of make-believe clients are as unlikely as that: above it no habit is asked for (convention)
UNLIKELY = 1e30  # nats: a training that does not stay finite
LIMITS = 9  # evenly spaced among shares of classes that do not show, of which one is chosen (convention)
FAR = 2.0  # times as far from the middle as the farthest make-believe client: noise, or a defense that nobody knows of


@dataclass(frozen=True)
class RehearsalSizes:
    """How much is rehearsed."""

    broad: int = 96  # make-believe clients of a round, for each of `known`
    near: int = 64  # of a client: 24 read labels as well, class mixes want more (development)
    known: tuple[int, ...] = (0, 2, 6, 20)  # passes over the auxiliary samples before
    kinds: tuple[float, ...] = (0.1, 0.3, 1.0, 5.0)  # Dirichlet parameters of the broad draw: few classes to even ones
    folds: int = 2  # of make-believe clients, each judged by what the others say
    sizes: int = 3  # of clients, in a round's broad draw
    layers: int = 2  # times that whole layers are read, each around what was found before
    telling: int = 2  # rounds that are rehearsed for this once more: those by which shares are read best
    leading: int = 3  # rounds in which all of `known` are tried, and of a client those in which it is rehearsed: the
    # others are like the nearest of these (labels read by three rounds of four: +.0 +- .1 points)

    @property
    def least_broad(self) -> int:
        """Of `broad`: each fold has a client of each kind and size."""
        return self.folds * len(self.kinds) * self.sizes


@dataclass(frozen=True, eq=False)
class SentUpdate:
    """What a client sent: an update, in which round and of how many samples."""

    round: int
    sender: str
    samples: int
    tensors: Tensors


@dataclass(frozen=True, eq=False)
class _Sent:
    """What several clients sent in a round, as the last layer says it."""

    readings: Mapping[str, Tensor]  # each (clients, classes)
    present: Tensor  # (clients, classes) bool: classes that may have been there
    tensors: tuple[Tensor, ...] = ()  # of the last layer, each (clients, ...)
    scale: float = 1.0

    @property
    def layer(self) -> Tensor:
        """(clients, numbers) the last layer's change."""
        return self.scale * torch.cat([tensor.double().flatten(1) for tensor in self.tensors], 1)

    def is_finite(self) -> bool:
        return all(bool(reading.isfinite().all()) for reading in self.readings.values())

    @staticmethod
    def joined(parts: Sequence[_Sent]) -> _Sent:
        """All in one, without the tensors."""
        if len(parts) == 1:
            return parts[0]
        readings = {name: torch.cat([part.readings[name] for part in parts]) for name in parts[0].readings}
        return _Sent(readings, torch.cat([part.present for part in parts]))


@dataclass(frozen=True, eq=False)
class RoundScene:
    """One round as the adversary rehearses it."""

    shop: Workshop
    reader: HeadReader
    base: Tensors  # what the clients were handed
    passes: int = 0  # over the auxiliary samples, after which the model knows them as it knows the clients'
    learnt: Tensors | None = None  # the model after these
    hidden: float = 1.0  # the largest estimated share of a class that does not show and is taken to be absent

    def _sent(self, tensors: Tensors, samples: int) -> _Sent:
        """Of tensors (updates, ...), each of a client with so many samples."""
        gradients = self.shop.training.algorithm == "fedsgd"
        scale = (-1 if gradients else 1) / self.shop.training.schedule(samples).steps
        changes = {name: -tensor for name, tensor in tensors.items()} if gradients else tensors
        layer = tuple(tensors[name] for name in self.reader.names)
        return _Sent(self.reader.read(tensors, scale), ~self.reader.absent(changes), layer, scale)

    def asked(self, updates: Sequence[SentUpdate]) -> _Sent:
        """What was sent."""
        names = self.reader.names
        each = [({name: one.tensors[name][None] for name in names}, one.samples) for one in updates]
        return _Sent.joined([self._sent(*one) for one in each])

    def play(self, rows: Tensor, rng: torch.Generator) -> _Sent:
        """What make-believe clients with auxiliary samples `rows` (clients, n) send."""
        start = self.base if self.learnt is None else self.learnt
        return self._sent(self.shop.send(start, rows, self.reader.names, rng), rows.shape[1])


def rehearsed(
    scenes: Mapping[int, RoundScene],
    updates: Sequence[SentUpdate],
    classes: int,
    rng: torch.Generator,
    plan: RehearsalSizes,
    *,
    joint: bool = True,
    layers: bool = False,
) -> tuple[list[RehearsedShares], dict[int, RoundScene]]:
    """What is found of each update, and the rounds with models that know the auxiliary samples; `scenes` by round.

    joint: a client that takes part again holds the same samples. layers: the whole layer is read too, and counts as
    its errors on make-believe clients say. NotApplicable: make-believe clients diverge.
    """
    begun = begin(scenes, updates, classes, rng, plan)
    found = rehearsed_clients(begun, updates, clients_of(updates, joint=joint), rng, plan, layers=layers)
    return read_together([found[index] for index in range(len(updates))]), begun.scenes


def clients_of(updates: Sequence[SentUpdate], *, joint: bool) -> list[list[int]]:
    """Places of the updates that are read as one: those of a client that holds the same samples, if `joint`."""
    groups: dict[object, list[int]] = {}
    for index, update in enumerate(updates):
        groups.setdefault((update.sender, update.samples) if joint else index, []).append(index)
    return list(groups.values())


@dataclass(frozen=True, eq=False)
class BegunRehearsals:
    """All rounds after their broad draws."""

    scenes: dict[int, RoundScene]  # by round, with the models that know the auxiliary samples
    first: dict[int, _Estimate]  # of each update, by its place


def begin(
    scenes: Mapping[int, RoundScene],
    updates: Sequence[SentUpdate],
    classes: int,
    rng: torch.Generator,
    plan: RehearsalSizes,
) -> BegunRehearsals:
    """The broad draws, which all clients of a round share."""
    of_round: dict[int, list[int]] = {}
    for index, update in enumerate(updates):
        of_round.setdefault(update.round, []).append(index)
    begun = BegunRehearsals({}, {})
    leaders = leading_rounds(scenes, plan.leading)
    last = leaders[-1]
    knowing = {last: _knowing(scenes[last], plan.known, rng)}
    habit = _most_likely_habit(knowing[last], [updates[index] for index in of_round[last]], classes, rng, plan)
    for number in sorted(scenes, key=lambda one: one not in leaders):
        if number not in knowing:
            passes = plan.known if number in leaders else (begun.scenes[nearest(number, begun.scenes)].passes,)
            knowing[number] = _knowing(scenes[number], passes, rng)
        mine = of_round[number]
        tried = [replace(one, shop=habit) for one in knowing.pop(number)]
        round_ = _broad(tried, [updates[index] for index in mine], classes, rng, plan)
        begun.scenes[number] = round_.scene
        begun.first.update(zip(mine, round_.first, strict=True))
    return begun


def _knowing(scene: RoundScene, passes: Sequence[int], rng: torch.Generator) -> list[RoundScene]:
    """The round with models that know the auxiliary samples after so many passes over them."""
    one_pass = -(-len(scene.shop.auxiliary) // scene.shop.training.batch_size)
    return [
        replace(scene, passes=number, learnt=scene.shop.learnt(scene.base, number * one_pass, rng)) for number in passes
    ]


def rehearsed_clients(
    begun: BegunRehearsals,
    updates: Sequence[SentUpdate],
    clients: Sequence[list[int]],
    rng: torch.Generator,
    plan: RehearsalSizes,
    *,
    layers: bool = False,
) -> dict[int, RehearsedShares]:
    """What is found of the updates of some `clients`, each read by itself; by place."""
    result: dict[int, RehearsedShares] = {}
    same_rounds: dict[tuple[int, ...], list[tuple[list[int], _Around]]] = {}
    for group in clients:
        some = [group[place] for place in leading_rounds(range(len(group)), plan.leading)]
        own, found, around = _client(begun, updates, some, rng, plan, apart=layers)
        result |= dict(zip(some, found, strict=True))
        for index in group:
            if index in result:
                continue
            if around is None:  # its rounds say different things
                result[index] = _client(begun, updates, [index], rng, plan, apart=layers)[1][0]
            else:
                result[index] = result[nearest(index, some)]
        if layers and around is not None:
            same_rounds.setdefault(tuple(one.round for one in own), []).append((group, around))
    for together in same_rounds.values():
        told = _by_layers([around for _, around in together], [result[group[0]] for group, _ in together], rng, plan)
        for (group, _), one in zip(together, told, strict=True):
            result |= {index: replace(one, near=result[index].near) for index in group}
    return result


def _client(
    begun: BegunRehearsals,
    updates: Sequence[SentUpdate],
    some: Sequence[int],
    rng: torch.Generator,
    plan: RehearsalSizes,
    *,
    apart: bool,
) -> tuple[list[SentUpdate], list[RehearsedShares], _Around | None]:
    """Some updates of one client, what is found of each, and its make-believe clients."""
    own, first = [updates[index] for index in some], [begun.first[index] for index in some]
    return own, *_near([begun.scenes[one.round] for one in own], own, first, rng, plan, apart=apart)


@dataclass(frozen=True, eq=False)
class _Estimate:
    """What some reading says of an update."""

    shares: Tensor  # (classes,)
    errors: Tensor  # (make-believe clients, classes) of such estimates

    @property
    def precision(self) -> float:
        return _precision(self.errors)


def _precision(errors: Tensor) -> float:
    return max(float(errors.abs().sum(1).mean()), 1e-6) ** -2


@dataclass(frozen=True, eq=False)
class _Begun:
    """A round after the broad draw."""

    scene: RoundScene  # with the model that knows the auxiliary samples as it knows the clients'
    first: list[_Estimate]  # of each update
    likelihoods: Tensor  # (updates,) logarithms, of what each client sent
    usual: Tensor  # (make-believe clients,) the same of what they sent, each by those of the other fold

    @property
    def is_usual(self) -> bool:
        """Whether what most clients sent is about as likely as what make-believe clients sent."""
        return bool(self.likelihoods.median() >= self.usual.quantile(UNUSUAL))


def _most_likely_habit(
    knowing: Sequence[RoundScene],
    updates: Sequence[SentUpdate],
    classes: int,
    rng: torch.Generator,
    plan: RehearsalSizes,
) -> Workshop:
    """How the clients train, with a habit that no protocol says if what they sent asks for it.

    A trained model shows habits best, so `knowing` is the last round. Likelihoods vary from draw to draw: a habit is
    believed only if it makes what was seen much more likely, number by number, of most clients: all have the same code,
    while one of an unusual mix of classes may be explained badly by the truth. Where the protocol explains what was
    sent as well as it explains make-believe clients, no habit is asked for.
    """
    shop = knowing[0].shop
    plain = _as_if(shop, knowing, updates, classes, rng, plan)
    if plain is not None and plain.is_usual:
        return shop
    tried = [replace(shop, training=one) for one in unsaid_habits(shop.training, shop.auxiliary.x)]
    found = [_as_if(one, knowing, updates, classes, rng, plan) for one in tried]
    unlikely = torch.full((len(updates),), -UNLIKELY, dtype=torch.float64)
    before = unlikely if plain is None else plain.likelihoods
    gains = [float(((unlikely if one is None else one.likelihoods) - before).median()) for one in found]
    numbers = classes * knowing[0].reader.sized
    clear = CLEAR * max(1.0, (CLEAR_OF / numbers) ** 0.5)  # what a mean of few numbers varies by
    best = max(range(len(tried)), key=lambda place: gains[place], default=None)
    return shop if best is None or gains[best] <= clear * numbers else tried[best]


def _as_if(
    shop: Workshop,
    knowing: Sequence[RoundScene],
    updates: Sequence[SentUpdate],
    classes: int,
    rng: torch.Generator,
    plan: RehearsalSizes,
) -> _Begun | None:
    """The round if clients train as in `shop`; half of the rehearsals are enough for it. None: they diverge.

    Nothing is drawn from `rng` itself: what is compared is compared on the same draws.
    """
    same = torch.Generator().set_state(rng.get_state())
    fewer = replace(plan, broad=max(plan.broad // 2, plan.least_broad))
    try:
        return _broad([replace(one, shop=shop) for one in knowing[::2]], updates, classes, same, fewer)
    except NotApplicable:
        return None


def leading_rounds(rounds: Iterable[int], most: int) -> list[int]:
    """The first, the last and others evenly between, `most` at most: a model changes little from round to round."""
    ordered = sorted(rounds)
    places = torch.linspace(0, len(ordered) - 1, min(most, len(ordered))).round().int()
    return [ordered[place] for place in places.tolist()]


def nearest(number: int, rounds: Iterable[int]) -> int:
    return min(rounds, key=lambda other: abs(other - number))


def _broad(
    knowing: Sequence[RoundScene],
    updates: Sequence[SentUpdate],
    classes: int,
    rng: torch.Generator,
    plan: RehearsalSizes,
) -> _Begun:
    """First estimates, by the one of the models that knows the auxiliary samples as it knows the clients'."""
    asked, labels = knowing[0].asked(updates), knowing[0].shop.auxiliary.y
    sizes = sorted(update.samples for update in updates)
    places = ((2 * place + 1) * len(sizes) // (2 * plan.sizes) for place in range(plan.sizes))
    sizes = sorted({sizes[place] for place in places})
    best: _Begun | None = None
    draws = int(torch.randint(1 << 62, (1,), generator=rng))
    for learnt in knowing:
        same = torch.Generator().manual_seed(draws)  # what is compared is compared on the same draws
        played, shares, folds = [], [], []
        for size in sizes:
            counts = counts_of_shares(broad_shares(plan.broad // len(sizes), classes, plan.kinds, same), size)
            fold = torch.arange(len(counts)) // len(plan.kinds) % plan.folds  # each fold has all kinds
            played.append(learnt.play(deal(counts, labels, same), same))
            shares.append(counts.double() / size)
            folds.append(fold)
        sent, known, fold = _Sent.joined(played), torch.cat(shares), torch.cat(folds)
        if not sent.is_finite():
            continue
        fits = fits_of(sent.readings, known, fold, asked.readings)
        fit = mixed([*fits, ShareFit(alike(asked.present), alike(sent.present))], known)
        learnt = replace(learnt, hidden=largest_absent(fit.unseen, known, sent.present))
        found = without_absent(fit.shares, asked.present, learnt.hidden)
        errors = without_absent(fit.unseen, sent.present, learnt.hidden) - known
        likely, usual = _log_likelihoods(sent, known, fold, found, asked)
        if best is None or likely.sum() > best.likelihoods.sum():
            best = _Begun(learnt, [_Estimate(one, errors) for one in found], likely, usual)
    if best is None:
        raise NotApplicable(DIVERGED)
    return best


@dataclass(frozen=True, eq=False)
class _Around:
    """Make-believe clients around one client, in all rounds that it took part in."""

    scenes: Sequence[RoundScene]
    samples: int
    asked: Sequence[_Sent]  # what the client sent
    shown: Tensor  # (classes,) bool: some round shows the class
    played: Sequence[_Sent]
    known: Tensor  # (make-believe clients, classes)
    hidden: float  # the largest estimated share of a class that does not show and is taken to be absent

    @staticmethod
    def of(
        scenes: Sequence[RoundScene],
        samples: int,
        asked: Sequence[_Sent],
        shown: Tensor,
        shares: Tensor,
        rng: torch.Generator,
        *,
        apart: bool,
    ) -> _Around:
        """Rehearses clients with such shares (make-believe clients, classes), as nearly as so many samples allow.

        apart: those of one fold hold none of the samples that those of the other hold.
        """
        counts, labels = counts_of_shares(shares, samples), scenes[0].shop.auxiliary.y
        rows = deal_apart(counts, labels, rng) if apart else deal(counts, labels, rng)
        played = [scene.play(rows, rng) for scene in scenes]
        if not all(one.is_finite() for one in played):
            raise NotApplicable(DIVERGED)
        hidden = min(scene.hidden for scene in scenes)
        return _Around(scenes, samples, asked, shown, played, counts.double() / samples, hidden)

    @property
    def folds(self) -> Tensor:
        return torch.arange(len(self.known)) % 2

    @property
    def counts(self) -> Tensor:
        return (self.known * self.samples).round().long()

    @property
    def seen(self) -> Tensor:
        """(make-believe clients, classes) bool: which classes some round of theirs shows."""
        return torch.stack([one.present for one in self.played]).any(0)

    def surroundings(self, found: _Estimate) -> Surroundings:
        """With what has been found so far."""
        possible = self.seen | (self.known + found.errors > self.hidden)
        played, asked = [one.layer for one in self.played], [one.layer[0] for one in self.asked]
        return Surroundings(self.known, self.folds, played, asked, possible, self.shown | (found.shares > self.hidden))

    def nearer(self, centre: Tensor, errors: Tensor, rounds: Sequence[int], rng: torch.Generator) -> _Around:
        """Some of the rounds again, around what was found and as far off as such errors."""
        drawn = torch.randint(len(errors), (len(self.known),), generator=rng)
        shares = positive((centre + rareness(len(centre)) * errors[drawn]) * (self.shown | (centre > self.hidden)))
        scenes, asked = [self.scenes[place] for place in rounds], [self.asked[place] for place in rounds]
        return _Around.of(scenes, self.samples, asked, self.shown, shares, rng, apart=True)

    def fits(self) -> list[list[ShareFit]]:
        """Of each round all fits to its readings."""
        pairs = zip(self.played, self.asked, strict=True)
        return [fits_of(sent.readings, self.known, self.folds, own.readings) for sent, own in pairs]

    def estimate(self, fits: Sequence[Sequence[ShareFit]]) -> _Estimate:
        """What the rounds' readings say together."""
        each = [fit for of_round in fits for fit in of_round]
        joint = mixed([*each, ShareFit(alike(self.shown[None]), alike(self.seen))], self.known)
        errors = without_absent(joint.unseen, self.seen, self.hidden) - self.known
        return _Estimate(without_absent(joint.shares, self.shown, self.hidden)[0], errors)


def _near(
    scenes: Sequence[RoundScene],
    updates: Sequence[SentUpdate],
    begun: Sequence[_Estimate],
    rng: torch.Generator,
    plan: RehearsalSizes,
    *,
    apart: bool,
) -> tuple[list[RehearsedShares], _Around | None]:
    """Of one client's updates, each beside the round that it belongs to; and its make-believe clients, if it is one."""
    weights = torch.tensor([one.precision for one in begun], dtype=torch.float64)
    centre = weights @ torch.stack([one.shares for one in begun]) / weights.sum()
    errors = max(begun, key=lambda one: one.precision).errors
    drawn = torch.randint(len(errors), (plan.near,), generator=rng)
    asked = [scene.asked([update]) for scene, update in zip(scenes, updates, strict=True)]
    shown = torch.stack([one.present[0] for one in asked]).any(0)
    around = _Around.of(scenes, updates[0].samples, asked, shown, positive(centre + errors[drawn]), rng, apart=apart)
    each = around.fits()
    found = around.estimate(each)
    doubt = _contradiction([mixed(fits, around.known) for fits in each])
    if doubt > CONTRADICTS:  # it cannot have held the same samples each time
        alone = [
            _near([scene], [update], [one], rng, plan, apart=apart)[0][0]
            for scene, update, one in zip(scenes, updates, begun, strict=True)
        ]
        return alone, None
    main = scenes[0].reader.main()
    near = [_is_near(s.readings[main], own.readings[main][0]) for s, own in zip(around.played, asked, strict=True)]
    first = float(errors.abs().sum(1).mean())
    return [RehearsedShares(found.shares, around.counts, found.errors, doubt, one, first) for one in near], around


def _by_layers(
    clients: Sequence[_Around], found: Sequence[RehearsedShares], rng: torch.Generator, plan: RehearsalSizes
) -> list[RehearsedShares]:
    """Clients of the same rounds by readings and whole layers, mixed by their errors on make-believe clients.

    Then the same once more around what was found: each time counts by its precision.
    """
    told, around, trust = list(found), list(clients), 0.0
    readings = [_Estimate(one.shares, one.errors) for one in found]
    for time in range(plan.layers):
        spaces = [
            one.surroundings(_Estimate(result.shares, read.errors))
            for one, result, read in zip(around, told, readings, strict=True)
        ]
        if not can_be_read(spaces):
            break
        layers = read_whole_layer(spaces)
        both = _mixed([readings, [_Estimate(one.shares, one.errors) for one in layers]], around)
        precision = _precision(torch.cat([one.errors for one in both]))
        trust += precision
        told = [
            # Later errors are those of clients like this one: they do not say how far apart clients are.
            replace(
                result,
                shares=result.shares + precision / trust * (now.shares - result.shares),
                errors=now.errors if time == 0 else result.errors,
            )
            for result, now in zip(told, both, strict=True)
        ]
        if time + 1 < plan.layers:
            best = sorted(layers[0].by_round.argsort()[: plan.telling].tolist())
            around = [
                one.nearer(result.shares, result.doubt * now.errors, best, rng)
                for one, result, now in zip(around, told, both, strict=True)
            ]
            readings = [one.estimate(one.fits()) for one in around]
    return told


def _mixed(ways: Sequence[Sequence[_Estimate]], around: Sequence[_Around]) -> list[_Estimate]:
    """Of each client all ways in one, with weights that are the same for all clients."""
    known = torch.cat([one.known for one in around])
    fits = [ShareFit(torch.stack([e.shares for e in way]), known + torch.cat([e.errors for e in way])) for way in ways]
    both = mixed(fits, known)
    errors = torch.split(both.unseen - known, [len(one.known) for one in around])
    return [_Estimate(*one) for one in zip(both.shares, errors, strict=True)]


def largest_absent(estimates: Tensor, known: Tensor, present: Tensor) -> float:
    """Up to which estimated share a class that does not show in an update was not there.

    Under this limit estimates (make-believe clients, classes) are nearest the known shares. Of many classes nearly all
    that do not show were not there, of two the larger one often hides the other.
    """
    hiding = estimates[~present].clamp_min(0)
    if len(hiding) == 0:
        return 1.0
    limits: list[float] = [0.0, *hiding.quantile(torch.linspace(0, 1, LIMITS, dtype=hiding.dtype)).tolist()]
    errors = [float((without_absent(estimates, present, limit) - known).abs().sum()) for limit in limits]
    return limits[errors.index(min(errors))]


def alike(present: Tensor) -> Tensor:
    """Even shares of the classes that are present (clients, classes): all that is known if nothing else is."""
    return positive(present.double())


def without_absent(estimates: Tensor, present: Tensor, limit: float) -> Tensor:
    """Shares (clients, classes), of classes that do not show only those above the limit."""
    return positive(estimates * (present | (estimates > limit)))


def _is_near(readings: Tensor, asked: Tensor) -> bool:
    """Whether asked (classes,) is about as far from the mean of readings (clients, classes) as they are."""
    middle = readings.mean(0)
    return float((asked - middle).norm()) <= FAR * float((readings - middle).norm(dim=1).max())


def _contradiction(rounds: Sequence[ShareFit]) -> float:
    """How far the rounds' own estimates of one client lie apart, over how far those of make-believe clients do."""
    if len(rounds) == 1:
        return 1.0
    real = torch.stack([positive(one.shares[0]) for one in rounds])  # (rounds, classes)
    made_up = torch.stack([positive(one.unseen) for one in rounds])  # (rounds, make-believe clients, classes)
    apart = float((real - real.mean(0)).abs().sum())
    usual = float((made_up - made_up.mean(0)).abs().sum(2).sum(0).mean())
    return max(1.0, apart / max(usual, 1e-12))


def _log_likelihoods(sent: _Sent, shares: Tensor, folds: Tensor, found: Tensor, asked: _Sent) -> tuple[Tensor, Tensor]:
    """(updates,) of what real clients sent, if shares are `found` (updates, classes) and the rest as in the rehearsals.

    And (make-believe clients,) the same of what was `sent`, whose shares are known.

    Shares can be found that explain any one reading. They do not explain all readings together if the make-believe
    clients' samples were harder or easier for the model than the real ones'.
    """
    total, usual = found.new_zeros(len(found)), found.new_zeros(len(shares))
    for name, reading in sent.readings.items():
        if name in SHARES_ALONE:
            continue
        forward = mixed(fits_of({"shares": shares}, reading, folds, {"shares": found}), reading)
        spread = (forward.unseen - reading).square().mean(0).sqrt().clamp_min(1e-30)
        off = ((asked.readings[name] - forward.shares) / spread).square().clamp_max(1e4)
        total -= (0.5 * off + spread.log()).sum(1)
        usual -= (0.5 * ((reading - forward.unseen) / spread).square() + spread.log()).sum(1)
    return total, usual
