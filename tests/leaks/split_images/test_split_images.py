"""Images of a client of split learning: hijacked training, descent in inputs and weights, and where neither applies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedspill.attack_run import Outcome, run_attack
from fedspill.audit.matrix import pairs_of
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import NotApplicable
from fedspill.federation.hijack import EmbeddingKind, Hijack, networks_of
from fedspill.leaks.split_images.guess import RebuiltImages
from fedspill.leaks.split_images.leak import SPLIT_IMAGES
from fedspill.leaks.split_images.metrics import ImagesRecognised
from fedspill.leaks.split_images.unsplit import stretched
from fedspill.messages import SERVER
from fedspill.registry import make
from fedspill.threat import ACTIVE_PARTY, ALTERING, MALICIOUS_ACTIVE_PARTY
from fedspill.trace import MemoryTrace, Origin, Truth

MAPS = EmbeddingKind((1, 8, 8), 32, (2, 4, 4), positive=True)


def run(attack: str, *, honest: bool = False, options: dict[str, Any] | None = None, **parts: Any) -> Outcome:
    """The attack in a federation like its control's, with some parts of the plan changed."""
    control = {
        part: {**value, **parts.get(part, {})} if isinstance(value, dict) else value
        for part, value in SPLIT_IMAGES.control.items()
    }
    deployment = Deployment.of(check_plan({"seed": 1, **control, **parts.get("whole", {})}, "a plan"))
    trace = MemoryTrace(deployment.protocol())
    made = make("attacks", attack, options or {})
    altering = frozenset() if honest else made.needs.does & ALTERING
    deployment.federation(trace, altering=altering).run()
    threat = MALICIOUS_ACTIVE_PARTY if attack == "fsha" else ACTIVE_PARTY
    truth = trace.truth().beside(deployment.shares.clients)
    return run_attack(made, trace, threat, knowledge=deployment.knowledge(), seed=1, truth=truth)


@pytest.mark.slow
def test_a_hijacked_client_sends_images_that_the_server_can_read() -> None:
    score = run("fsha").scores["images-recognised"]
    assert score.value > 0.3
    assert score.n == 60


def test_the_judges_gradient_leads_the_client_to_what_the_pilot_sends() -> None:
    rng = torch.Generator().manual_seed(0)
    hijack = Hijack(MAPS, torch.rand(30, 1, 8, 8, generator=rng), 100, rng)
    sent = torch.rand(10, 32, generator=rng)
    judge = hijack.networks["judge"]
    before = judge(sent).mean()
    weights = {name: tensor.clone() for name, tensor in hijack.networks.state_dict().items()}
    back = hijack.gradient(sent)
    moved = {name for name, tensor in hijack.networks.state_dict().items() if not torch.equal(tensor, weights[name])}
    assert {name.partition(".")[0] for name in moved} == {"pilot", "decoder", "judge"}
    judge.load_state_dict({n.removeprefix("judge."): t for n, t in weights.items() if n.startswith("judge.")})
    assert judge(sent - 1e-3 * back / back.norm()).mean() < before
    assert hijack.read_back(sent).abs().max() <= 1


def test_a_hijacked_party_is_sent_other_gradients_and_an_honest_recording_is_refused() -> None:
    with pytest.raises(NotApplicable, match="followed the protocol"):
        run("fsha", honest=True, federation={"rounds": 3, "samples": 40, "predictions": 4})


def test_images_come_back_from_embeddings_and_the_architecture_alone() -> None:
    outcome = run("unsplit", model={"cut": 1}, federation={"rounds": 40})
    score = outcome.scores["images-recognised"]
    assert score.value > 0.5
    assert score.low > score.chance


def test_without_predictions_the_last_batch_is_read() -> None:
    quick = {"turns": 1, "input_steps": 2, "weight_steps": 2}
    small = {"rounds": 3, "samples": 40, "predictions": 0}
    assert run("unsplit", options=quick, federation=small).scores["images-recognised"].n == 20


@pytest.mark.parametrize("attack", ["fsha", "unsplit"])
@pytest.mark.parametrize("parties", [1, 4])
def test_networks_of_another_kind_are_skipped_with_a_sentence(attack: str, parties: int) -> None:
    whole = {"model": {"name": "vertical-mlp", "parties": parties, "widths": [16]}}
    with pytest.raises(NotApplicable, match="parties" if parties > 1 else "convolutions|feature maps"):
        run(attack, whole=whole, federation={"rounds": 2, "samples": 40, "predictions": 4})


def test_they_cost_nothing_where_there_are_several_parties() -> None:
    control = dict(SPLIT_IMAGES.control)
    split = pairs_of(check_plan(control, "a plan"))
    assert {"fsha/malicious-active-party", "unsplit/active-party"} <= {pair.id for pair in split if not pair.lacks()}
    several = {**control, "model": {"name": "vertical-mlp", "parties": 2}}
    assert not {pair.attack for pair in pairs_of(check_plan(several, "a plan"))} & {"fsha", "unsplit"}
    none_aside = check_plan({**control, "adversary_data": {"per_class": 0}}, "a plan")
    lacks = [pair.lacks() for pair in pairs_of(none_aside) if pair.id == "fsha/malicious-active-party"]
    assert "sets none aside" in lacks[0][0]


def test_an_image_is_recognised_whatever_its_brightness_and_one_picture_for_all_is_chance() -> None:
    real = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    origin = Origin(0, SERVER)
    truth = Truth({(origin, "inputs"): real})

    def score(rows: torch.Tensor) -> float:
        return ImagesRecognised().score(RebuiltImages([origin], [rows]), truth).value

    assert score(3 * real.flatten(1) - 1) == 1.0
    assert score(real.flatten(1)[:1].repeat(6, 1)) <= 1 / 6


def test_rows_are_stretched_to_the_range_that_is_known() -> None:
    found = stretched(torch.tensor([[0.2, 0.4, 0.3]]), torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]))
    assert torch.allclose(found, torch.tensor([[0.0, 1.0, 0.5]]))


@pytest.mark.parametrize("halvings", [1, 2, 3])
def test_pilot_and_decoder_fit_images_that_are_halved_up_to_three_times(halvings: int) -> None:
    kind = EmbeddingKind((3, 16, 16), 4 * (16 >> halvings) ** 2, (4, 16 >> halvings, 16 >> halvings), positive=False)
    found = networks_of(kind, seed=1)
    sent = found["pilot"](torch.zeros(2, 3 * 16 * 16))
    assert sent.shape == (2, kind.width)
    assert found["decoder"](sent).shape == (2, 3 * 16 * 16)
    assert found["judge"](sent).shape == (2, 1)
