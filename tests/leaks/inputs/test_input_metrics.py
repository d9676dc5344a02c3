"""Metrics for recovered inputs: known values, matching, chance, and everything that must not get a number."""

import importlib.util
import math

import pytest
import torch
from torch import Tensor, nn

from fedspill.audit.controls import swapped
from fedspill.dataset import Examples
from fedspill.errors import NotScored
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.metrics import (
    CertificatePrecision,
    InputsLpips,
    InputsMse,
    InputsPsnr,
    InputsRecognisable,
    InputsRecovered,
    InputsSsim,
)
from fedspill.leaks.inputs.scoring import similarity
from fedspill.leaks.inputs.scoring.chance import baselines
from fedspill.leaks.inputs.scoring.similarity import Range, lpips, matched, psnr, ssim
from fedspill.metric import Score
from fedspill.models.torchvision_shim import torchvision_models
from fedspill.trace import Origin, Truth

ORIGINS = [Origin(0, "client:0"), Origin(0, "client:1")]


def clients(samples: int = 6) -> list[Examples]:
    rng = torch.Generator().manual_seed(0)
    return [
        Examples(torch.rand(samples, 1, 8, 8, generator=rng), torch.randint(3, (samples,), generator=rng))
        for _ in ORIGINS
    ]


def truth_of(held: list[Examples]) -> Truth:
    """The first four samples of each client."""
    places = {
        (origin, "used_samples"): torch.stack([torch.full((4,), index), torch.arange(4)], 1)
        for index, origin in enumerate(ORIGINS)
    }
    return Truth(places).beside(held)


def guess_of(
    samples: list[Tensor], certified: list[Tensor] | None = None, answered: tuple[bool, ...] = (True, True)
) -> Inputs:
    marks = certified or [torch.ones(len(own), dtype=torch.bool) for own in samples]
    made = Inputs(ORIGINS, samples, marks, torch.tensor(answered))
    made.check()
    return made


def exact(held: list[Examples]) -> list[Tensor]:
    return [own.x[:4].flip(0) for own in held]


def test_the_truth_knows_inputs_only_beside_the_clients_data() -> None:
    held = clients()
    truth = truth_of(held)
    assert torch.equal(truth.get(ORIGINS[1], "inputs"), held[1].x[:4])
    assert torch.equal(truth.get(ORIGINS[1], "input_labels"), held[1].y[:4])
    alone = Truth(truth.facts)
    assert not alone.has(ORIGINS[0], "inputs")
    score = InputsRecovered().score(guess_of(exact(held)), alone)
    assert score.status == "unscored"
    assert "not at hand" in score.why


def test_perfect_samples_in_any_order_get_perfect_scores() -> None:
    held = clients()
    for metric in (
        InputsRecovered(),
        InputsRecognisable(),
        InputsPsnr(),
        InputsSsim(),
        InputsMse(),
        CertificatePrecision(),
    ):
        score = metric.score(guess_of(exact(held)), truth_of(held))
        assert score.value == pytest.approx(metric.perfect), metric.name
        assert score.status == "ok"


def test_known_values_of_psnr_and_ssim() -> None:
    real = torch.rand(3, 1, 16, 16, dtype=torch.float64)
    assert psnr(real + 0.1, real).tolist() == pytest.approx([20.0] * 3)
    assert psnr(real, real).tolist() == [similarity.CAP] * 3
    assert ssim(real, real).tolist() == pytest.approx([1.0] * 3)
    grey, other = torch.full((1, 1, 16, 16), 0.5), torch.full((1, 1, 16, 16), 0.6)
    luminance = (2 * 0.5 * 0.6 + 1e-4) / (0.25 + 0.36 + 1e-4)  # no structure: only the luminance term is left
    assert float(ssim(grey, other)) == pytest.approx(luminance, rel=1e-4)
    assert float(ssim(real[:1], 1 - real[:1])) < 0


def test_matching_is_one_to_one_and_least_in_all() -> None:
    real = torch.tensor([[0.0], [1.0], [2.0]])
    assert matched(torch.tensor([[1.9], [0.9]]), real).tolist() == [-1, 1, 0]
    assert matched(torch.tensor([[0.4], [0.6], [5.0], [2.0]]), real).tolist() == [0, 1, 3]
    assert matched(torch.zeros(0, 1), real).tolist() == [-1, -1, -1]


def test_half_recovered_is_a_half_missing_ones_are_grey_and_surplus_counts_against_it() -> None:
    held = clients()
    truth = truth_of(held)
    half = guess_of([own.x[:2] for own in held])
    assert InputsRecovered().score(half, truth).value == 0.5
    grey = psnr(torch.full((2, 1, 8, 8), 0.5), held[0].x[2:4]).mean()
    expected = (2 * similarity.CAP + 2 * float(grey)) / 4
    assert InputsPsnr().measure(half, truth).values[0] == pytest.approx(expected)
    everything = guess_of([torch.cat([own.x[:4], torch.rand(4, 1, 8, 8)]) for own in held])
    assert InputsRecovered().score(everything, truth).value == 0.5


def test_chance_is_the_best_of_grey_class_mean_and_other_samples_and_never_the_sample_itself() -> None:
    held = clients()
    truth = truth_of(held)
    real = [truth.get(origin, "inputs") for origin in ORIGINS]
    tried = baselines(ORIGINS, real, truth)
    assert set(tried) == {"grey", "random", "class mean"}
    for guesses in tried.values():
        assert all(guess.shape == own.shape for guess, own in zip(guesses, real, strict=True))
        assert all(
            float((torch.cdist(g.flatten(1), r.flatten(1))).min()) > 0.5 for g, r in zip(guesses, real, strict=True)
        )
    score = InputsPsnr().score(guess_of(exact(held)), truth)
    best = max(
        float(torch.stack([psnr(g[None], r[None])[0] for g, r in zip(tried["grey"][0], real[0], strict=True)]).mean()),
        0,
    )
    assert score.chance >= best - 2
    assert InputsRecovered().score(guess_of(exact(held)), truth).chance == 0


def test_when_all_inputs_are_alike_chance_says_so() -> None:
    held = [
        Examples(torch.full((6, 1, 8, 8), 0.3) + 0.001 * torch.rand(6, 1, 8, 8), torch.zeros(6, dtype=torch.int64))
    ] * 2
    score = InputsRecovered().score(guess_of(exact(held)), truth_of(held))
    assert score.value == score.chance == 1.0


def test_swapped_truth_gives_chance() -> None:
    held = clients()
    truth = Truth(swapped(truth_of(held).facts), held)
    assert not torch.equal(truth.get(ORIGINS[0], "inputs"), held[0].x[:4])
    assert InputsRecovered().score(guess_of(exact(held)), truth).value == 0


def test_what_is_not_answered_is_not_scored_and_nothing_returned_is_zero() -> None:
    held = clients()
    truth = truth_of(held)
    none = [torch.zeros(0, 1, 8, 8)] * 2
    silent = InputsRecovered().score(guess_of(none, answered=(False, False)), truth)
    assert silent.status == "unscored"
    assert "does not apply" in silent.why
    tried = InputsRecovered().score(guess_of(none), truth)
    assert (tried.status, tried.value) == ("ok", 0.0)
    one = InputsRecovered().score(guess_of([exact(held)[0], none[0]], answered=(True, False)), truth)
    assert (one.value, one.n) == (1.0, 1)


def test_certificates_are_judged_by_those_that_they_pass() -> None:
    held = clients()
    samples = [torch.cat([own.x[:2], torch.rand(2, 1, 8, 8)]) for own in held]
    right = [torch.tensor([True, True, False, False])] * 2
    truth = truth_of(held)
    assert CertificatePrecision().score(guess_of(samples, right), truth).value == 1.0
    everything = CertificatePrecision().score(guess_of(samples), truth)
    assert everything.value == everything.chance == 0.5
    nothing = CertificatePrecision().score(guess_of(samples, [torch.zeros(4, dtype=torch.bool)] * 2), truth)
    assert nothing.status == "unscored"


def test_inputs_outside_the_unit_range_are_scored_by_their_own_range() -> None:
    span = Range.of([torch.tensor([-2.0, 2.0])])
    assert (span.low, span.high) == (-2.0, 2.0)
    assert span.unit(torch.tensor([-3.0, 0.0, 2.0])).tolist() == [0.0, 0.5, 1.0]
    assert Range.of([torch.tensor([0.2, 0.9])]) == Range(0.0, 1.0)


def test_a_flat_guess_is_reshaped_and_one_of_another_size_is_not_scored() -> None:
    held = clients()
    flat = [own.x[:4].flatten(1) for own in held]
    assert InputsRecovered().score(guess_of(flat), truth_of(held)).value == 1.0
    wrong = InputsRecovered().score(guess_of([own[:, :10] for own in flat]), truth_of(held))
    assert wrong.status == "unscored"


def test_lpips_without_weights_is_unscored_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("FEDSPILL_DATA", str(tmp_path))
    similarity.lpips_weights.cache_clear()
    score: Score = InputsLpips().score(guess_of(exact(clients())), truth_of(clients()))
    assert score.status == "unscored"
    assert math.isnan(score.value)
    assert "alex.safetensors" in score.why


def lpips_weights(rng: torch.Generator) -> dict[str, Tensor]:
    """Random ones of the right shapes: the published ones cannot be downloaded in a test."""
    shapes = [(64, 3, 11, 11), (192, 64, 5, 5), (384, 192, 3, 3), (256, 384, 3, 3), (256, 256, 3, 3)]
    weights = {f"conv{i}.weight": 0.05 * torch.randn(shape, generator=rng) for i, shape in enumerate(shapes)}
    weights |= {f"conv{i}.bias": 0.1 * torch.randn(shape[0], generator=rng) for i, shape in enumerate(shapes)}
    weights |= {f"lin{i}.weight": torch.rand(1, shape[0], 1, 1, generator=rng) for i, shape in enumerate(shapes)}
    return weights


def test_lpips_is_zero_for_equal_images_and_grows_with_distance() -> None:
    rng = torch.Generator().manual_seed(0)
    weights = lpips_weights(rng)
    image = torch.rand(2, 3, 32, 32, generator=rng)
    assert lpips(image, image, weights).tolist() == [0.0, 0.0]
    near, far = lpips(image, (image + 0.01).clamp(0, 1), weights), lpips(image, 1 - image, weights)
    assert bool((near < far).all())
    with pytest.raises(NotScored, match="images"):
        lpips(torch.rand(2, 5), torch.rand(2, 5), weights)


@pytest.mark.filterwarnings("ignore::UserWarning")  # lpips asks torchvision by names that it has deprecated
@pytest.mark.parametrize("side", [32, 48, 67])
def test_lpips_is_that_of_its_authors_package(side: int) -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("lpips needs torchvision")
    torchvision_models()  # lets torchvision be imported also where its compiled part was built for another torch
    theirs = pytest.importorskip("lpips", reason="lpips is a development dependency")
    rng = torch.Generator().manual_seed(side)
    weights = lpips_weights(rng)
    network = theirs.LPIPS(net="alex", pretrained=False, pnet_rand=True, verbose=False).eval()
    convolutions = [module for module in network.net.modules() if isinstance(module, nn.Conv2d)]
    with torch.no_grad():
        for layer, convolution in enumerate(convolutions):
            convolution.weight.copy_(weights[f"conv{layer}.weight"])
            assert convolution.bias is not None
            convolution.bias.copy_(weights[f"conv{layer}.bias"])
            network.lins[layer].model[-1].weight.copy_(weights[f"lin{layer}.weight"])
        one, other = torch.rand(2, 3, 3, side, side, generator=rng)
        expected = network(one, other, normalize=True).flatten().double()
    assert len(convolutions) == 5
    torch.testing.assert_close(lpips(one, other, weights), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("channels", "side"), [(1, 11), (1, 28), (3, 32)])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_psnr_and_ssim_are_those_of_scikit_image(channels: int, side: int, noise: float) -> None:
    theirs = pytest.importorskip("skimage.metrics", reason="scikit-image is a development dependency")
    rng = torch.Generator().manual_seed(side)
    real = torch.rand(4, channels, side, side, generator=rng, dtype=torch.float64)
    guessed = (real + noise * torch.randn(real.shape, generator=rng, dtype=torch.float64)).clamp(0, 1)
    # As Wang et al. (2004): a Gaussian window of deviation 1.5, and variances over the window, not of a sample.
    wang = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "channel_axis": 0, "data_range": 1}
    for index, (a, b) in enumerate(zip(guessed.numpy(), real.numpy(), strict=True)):
        one = slice(index, index + 1)
        assert float(psnr(guessed[one], real[one])) == pytest.approx(
            theirs.peak_signal_noise_ratio(b, a, data_range=1), rel=1e-12
        )
        assert float(ssim(guessed[one], real[one])) == pytest.approx(
            theirs.structural_similarity(b, a, **wang), rel=1e-9, abs=1e-12
        )


def test_pictures_are_shown_only_when_asked_for() -> None:
    held = clients()
    guess, truth = guess_of(exact(held)), truth_of(held)
    assert InputsRecovered().evidence(guess, truth, private=False) == []
    (shown,) = InputsRecovered().evidence(guess, truth, private=True)
    assert shown.private
    assert all(uri.startswith("data:image/png;base64,") for uri in shown.as_json()["original"])
