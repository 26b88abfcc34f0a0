"""The hub: push a model and load it by name, over HTTP with a small hub on 127.0.0.1; the model card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mufin import Config, Item, Mufin, load, push_to_hub, save
from mufin.errors import ModelError, UsageError
from mufin.model.hub import card as card_of
from mufin.model.hub import local_folder

SERVER = Path(__file__).with_name("hub_server.py")
SCRIPT = """
import json, sys
from pathlib import Path
from mufin import Item, load, push_to_hub, save
from mufin.cli import main
from mufin.errors import ModelError

run = sys.argv[1]
said = {"address": push_to_hub(run, "user/shop")}
model = load("user/shop", exact=True)
said["first"] = [hit.label for hit in model.recommend(Item(texts=["red circle"]))]
said["folder"] = str(next(iter(model.saved)))
model = load(run, exact=True)
model.remove_labels(["q-red"])
save(model, run)
assert main(["push", run, "user/shop", "--revision", "second"]) == 0
second = load("user/shop", exact=True, revision="second")
said["second"] = [hit.label for hit in second.recommend("red circle")]
said["again"] = len(load("user/shop", exact=True).labels)
for name, revision in (("user/other", None), ("user/shop", "third")):
    try:
        load(name, revision=revision)
    except ModelError as error:
        said[f"{name} {revision}"] = str(error)
print(json.dumps(said))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """The environment of a program whose hub is on this machine, and the requests that the hub got."""
    log = tmp_path / "requests"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, str(SERVER)], stdout=out, stderr=subprocess.PIPE, text=True
        )
    assert server.stderr is not None
    endpoint = f"http://127.0.0.1:{int(server.stderr.readline())}"
    env = {
        **os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*",
    }  # fmt: skip
    yield env, log
    server.kill()
    server.communicate()


def test_a_model_goes_to_the_hub_and_comes_back(
    tiny_model: Mufin, hub: tuple[dict[str, str], Path], tmp_path: Path
) -> None:
    save(tiny_model, tmp_path / "run")
    (tmp_path / "run/secret.txt").write_text("not for the hub")
    env, log = hub
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["first"] == [hit.label for hit in tiny_model.recommend(Item(texts=["red circle"]))]
    assert "q-red" in said["first"]
    assert "q-red" not in said["second"]
    assert said["again"] == 7
    assert "user/other is not a local folder and was not downloaded: " in said["user/other None"]
    assert "user/shop is not a local folder and was not downloaded: " in said["user/shop third"]
    assert said["address"].startswith(env["HF_ENDPOINT"])
    folder = Path(said["folder"])
    assert folder.is_relative_to(tmp_path / "hf")
    assert not (folder / "secret.txt").exists()
    assert (folder / "README.md").read_text().count("Task") == 1
    assert "secret" not in log.read_text()


def test_a_local_folder_needs_no_network(
    tiny_model: Mufin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tiny_model, "user/shop")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # an import would fail
    assert len(load("user/shop").labels) == 7
    assert local_folder("user/other") == Path("user/other")  # beside an existing folder: a slip, not a hub
    with pytest.raises(ModelError, match="does not exist"):
        load("user/other")
    with pytest.raises(UsageError, match="local folder"):
        load("user/shop", revision="main")
    with pytest.raises(UsageError, match="expected user/model"):
        push_to_hub("user/shop", "shop")


def test_the_card_is_written_by_save_unless_it_is_ours(tiny_model: Mufin, tmp_path: Path) -> None:
    import yaml

    for name in ("a", "b"):
        save(tiny_model, tmp_path / name)
    card = (tmp_path / "a/README.md").read_text()
    assert card == (tmp_path / "b/README.md").read_text()
    facts = yaml.safe_load(card.split("---\n")[1])
    assert facts["library_name"] == "mufin"
    for word in ("Task", "Data", "Metrics", "Calibration", "Licences", "rank 7 labels"):
        assert word in card
    assert "Apache-2.0; " not in card  # of encoders that do not come with mufin
    assert card.count("see its own card") == 2
    packaged = card_of({"labels": 7, "own_items": False, "library": "1"}, Config.preset("fast"))
    assert "(all-MiniLM-L6-v2: Apache-2.0; EfficientNet-Lite0: Apache-2.0)" in packaged
    model = load(tmp_path / "a")
    model.remove_labels(["q-red"])
    save(model, tmp_path / "a")
    assert "rank 6 labels" in (tmp_path / "a/README.md").read_text()
    (tmp_path / "a/README.md").write_text("My own text.")
    save(model, tmp_path / "a")
    assert (tmp_path / "a/README.md").read_text() == "My own text."
