"""CAFE: what linear algebra takes apart, what it cannot and says so, and the published descent beside it."""

from dataclasses import dataclass, replace

import pytest
import torch
from spine import attempt
from torch import Tensor
from vertical_kit import BATCH, SAMPLES, digits, federate, network, plain, server_view

from fedspill.dataset import Examples
from fedspill.defenses.dp_sgd import DpSgd
from fedspill.defenses.fake_gradients import FakeGradients, sorted_normal
from fedspill.errors import FedspillError, NotApplicable, Unfit
from fedspill.federation.batches import circulant, membership, plan_batches
from fedspill.leaks.inputs.cafe import Cafe, certified_parts, recover, recover_moving
from fedspill.leaks.inputs.cafe_paper import CafePaper
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.tile_metrics import TilePsnr, tile_psnr
from fedspill.leaks.inputs.vertical.batched_lbfgs import RowObjective, minimise
from fedspill.leaks.inputs.vertical.first_layer import first_layer
from fedspill.leaks.inputs.vertical.intersect_row_spaces import _leading
from fedspill.leaks.inputs.vertical.invert_features import InversionEffort
from fedspill.leaks.inputs.vertical.moving_model import _inverse_lengths, _RoundGradients
from fedspill.leaks.inputs.vertical.published_algorithms import PublishedDescent
from fedspill.leaks.inputs.vertical.separate_products import ProductSystem
from fedspill.leaks.inputs.vertical.separate_sums import batch_design
from fedspill.leaks.inputs.vertical.server_observations import observe
from fedspill.leaks.inputs.vertical.undo_fake_gradients import low_rank_in_same_order
from fedspill.messages import Message
from fedspill.models.vertical import VerticalNet
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace, Origin
from fedspill.training import LocalTraining, gradient

QUICK = InversionEffort(decoder=200, retry_blurs=(3e-2,))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def whole(guess: Inputs, trace: MemoryTrace) -> tuple[Tensor, Tensor, Tensor]:
    """Samples, labels and certificates in index order."""
    order = torch.cat([trace.truth().facts[origin, "used_samples"][:, 1] for origin in guess.of]).argsort()
    assert guess.labels is not None
    return tuple(torch.cat(list(parts))[order] for parts in (guess.samples, guess.labels, guess.certified))  # type: ignore[return-value]


def psnr(x: Tensor, examples: Examples) -> Tensor:
    return -10 * torch.log10((x.double() - examples.x.double()).square().flatten(1).mean(1).clamp_min(1e-12))


def test_every_sample_and_label_comes_back_from_three_rounds_a_sample() -> None:
    trace, _, _ = federate()
    guess = Cafe(tries=1)(server_view(trace), seed=1)
    x, labels, certified = whole(guess, trace)
    quality = psnr(x, digits())
    assert torch.equal(labels, digits().y)
    assert bool((quality[certified] > 40).all())
    assert float((quality > 40).double().mean()) > 0.9
    assert bool((certified | (quality < 120)).all())


def test_it_is_a_function_of_view_and_seed() -> None:
    trace, _, _ = federate(plain(), rounds=9)
    state = torch.get_rng_state()
    first, second = (Cafe()(server_view(trace, plain), seed=4) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.samples, second.samples, strict=True))


def test_plain_towers_give_their_inputs_away_without_step_three_also_in_tables() -> None:
    x = torch.rand(20, 9, generator=rng())
    table = Examples(x, torch.randint(3, (20,), generator=rng(1)))

    def build() -> VerticalNet:
        return plain(parties=3, shape=(9,), classes=3)

    few, _, _ = federate(build(), table, batch=5, rounds=16)
    with pytest.raises(NotApplicable, match="at most 3, the inputs of the first linear layer; these have up to 5"):
        Cafe()(server_view(few, build), seed=1)
    trace, _, _ = federate(build(), table, batch=5, rounds=30, batches="random")
    found, labels, certified = whole(Cafe()(server_view(trace, build), seed=1), trace)
    torch.testing.assert_close(found[certified], x[certified], atol=1e-4, rtol=1e-4)
    assert float(certified.double().mean()) > 0.7
    assert torch.equal(labels[certified], table.y[certified])


@pytest.mark.parametrize("batches", ["random", "circulant"])
def test_with_as_many_rounds_as_samples_both_steps_are_linear(batches: str) -> None:
    rounds = SAMPLES if batches == "circulant" else SAMPLES + 10
    trace, _, _ = federate(plain(), rounds=rounds, batches=batches, batch=5)
    guess = Cafe()(server_view(trace, plain), seed=1)
    assert any("linear" in note for note in guess.notes)
    x, _, certified = whole(guess, trace)
    torch.testing.assert_close(x[certified], digits().x[certified], atol=1e-3, rtol=1e-3)
    assert float(certified.double().mean()) > 0.8


def test_cholesky_and_fourier_agree_and_a_singular_plan_is_refused() -> None:
    batches = circulant(30, 7, rng())
    used, rows = membership(batches, 30), torch.randn(30, 5, generator=rng(), dtype=torch.float64)
    mixed = torch.cat([used, used[:1]])  # one more round: no longer circulant
    for plan in (used, mixed):
        torch.testing.assert_close(batch_design(plan).separate(plan @ rows).values, rows)
    with pytest.raises(NotApplicable, match="29 rounds cannot take"):
        batch_design(used[:29]).separate(used[:29] @ rows)
    with pytest.raises(NotApplicable, match="full column rank"):
        batch_design(used[:15].repeat(2, 1)).separate(used[:15].repeat(2, 1) @ rows)


def test_products_are_taken_apart_with_more_samples_than_outputs_and_batches_larger_than_them() -> None:
    """The paper asks for N < d2; here N = 30, d2 = 6 and K = 8, which full column rank alone makes good."""
    used = membership(plan_batches("random", 30, 8, 40, rng()), 30)
    h, v = (torch.randn(30, width, generator=rng(width), dtype=torch.float64) for width in (11, 6))
    sums = [(row, (h * used[row][:, None]).T @ v) for row in range(40)]
    solved = ProductSystem(used, v, sums).solve()
    torch.testing.assert_close(solved.values, h)
    assert solved.residual < 1e-6
    noisy = [
        (row, total + 0.1 * torch.randn(total.shape, generator=rng(row), dtype=torch.float64)) for row, total in sums
    ]
    plain_error = (ProductSystem(used, v, noisy).solve().values - h).norm()
    assert (ProductSystem(used, v, noisy).solve_noisy().values - h).norm() <= 1.01 * plain_error


def test_the_leading_direction_is_that_of_a_whole_decomposition_also_where_rounding_exceeds_one() -> None:
    vectors = torch.linalg.qr(torch.randn(5, 12, 12, generator=rng(), dtype=torch.float64))[0]
    values = torch.linspace(0, 0.9, 12, dtype=torch.float64).repeat(5, 1)
    values[:, -1] = 1 - torch.tensor([0, 1e-13, 1e-6, 1e-3, -1e-9], dtype=torch.float64)  # the last is above one
    values[1, -2] = 1 - 1e-4
    found, gap = _leading(vectors @ torch.diag_embed(values) @ vectors.transpose(1, 2))
    assert bool(((found * vectors[:, :, -1]).sum(1).abs() > 1 - 1e-9).all())
    torch.testing.assert_close(gap, values[:, -1] - values[:, -2], atol=1e-6, rtol=1e-2)


def test_batches_wider_than_the_layer_need_as_many_rounds_as_samples_and_say_so() -> None:
    def narrow() -> VerticalNet:
        return network(widths=(4, 8, 10))

    trace, _, _ = federate(narrow(), batch=8, rounds=9)
    with pytest.raises(
        NotApplicable, match="batches of at most 4, the outputs of the first linear layer; these have up to 8"
    ):
        Cafe()(server_view(trace, narrow), seed=1)
    trace, _, _ = federate(narrow(), batch=8, rounds=SAMPLES + 8, batches="random")
    assert len(Cafe(tries=0)(server_view(trace, narrow), seed=1).of) > 0


def test_one_party_is_a_client_of_known_batches_and_samples_need_not_divide_evenly() -> None:
    def build() -> VerticalNet:
        return plain(parties=1)

    trace, made, _ = federate(build(), digits(23), batch=5, rounds=15)
    assert {len(batch) for batch in made.batches} == {4, 5}
    x, labels, certified = whole(Cafe()(server_view(trace, build), seed=1), trace)
    torch.testing.assert_close(x[certified], digits(23).x[certified], atol=1e-3, rtol=1e-3)
    assert float(certified.double().mean()) > 0.8
    assert torch.equal(labels[certified], digits(23).y[certified])


def test_what_is_not_in_the_gradients_is_flagged_and_left_black() -> None:
    blank = Examples(digits().x.clone(), digits().y)
    blank.x[3, :, :4, :4] = 0  # party 0 has nothing of sample 3
    trace, _, _ = federate(examples=blank)
    x, _, certified = whole(Cafe(tries=1)(server_view(trace), seed=1), trace)
    assert not bool(certified[3])
    assert float(x[3, :, :4, :4].abs().max()) == 0
    found = recover(observe(server_view(trace)), QUICK, rng())
    assert not bool(torch.isfinite(found.misfit[3, 0]))


def test_a_dead_party_is_named_and_the_others_are_read() -> None:
    dark = Examples(digits().x.clone(), digits().y)
    dark.x[..., :4, :4] = 0
    trace, _, rounds = federate(examples=dark)
    assert "its gradient is all zero" in rounds[0].events[0].what
    guess = Cafe(tries=1)(server_view(trace), seed=1)
    x, _, certified = whole(guess, trace)
    assert not bool(certified.any())
    assert float((psnr(x, dark) > 40).double().mean()) > 0.8


def test_parties_and_samples_that_are_dark_while_the_model_trains_are_not_vouched_for() -> None:
    dark = Examples(digits().x.clone(), digits().y)
    dark.x[..., :4, :4] = 0  # party 0 has nothing at all,
    dark.x[:3, :, :4, 4:] = 0  # and party 1 nothing of three samples
    trace, _, _ = federate(examples=dark, static=False, lr=0.01, rounds=12)
    found = recover_moving(observe(server_view(trace)), InversionEffort(decoder=200, retry_blurs=()), rng(), passes=2)
    certified = certified_parts(found)
    assert not bool(certified[:, 0].any())
    assert not bool(certified[:3, 1].any())
    poor = tile_psnr(found.x, dark.x, 4) < 30
    assert not bool(certified[poor].any())
    assert float(tile_psnr(found.x, dark.x, 4)[:, 2:].median()) > 50


def test_nan_from_one_party_is_left_out_by_name() -> None:
    def spoil(rounds: range) -> object:
        def tamper(index: int, message: Message) -> Message:
            if index != 1 or message.round not in rounds:
                return message
            return replace(message, tensors={name: t * torch.nan for name, t in message.tensors.items()})

        return tamper

    trace, _, _ = federate(plain(), rounds=16, tamper=spoil(range(1)))  # type: ignore[arg-type]
    guess = Cafe()(server_view(trace, plain), seed=1)
    assert any("party:1 in round 0 was left out" in note for note in guess.notes)
    _, _, certified = whole(guess, trace)
    assert float(certified.double().mean()) > 0.5
    trace, _, _ = federate(plain(), rounds=12, tamper=spoil(range(99)))  # type: ignore[arg-type]
    guess = Cafe()(server_view(trace, plain), seed=1)
    assert any("party:1 gave nothing" in note for note in guess.notes)
    x, _, certified = whole(guess, trace)
    assert not bool(certified.any())
    torch.testing.assert_close(x[..., :4, :4], digits().x[..., :4, :4], atol=1e-2, rtol=1e-2)


def test_indices_that_repeat_in_a_foreign_recording_are_counted() -> None:
    """Our own federation refuses them; in a trace of others a sample that was asked for twice counts twice."""
    net, examples = plain(), digits(10)
    messages = [Message(0, "server", "all", "model", {n: t.clone() for n, t in net.state_dict().items()})]
    generator = rng(2)
    for number in range(16):
        batch = torch.randint(10, (4,), generator=generator)
        messages.append(Message(number, "server", "all", "batch", {"indices": 10**12 + 1000 * batch}))  # with gaps
        whole_gradient = gradient(net, examples.take(batch))
        for party in range(4):
            own = {name: t for name, t in whole_gradient.items() if name.startswith(f"towers.{party}.")}
            messages.append(Message(number, f"party:{party}", "server", "gradient", own, {"examples": 4}))
    observed = observe(server_view(MemoryTrace.of(messages), plain))
    layer = first_layer(observed.uploads[1], observed, rng())
    assert layer.route == "linear"
    real = examples.x[:, :, :4, 4:].flatten(1).double()
    torch.testing.assert_close(layer.h[layer.known], real[layer.known], atol=1e-3, rtol=1e-3)


def test_compensation_is_kept_only_while_the_systems_close_better() -> None:
    def build() -> VerticalNet:
        return plain(seed=2)

    for lr in (1e-3, 3.0):
        trace, _, _ = federate(build(), static=False, lr=lr, rounds=12)
        observed = observe(server_view(trace, build))
        before = recover_moving(observed, QUICK, rng(), passes=0)
        after = recover_moving(observed, QUICK, rng(), passes=3)
        assert after.residual <= before.residual
        if before.residual > 0.045:
            assert after.passes == 0, "samples that tell nothing are not believed"
        if lr == 1e-3:
            assert psnr(after.x, digits()).median() >= psnr(before.x, digits()).median() - 0.5


def test_the_batched_minimiser_ends_where_each_row_has_its_minimum() -> None:
    scales = torch.logspace(-2, 2, 6)[:, None] * torch.linspace(1, 30, 9)
    centres = torch.randn(6, 9, generator=rng())

    @dataclass(frozen=True)
    class Bowls(RowObjective):
        rows: Tensor

        def __call__(self, points: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            left, pull = points - centres[self.rows], weight[:, None] * points
            value = 0.5 * (scales[self.rows] * left.square()).sum(1) + 0.5 * (pull * points).sum(1)
            return value, scales[self.rows] * left + pull

        def only(self, rows: Tensor) -> "Bowls":
            return Bowls(self.rows[rows])

    stages = [(torch.linspace(0, 1, 6), 20), (0.0, 80)]  # a pull to the origin, of another strength in each row
    found = minimise(Bowls(torch.arange(6)), torch.zeros(6, 9), stages=stages, tolerance=torch.full((6,), 1e-10))
    torch.testing.assert_close(found.x, centres, atol=1e-3, rtol=1e-3)
    assert bool((found.value < 1e-6).all())


@pytest.mark.slow
def test_the_published_descent_converges_where_it_can_and_never_vouches() -> None:
    def build() -> VerticalNet:
        return plain(seed=3)

    trace, _, _ = federate(build(), digits(8), batch=4, rounds=40, batches="random", labels="party")
    short, long = (CafePaper(iterations=many)(server_view(trace, build), seed=1) for many in (5, 900))
    near, far = (psnr(whole(guess, trace)[0], digits(8)).mean() for guess in (long, short))
    assert near > far + 10
    assert not any(bool(sure.any()) for sure in long.certified)


@pytest.mark.parametrize("options", [{"loop": "nested"}, {"switching": True}, {"alpha": 0.0}, {"xi": 0.0}])
def test_the_options_of_the_published_descent(options: dict[str, object]) -> None:
    trace, _, _ = federate(rounds=2)
    guess = CafePaper(iterations=3, **options)(server_view(trace), seed=1)  # type: ignore[arg-type]
    assert len(guess.samples[0]) > 0


def test_step_one_of_the_published_descent_is_a_relaxed_projection() -> None:
    net = network()
    state = PublishedDescent(net, SAMPLES, 10, rng())
    batch = torch.arange(6)
    sent = gradient(net, digits().take(batch))
    before = state.v[0][batch].sum(0) - sent["towers.0.first.bias"]
    state.step(batch, sent, torch.tensor(1.0), steps=(1,))
    after = state.v[0][batch].sum(0) - sent["towers.0.first.bias"]
    torch.testing.assert_close(after, (1 - 2 * 5e-3 * len(batch)) * before)


def test_sorted_normal_values_are_normal_and_sorted() -> None:
    drawn = sorted_normal(20_000, rng())
    assert bool((drawn[:-1] >= drawn[1:]).all())
    places = 1 - (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    assert float((torch.special.ndtr(drawn) - places).abs().max()) < 1.63 / 20_000**0.5, "Kolmogorov, 1 %"
    assert not torch.equal(drawn, sorted_normal(20_000, rng(1)))


def test_fake_gradients_keep_the_order_and_an_attacker_who_knows_undoes_them() -> None:
    low_rank = torch.randn(60, 4, generator=rng()) @ torch.randn(4, 40, generator=rng(1))
    message = Message(0, "party:0", "server", "gradient", {"w": low_rank}, {"examples": 4})
    fake = FakeGradients().outgoing(message, rng(2)).tensors["w"]
    assert torch.equal(fake.flatten().argsort(), low_rank.flatten().argsort())
    assert not torch.equal(fake, low_rank)
    truth = low_rank / low_rank.norm()
    ignorant = float((fake / fake.norm() - truth).norm())
    knowing = float((low_rank_in_same_order(fake[None], 4, 300, rng(3))[0] - truth).norm())
    assert knowing < 0.3 * ignorant
    clamped = FakeGradients(reading="clamped").outgoing(message, rng(2)).tensors["w"]
    assert float((clamped == low_rank).double().mean()) > 0.1, "part of the true values leaves as it is"


def test_tiles_are_scored_one_by_one_in_index_order() -> None:
    real = torch.rand(5, 1, 8, 8, generator=rng())
    guess = real.clone()
    guess[:, :, :4, :4] += 0.1
    guess = guess.clamp(0, 1)
    values = tile_psnr(guess, real, 4)
    assert values.shape == (5, 4)
    assert bool((values[:, 1:] == 120).all())
    assert bool((values[:, 0] >= 20 - 1e-4).all())
    trace, _, _ = federate()
    truth = trace.truth().beside([digits()])
    origins = [origin for origin, _ in truth.facts]
    perfect = Inputs(
        origins,
        [truth.get(origin, "inputs") for origin in origins],
        [torch.ones(len(truth.get(origin, "inputs")), dtype=torch.bool) for origin in origins],
        torch.ones(len(origins), dtype=torch.bool),
    )
    score = TilePsnr().score(perfect, truth)
    assert score.value == 120
    assert score.chance < 40
    elsewhere = replace(perfect, of=[Origin(origin.round, "client:0") for origin in origins])
    assert TilePsnr().score(elsewhere, truth).status == "unscored"


HOSTILE = {
    "nan": lambda t: t * torch.nan,
    "zero": lambda t: t * 0,
    "huge": lambda t: torch.full_like(t, 3e38),
    "constant": lambda t: torch.ones_like(t),
    "transposed": lambda t: t.T if t.ndim == 2 else t,
    "one row more": lambda t: torch.cat([t, t[:1]]),
    "int8": lambda t: t.to(torch.int8),
    "half": lambda t: t.half(),
    "empty": lambda t: t[:0],
    "subnormal": lambda t: t * 1e-42,
    "noise": lambda t: torch.randn(t.shape, generator=rng(7)),
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("attack", [Cafe(tries=0), CafePaper(iterations=2)], ids=lambda attack: attack.name)
def test_hostile_gradients_give_a_sound_guess_or_a_refusal(what: str, attack: Cafe | CafePaper) -> None:
    def changed(m: Message) -> Message:
        return replace(m, tensors={name: HOSTILE[what](t) for name, t in m.tensors.items()})

    trace, _, _ = federate(plain(), rounds=9)
    messages = [changed(m) if m.kind == "gradient" else m for m in trace.messages()]
    view = server_view(MemoryTrace.of(messages, trace.protocol), plain)
    result = attempt(lambda: attack(view, seed=1, limit=60))
    if isinstance(result, FedspillError):
        assert result.__cause__ is None, f"a raw {result.__cause__!r} inside the attack"
        assert isinstance(result, NotApplicable), result


def test_those_who_see_no_indices_are_told_what_they_lack_and_an_empty_trace_does_not_apply() -> None:
    trace, _, _ = federate(rounds=1)
    with pytest.raises(Unfit, match="batch messages"):
        Cafe()(trace.view(CURIOUS_SERVER, knowledge={"architecture": network}), seed=1)
    for messages in ([], [m for m in trace.messages() if m.kind != "model"], list(trace.messages("batch"))):
        with pytest.raises(NotApplicable):
            Cafe()(server_view(MemoryTrace.of(messages, {"classes": 10})), seed=1)
    with pytest.raises(NotApplicable, match="not of the architecture"):
        Cafe()(server_view(trace, lambda: network(parties=1)), seed=1)


def test_lengths_come_from_rounds_without_a_sample_that_left_next_to_nothing() -> None:
    """Of sample 0 the weight gradients hold rounding alone, while its v is in the bias gradients in full."""
    lengths = torch.ones(10, dtype=torch.float64)
    lengths[0] = 1e-6
    with_it = [[0, 1, 2, 3], [0, 4, 5, 6], [0, 7, 8, 9]]
    rounds = []
    for number, members in enumerate([*with_it, [1, 4, 7, 2], [2, 5, 8, 4], [3, 6, 1, 5], [7, 6, 3, 8]]):
        batch, noise = torch.tensor(members), 1e-9
        v = torch.randn(4, 16, generator=rng(number), dtype=torch.float64)
        scaled = v * lengths[batch, None] + noise * torch.randn(4, 16, generator=rng(99 + number), dtype=torch.float64)
        rounds.append(_RoundGradients(batch, scaled, torch.full((4,), noise**2, dtype=torch.float64), v.sum(0)))
    found, doubt = _inverse_lengths(rounds, 10)
    torch.testing.assert_close(1 / found[1:9], lengths[1:9], atol=1e-6, rtol=0)
    assert bool((doubt[1:9] < 1e-5).all())
    assert min(float(doubt[0]), float(doubt[9])) > 1e-5, "9 was never without it"


def test_a_model_that_moves_costs_little_since_every_round_may_have_its_own_v() -> None:
    """Turning ReLUs change v at once; features change a little, and that is taken out again."""
    for lr, passes in ((0.01, 0), (0.01, 4)):
        trace, _, _ = federate(static=False, lr=lr, rounds=12)
        found = recover_moving(observe(server_view(trace)), InversionEffort(decoder=200, retry_blurs=()), rng(), passes)
        assert all(layer.route.startswith("column spaces, every round") for layer in found.layers)
        assert float((found.labels == digits().y).double().mean()) > 0.9
        assert psnr(found.x, digits()).median() > (30 if passes == 0 else 50)


def test_dp_sgd_in_a_vertical_federation_clips_what_a_sample_does_to_each_tower() -> None:
    net, clip = network(), 1e-3
    trace, made, _ = federate(net, rounds=1, defenses=(DpSgd(clip=clip, noise_multiplier=0.0, sampling="shuffle"),))
    expected: dict[str, Tensor] = {}
    for index in made.batches[0].tolist():
        one = gradient(net, digits().take(torch.tensor([index])))
        for party in range(4):
            own = {name: t for name, t in one.items() if name.startswith(f"towers.{party}.")}
            norm = sum(float(t.square().sum()) for t in own.values()) ** 0.5
            for name, t in own.items():
                expected[name] = expected.get(name, torch.zeros_like(t)) + t * min(1.0, clip / max(norm, 1e-12)) / BATCH
    for message in trace.messages("gradient"):
        for name, tensor in message.tensors.items():
            torch.testing.assert_close(tensor, expected[name], atol=1e-7, rtol=1e-4)
    whole_trace, _, _ = federate(net, defenses=(DpSgd(clip=clip, noise_multiplier=0.0, sampling="shuffle"),))
    _, labels, _ = whole(Cafe(tries=0)(server_view(whole_trace), seed=1), whole_trace)
    assert float((labels == digits().y).double().mean()) > 0.9, "clipping alone hides no label"


def test_a_moving_model_needs_no_more_than_plain_options() -> None:
    training = LocalTraining(batch_size=6, optimizer="adam", lr=1e-6)
    trace, _, _ = federate(plain(), static=False, training=training, rounds=12)
    guess = Cafe(passes=2)(server_view(trace, plain), seed=1)
    x, labels, _ = whole(guess, trace)
    assert float(psnr(x, digits()).median()) > 25
    assert float((labels == digits().y).double().mean()) > 0.8


def test_an_inversion_that_was_cut_short_is_not_vouched_for() -> None:
    """The features are known exactly; what does not explain them closely is no sample."""
    trace, _, _ = federate()
    observed = observe(server_view(trace))
    hasty = recover(observed, InversionEffort(plain=2, decoder=20, retry_blurs=(), anneal=((0.0, 2),)), rng(1))
    poor = psnr(hasty.x[torch.arange(SAMPLES)], digits()) < 30
    assert int(poor.sum()) > SAMPLES // 2
    assert not bool(certified_parts(hasty).all(1)[poor].any())
