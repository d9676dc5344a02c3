"""Claims of differential privacy in an audit: tested where code can be called, said everywhere, never passed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from audit_kit import answered, audit, tiny, typed

from fedspill.audit.run_audit import Request
from fedspill.cli.finish import exit_code
from fedspill.errors import ExitCode
from fedspill.report import html, junit, markdown, sarif, text

Found = dict[str, Any]
FORGETFUL = """
from dataclasses import dataclass, replace
from typing import ClassVar, final
import torch
from fedspill.defense import Defense, Guarantee, WireEffect

@final
@dataclass(frozen=True)
class Forgetful(Defense):
    name: ClassVar[str] = "forgetful"
    title: ClassVar[str] = "Clips and forgets its noise on biases"
    fails: bool = False

    def outgoing(self, message, rng):
        norm = torch.cat([tensor.flatten() for tensor in message.tensors.values()]).norm()
        if self.fails and norm > 20:
            raise ValueError("secret of a client")
        scale = float(1 / norm.clamp_min(1))
        noised = lambda name, t: scale * t + (0 if "bias" in name else torch.randn(t.shape, generator=rng))
        return replace(message, tensors={name: noised(name, t) for name, t in message.tensors.items()})

    def effect(self):
        return WireEffect(update_clip=1.0, update_noise=1.0)

    def claims(self, use):
        return Guarantee(15.5, 1e-5, "by heart")
"""


def audited(folder: Path, **defense: Any) -> Found:
    return audit(tiny(attacks=["llbg"], adversaries=["curious-server"], defenses=[defense]), folder)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return audited(tmp_path_factory.mktemp("sound"), name="clip-noise", sigma=1.0)


def with_forgetful(folder: Path, **options: Any) -> Found:
    """A defense of somebody's that puts no noise on biases."""
    (folder / "forgetful.py").write_text(FORGETFUL)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.delitem(sys.modules, "forgetful", raising=False)
        return audited(folder / "audit", name="forgetful:Forgetful", **options)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return with_forgetful(tmp_path_factory.mktemp("broken"))


def test_a_claim_is_tested_and_never_passes(sound: Found) -> None:
    (claim,) = sound["privacy_claims"]
    assert (claim["defense"], claim["verdict"]) == ("clip-noise", "no violation found")
    assert claim["claimed"] == claim["tested"] == pytest.approx(15.456, rel=1e-3)
    assert 0.8 * claim["claimed"] < claim["lower"] <= claim["claimed"] < claim["largest"]
    assert claim["confidence"] > 0.999
    assert claim["assumption"].startswith("normal noise")
    assert claim["said"].startswith("no violation above")
    assert "passed" not in json.dumps(claim)
    shown = [html.render(typed(sound)), markdown.render(typed(sound)), " ".join(text.lines(typed(sound)))]
    assert all("no violation above" in " ".join(page.split()) for page in shown)
    assert not any("violated" in page.lower() for page in shown)
    assert exit_code(typed(sound)) is not ExitCode.FINDINGS


def test_a_violated_claim_fails_everywhere(broken: Found) -> None:
    (claim,) = broken["privacy_claims"]
    assert claim["verdict"] == "violated"
    assert claim["lower"] > 100 > claim["claimed"]
    result = typed(broken)
    assert exit_code(result) is ExitCode.FINDINGS
    cleared = result.model_copy(update={"privacy_claims": []})
    assert exit_code(cleared) is not ExitCode.FINDINGS, "the claim alone decides here"
    (failed,) = (r for r in json.loads(sarif.render(result))["runs"][0]["results"] if "claim" in r["ruleId"])
    assert (failed["kind"], failed["level"]) == ("fail", "error")
    suite = fromstring(junit.render(result)).find("testsuite[@name='claims of privacy']")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("1", "1", "0")
    assert "claim of differential privacy is violated" in html.render(result)
    assert "claim of differential privacy is violated" in markdown.render(result)
    assert any("CLAIM OF PRIVACY IS VIOLATED" in line for line in text.lines(result))


def test_what_claims_nothing_costs_no_job_and_says_nothing(tmp_path: Path) -> None:
    result = audited(tmp_path, name="compression")
    assert result["privacy_claims"] == []
    assert "Differential privacy, tested" not in html.render(typed(result))


def test_a_claim_that_cannot_be_tested_says_why_and_leaves_the_audit_complete(tmp_path: Path) -> None:
    result = audited(tmp_path, name="clip-noise", sigma=1.0, law="laplace")
    (claim,) = result["privacy_claims"]
    assert claim["verdict"] == "not tested"
    assert "Laplace" in claim["said"]
    assert result["verdict"]["complete"]
    assert fromstring(junit.render(typed(result))).find(".//testsuite[@name='claims of privacy']//skipped") is not None


def test_a_test_that_fails_leaves_the_audit_open_and_quotes_nobody(tmp_path: Path) -> None:
    result = with_forgetful(tmp_path, fails=True)
    (claim,) = result["privacy_claims"]
    assert claim["verdict"] == "not tested"
    assert "ValueError" in claim["said"]
    assert not result["verdict"]["complete"]
    assert "secret of a client" not in json.dumps(result)


@pytest.mark.slow
def test_a_recording_is_not_called_again(tmp_path: Path) -> None:
    plan = tiny(attacks=["llbg"], adversaries=["curious-server"])
    audit(plan, tmp_path / "bare")
    (folder,) = (tmp_path / "bare" / "traces").iterdir()
    claimed = tiny(
        attacks=["llbg"], adversaries=["curious-server"], defenses=[{"name": "clip-noise", "sigma": 0.1}, "compression"]
    )
    (claim,) = answered(Request(claimed, tmp_path / "audit", trace=folder))["privacy_claims"]
    assert (claim["defense"], claim["verdict"], claim["claimed"]) == ("clip-noise", "not tested", None)
    assert "recording" in claim["said"]
