"""The deployment examples, as far as they can be checked without a container runtime or a cluster."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose

from cadence.entrypoints.server.routes import health
from tests.docs.blocks import ROOT
from tests.docs.commands import parse_cadence

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
KUBERNETES = [path for path in sorted((DEPLOY / "kubernetes/cpu").glob("*.yaml")) if path.name != "kustomization.yaml"]
SCHEMA = "1.32"
HEALTH_PATHS = {route.path for route in health.router.routes}  # type: ignore[attr-defined]
PORT = 8000


def hadolint(text: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "hadolint"
    return subprocess.run([program, "-"], input=text, capture_output=True, text=True, timeout=60)


def instructions(text: str) -> list[tuple[str, str]]:
    """(word, rest) of each instruction; of several stages, in order."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.M))
    return [(word, rest.strip()) for line in joined.splitlines() if line for word, _, rest in [line.partition(" ")]]


def last(word: str) -> str:
    return [rest for found, rest in instructions(DOCKERFILE) if found == word][-1]


def deployment() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "kubernetes/cpu/deployment.yaml").read_text(encoding="utf-8"))


class TestContainer:
    def test_linter(self) -> None:
        done = hadolint(DOCKERFILE)
        assert done.returncode == 0, done.stdout

    def test_linter_finds_faults(self) -> None:
        assert "DL3002" in hadolint(DOCKERFILE.replace("USER 10001:10001", "USER root")).stdout

    def test_what_it_copies_is_there_and_not_ignored(self) -> None:
        kept = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.M)
        for word, rest in instructions(DOCKERFILE):
            if word == "COPY" and not rest.startswith("--from"):
                for source in rest.split()[:-1]:
                    assert (ROOT / source).exists(), source
                    assert source.split("/")[0] in kept, source

    def test_what_it_runs(self) -> None:
        assert json.loads(last("ENTRYPOINT")) == ["cadence"]
        flags = parse_cadence(json.loads(last("CMD")))
        assert (flags.model_tag, flags.host) == ("smollm2", "0.0.0.0")
        assert last("EXPOSE") == str(PORT)
        assert not last("USER").startswith(("0", "root"))
        assert last("VOLUME") == re.search(r"CADENCE_CACHE=(\S+)", DOCKERFILE)[1]  # type: ignore[index]

    def test_health_is_asked_of_a_path_that_needs_no_key(self) -> None:
        asked = re.search(rf"127\.0\.0\.1:{PORT}(/\w+)", last("HEALTHCHECK"))
        assert asked is not None and asked[1] in ("/livez", "/readyz", "/health") and asked[1] in HEALTH_PATHS

    def test_versions_are_those_of_the_tests(self) -> None:
        assert re.search(r"pyyaml==\S+", DOCKERFILE)[0] in (ROOT / "requirements/dev.txt").read_text()  # type: ignore[index]

    @pytest.mark.slow
    def test_the_installed_package_has_every_file(self, tmp_path: Path) -> None:
        """What the image installs is not a checkout: kernels' sources and the page must be in the wheel."""
        copy = tmp_path / "source"
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "cadence", copy / "cadence", ignore=ignore)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        wheel_of = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
        subprocess.run([*wheel_of, "-w", tmp_path, copy], check=True, timeout=120)
        (wheel,) = tmp_path.glob("*.whl")
        packed = set(zipfile.ZipFile(wheel).namelist())
        files = [path for path in (ROOT / "cadence").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        missing = [str(path.relative_to(ROOT)) for path in files if str(path.relative_to(ROOT)) not in packed]
        assert [name for name in missing if not name.endswith((".so", ".pyc"))] == []


class TestCompose:
    TEXT = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")

    def test_read_as_docker_compose_would(self) -> None:
        assert len(PyCompose.from_yaml(self.TEXT)) == 2
        with pytest.raises(ValueError, match="volumess"):
            PyCompose.from_yaml(self.TEXT.replace("    volumes:", "    volumess:", 1))

    def test_services(self) -> None:
        compose = yaml.safe_load(self.TEXT)
        for name, service in compose["services"].items():
            flags = parse_cadence(service["command"])
            assert flags.host == "0.0.0.0", name
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
            assert service["build"]["args"]["DEVICE"] in ("cpu", "cuda")
            assert [volume.split(":")[0] for volume in service["volumes"]] == list(compose["volumes"])
            assert all(port.startswith("127.0.0.1:") for port in service["ports"])
            assert service["read_only"] and service["cap_drop"] == ["ALL"]


class TestSystemd:
    UNIT = (DEPLOY / "cadence.service").read_text(encoding="utf-8")

    def test_verified(self, tmp_path: Path) -> None:
        if shutil.which("systemd-analyze") is None:
            pytest.skip("systemd is not installed here")
        assert verify(self.UNIT, tmp_path) == ""
        assert "kill mode" in verify(self.UNIT.replace("KillMode=mixed", "KillMode=gently"), tmp_path)

    def test_its_flags(self) -> None:
        command = re.search(r"^ExecStart=/opt/cadence/bin/cadence (.*)$", self.UNIT, re.M)
        assert command is not None
        words = command[1].replace("/etc/cadence/server.yaml", str(DEPLOY / "server.yaml")).split()
        flags = parse_cadence(words)
        assert int(re.search(r"^TimeoutStopSec=(\d+)", self.UNIT, re.M)[1]) > int(flags.shutdown_timeout)  # type: ignore[index]


def verify(unit: str, folder: Path) -> str:
    """What systemd says of it, with a program that exists here in place of the server."""
    path = folder / "cadence.service"
    path.write_text(unit.replace("/opt/cadence/bin/cadence", "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60)
    return "\n".join(line for line in done.stderr.splitlines() if "cadence.service" in line)


class TestKubernetes:
    @pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
    def test_schema(self, path: Path) -> None:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            kubernetes_validate.validate(document, SCHEMA, strict=True)

    def test_schema_finds_faults(self) -> None:
        document = deployment()
        document["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(document, SCHEMA, strict=True)

    def test_container(self) -> None:
        pod = deployment()["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        flags = parse_cadence(container["args"])
        assert flags.host == "0.0.0.0"
        assert container["ports"][0]["containerPort"] == PORT
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["path"] in HEALTH_PATHS
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"  # not ready is no reason to be killed
        assert container["securityContext"]["readOnlyRootFilesystem"] and pod["securityContext"]["runAsNonRoot"]
        assert f"--uid {pod['securityContext']['runAsUser']} " in DOCKERFILE
        assert container["resources"]["requests"] and container["resources"]["limits"]
        assert "/cache" in [mount["mountPath"] for mount in container["volumeMounts"]]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}

    def test_ray(self) -> None:
        """The operator's own kind has no schema here; the pods in it are checked as pods."""
        job = yaml.safe_load((DEPLOY / "kubernetes/ray/rayjob.yaml").read_text(encoding="utf-8"))["spec"]
        cluster = job["rayClusterSpec"]
        flags = parse_cadence(job["entrypoint"].split()[1:])
        (workers,) = cluster["workerGroupSpecs"]
        assert flags.distributed_executor_backend == "ray" and int(flags.tensor_parallel_size) == workers["replicas"]
        for group in (cluster["headGroupSpec"], workers):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}
            kubernetes_validate.validate(pod, SCHEMA, strict=True)
        pinned = f"ray[default]=={cluster['rayVersion']}"
        assert pinned in (DEPLOY / "kubernetes/ray/Dockerfile").read_text(encoding="utf-8")
        assert f"ray=={cluster['rayVersion']} " in (ROOT / "requirements/dev.txt").read_text(encoding="utf-8")

    def test_kustomizations_name_files_that_exist(self) -> None:
        for path in (DEPLOY / "kubernetes").rglob("kustomization.yaml"):
            for resource in yaml.safe_load(path.read_text(encoding="utf-8"))["resources"]:
                assert (path.parent / resource).exists(), f"{path}: {resource}"

    def test_patched_for_a_gpu(self) -> None:
        if shutil.which("kubectl") is None:
            pytest.skip("kubectl is not installed here")
        command = ["kubectl", "kustomize", DEPLOY / "kubernetes/gpu"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        documents = list(yaml.safe_load_all(done.stdout))
        for document in documents:
            kubernetes_validate.validate(document, SCHEMA, strict=True)
        (patched,) = [document for document in documents if document["kind"] == "Deployment"]
        (container,) = patched["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "cadence:cuda"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        parse_cadence(container["args"])
