"""The Kubernetes example: Kubernetes takes the manifests, `brand` takes their commands, and their numbers agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

import brand
from brand.cli.main import cli
from brand.node.serve.http import HttpPort
from brand.node.serve.server import FACTS_LIMIT_S
from brand.node.setup.memory import parse_size
from brand.testing.node import running_server
from tests.support import LIMIT_S, wait_until

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="it has the schemas of Kubernetes")
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "kubernetes"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
VERSIONS = ("1.29", "1.37")
"""The oldest Kubernetes that has sidecars, and a new one."""
SERVER_BYTES = 1 << 30
"""At least so much of a server's limit is not for samples."""


def objects(name: str) -> list[dict[str, Any]]:
    """The objects of a manifest."""
    return [each for each in yaml.safe_load_all((FOLDER / name).read_text()) if each]


def pods() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each Job of the example, and the specification of its pods."""
    for name in FILES:
        for each in objects(name):
            if each["kind"] == "Job":
                yield each["spec"], each["spec"]["template"]["spec"]


def containers() -> list[dict[str, Any]]:
    """All containers of all pods."""
    return [each for _, pod in pods() for each in [*pod.get("initContainers", []), *pod["containers"]]]


def container(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Job of a container, and the container."""
    for job, pod in pods():
        for each in [*pod.get("initContainers", []), *pod["containers"]]:
            if each["name"] == name:
                return job, each
    raise AssertionError(f"no container {name}")


def option(arguments: list[str], name: str) -> str:
    """The value behind an option."""
    return arguments[arguments.index(name) + 1]


def assert_taken(arguments: list[str]) -> None:
    """`brand` has this verb, and it takes these arguments; nothing is run."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        _, found, arguments = command.resolve_command(click.Context(command), list(arguments))
        assert found is not None
        command = found
    command.make_context(command.name, list(arguments))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_kubernetes_takes_a_manifest(name: str, version: str) -> None:
    """Each object has a known kind, and only fields that this kind has."""
    for each in objects(name):
        kubernetes_validate.validate(each, version, strict=True)


def test_a_wrong_field_is_found() -> None:
    """A misspelt field, or one at the wrong depth, is an error."""
    (job,) = objects("seal.yaml")
    job["spec"]["template"]["spec"]["restartpolicy"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)


def test_brand_takes_the_command_of_a_server() -> None:
    """One of the nodes of a training."""
    _, server = container("server")
    assert_taken([word.replace("$(JOB_COMPLETION_INDEX)", "0") for word in server["args"]])


@pytest.mark.slow
@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe"])
def test_a_server_answers_its_probes(probe: str, photos_set: Path) -> None:
    """On the port of `--http`, without a token, while its loop runs, and no more when it has ended."""
    _, server = container("server")
    asked = server[probe]["httpGet"]
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert option(server["args"], "--http") == f"0.0.0.0:{ports[asked['port']]}"
    assert server[probe]["timeoutSeconds"] > FACTS_LIMIT_S
    with running_server(photos_set) as running, closing(HttpPort("0", "token", running.node.facts)) as port:
        url = f"http://{port.address}{asked['path']}"
        assert status_of(url) == 200
        running.node.stop()
        wait_until(lambda: status_of(url) == 503, "the pod is not ready any more")


def status_of(url: str) -> int:
    """How a server answers."""
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize("name", ["convert", "seal"])
def test_brand_takes_the_commands_of_a_conversion(name: str) -> None:
    """A part of a conversion, and its end."""
    _, each = container(name)
    try:
        assert_taken([word.replace("$(JOB_COMPLETION_INDEX)", "0") for word in each["args"]])
    except click.UsageError as error:
        raise AssertionError(error) from None


def test_there_are_as_many_pods_as_parts_and_peers() -> None:
    """`--task k/8` needs 8 pods; `--peers` and torchrun name each pod of the training."""
    job, convert = container("convert")
    assert option(convert["args"], "--task") == f"$(JOB_COMPLETION_INDEX)/{job['completions']}"
    job, server = container("server")
    peers = option(server["args"], "--peers").split(",")
    assert peers == [f"train-{number}.train:7070" for number in range(job["completions"])]
    assert job["parallelism"] == job["completions"]
    _, train = container("train")
    assert f"--nnodes={job['completions']}" in train["args"]
    assert f"--server={option(server['args'], '--address')}" in train["args"]


def test_the_limit_of_a_server_holds_its_memory() -> None:
    """`limits.memory` has room for `--memory` and for the server itself."""
    _, server = container("server")
    limit = parse_size(f"{server['resources']['limits']['memory']}B")
    assert parse_size(option(server["args"], "--memory")) + SERVER_BYTES <= limit


def test_every_container_is_locked_down_and_limited() -> None:
    """No root, no new rights, a limit of memory, an image of this version, and nothing at /dev/shm."""
    assert len(containers()) == 4
    for job, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"], job
        assert pod["securityContext"]["runAsUser"] == int(user_of_the_image())
        assert all(volume.get("emptyDir") in (None, {}) for volume in pod["volumes"])
    for each in containers():
        assert each["image"] == f"brand:{brand.__version__}"
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in each["resources"]["limits"]
        assert all(mount["mountPath"] != "/dev/shm" for mount in each["volumeMounts"])


def user_of_the_image() -> str:
    """The user that the image runs as, by number: Kubernetes cannot see whether a name is root."""
    users: list[str] = re.findall(r"^USER (\d+):\d+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return users[-1]


ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "--ipc")
"""Runs a command in process, mount and IPC namespaces of its own, as a container."""


@pytest.mark.slow
def test_containers_of_a_pod_reach_each_other(fashion_set: Path) -> None:
    """Server and training share the network and the user: not the processes, the mounts or a /dev/shm of any size."""
    if shutil.which(ALONE[0]) is None or subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this test makes namespaces, which is not permitted here")
    address = f"unix:@pod-{os.getpid()}"
    code = f"from brand import *; ds = BrandDataset({str(fashion_set)!r}, fields=('index',), server={address!r})"
    code += "; print(sorted(i for (b,) in BrandLoader(ds, 64) for i in b.tolist()) == list(range(len(ds))))"
    with contained("-m", "brand", "serve", fashion_set, "--memory", "0.5", "--address", address) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == f"{address}\n"
        with contained("-c", code) as training:
            told, errors = training.communicate(timeout=LIMIT_S)
    assert told == "True\n", errors


@contextmanager
def contained(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Python with these arguments, with a /dev/shm of 64 KiB; ended with the block."""
    small = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    command = [*ALONE, "sh", "-c", small, "sh", sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
