"""The manifest in examples/kuberay is whole: what KubeRay asks of a RayJob, a command that there is, and a plan."""

from __future__ import annotations

import re
import shlex
import tomllib
from typing import Any

import pytest
from commands import ROOT

from fedspill.cli.main import _imported
from fedspill.deployment.plan import check_plan

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which Ray brings")
EXAMPLE = ROOT / "examples" / "kuberay"
# Of the definition ray.io/v1, as far as it is used here: what each part may have, and what it must have.
JOB = {"entrypoint", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "backoffLimit", "rayClusterSpec"}
CLUSTER = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
HEAD = {"rayStartParams", "template"}
WORKERS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    text = (EXAMPLE / "audit.yaml").read_text(encoding="utf-8")
    return {part["kind"]: part for part in yaml.safe_load_all(text)}


def groups(parts: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = parts["RayJob"]["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def test_it_has_the_fields_that_kuberay_asks_for(parts: dict[str, Any]) -> None:
    job = parts["RayJob"]
    assert job["apiVersion"] == "ray.io/v1"
    cluster = job["spec"]["rayClusterSpec"]
    assert (set(job["spec"]), set(cluster)) == (JOB, CLUSTER)
    assert set(cluster["headGroupSpec"]) == HEAD
    for group in cluster["workerGroupSpecs"]:
        assert set(group) == WORKERS
        assert 1 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in groups(parts):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())  # numbers are refused
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_all_pods_see_the_audit_and_the_plan(parts: dict[str, Any]) -> None:
    claim, plan = parts["PersistentVolumeClaim"], parts["ConfigMap"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for group in groups(parts):
        spec = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert volumes["audits"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert volumes["plan"]["configMap"]["name"] == plan["metadata"]["name"]
        assert {mount["name"] for mount in spec["containers"][0]["volumeMounts"]} == set(volumes)


def test_its_command_and_its_plan_are_ones_that_there_are(parts: dict[str, Any]) -> None:
    program, command, *arguments = shlex.split(parts["RayJob"]["spec"]["entrypoint"])
    assert (program, command) == ("fedspill", "audit")
    _imported(command).make_context(command, list(arguments))
    assert arguments[0] == "/plan/plan.toml"
    check_plan(tomllib.loads(parts["ConfigMap"]["data"]["plan.toml"]), "audit.yaml")


def test_ray_is_the_one_that_is_tested(parts: dict[str, Any]) -> None:
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    assert parts["RayJob"]["spec"]["rayClusterSpec"]["rayVersion"] == pinned[1]
    dockerfile = (EXAMPLE / "Dockerfile").read_text(encoding="utf-8")
    assert f"FROM rayproject/ray:{pinned[1]}-" in dockerfile
    tag = re.search(r"--tag (\S+)", dockerfile)
    assert tag is not None
    assert {group["template"]["spec"]["containers"][0]["image"] for group in groups(parts)} == {tag[1]}
