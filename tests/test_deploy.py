"""The files in deploy/ agree with each other and with the package."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from mufin.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")


def test_the_image_installs_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (extras,) = re.findall(r'install\.sh /opt/mufin "\.\[([\w,]+)\]"', DOCKERFILE)
    assert {"offline", "serve"} <= set(extras.split(",")) <= set(project["optional-dependencies"])


def test_only_torch_is_installed_without_hashes() -> None:
    assert re.findall(r"UV_NO_VERIFY_HASHES=1 (.*?) *\\?\n", DOCKERFILE) == [
        "scripts/install.sh /opt/mufin torch"
    ]


def test_containers_start_the_same_service_as_the_same_user() -> None:
    yaml = pytest.importorskip("yaml")
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (command,) = re.findall(r"^CMD (.*)$", DOCKERFILE, re.M)
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.M)
    assert container["args"] == json.loads(command)
    assert pod["securityContext"]["runAsUser"] == int(user)
    assert container["image"] == f"mufin:{VERSION}"
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]["mufin"]
    assert composed["build"]["dockerfile"] == "deploy/Dockerfile"
    assert composed["deploy"]["replicas"] == deployment["spec"]["replicas"] == 2


def test_nginx_reads_its_configuration(tmp_path: Path) -> None:
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin:/usr/local/sbin")
    if nginx is None:
        pytest.skip("needs nginx")
    text = (DEPLOY / "nginx.conf").read_text("utf-8")
    text = text.replace("mufin:8000", "127.0.0.1:8000").replace("/tmp/nginx", f"{tmp_path}/nginx")
    (tmp_path / "nginx.conf").write_text(text, "utf-8")
    done = subprocess.run(
        [nginx, "-t", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
