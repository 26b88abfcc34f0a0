"""A small model with a memory and its catalogue, served in this process or in one of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from made import picture
from serving import Process, base64_of, client_of

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from mufin import Catalogue, Config


@pytest.fixture(scope="session")
def red_circle() -> str:
    return base64_of(picture("red", "circle"))


@pytest.fixture(scope="session")
def served(
    shop: Catalogue, tiny_config: Config, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The folders of a model and of its catalogue; tests that write take a copy of the first."""
    from mufin import fit

    folder = tmp_path_factory.mktemp("served")
    shop.write(folder / "shop")
    config = tiny_config.override(["memory.neighbours=5", "rank.beta=learnt"])
    fit(shop, config, folder / "model", quiet=True)
    return folder / "model", folder / "shop"


@pytest.fixture(scope="session")
def texts_alone(shop: Catalogue, tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of texts, for other processes: they load it without transformers, in a third of the time."""
    from mufin import fit

    folder = tmp_path_factory.mktemp("texts") / "model"
    fit(shop, tiny_config.override(["memory.neighbours=5", "modalities=text"]), folder, quiet=True)
    return folder


@pytest.fixture
def model_folder(served: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(served[0], tmp_path / "model"))


@pytest.fixture(scope="session")
def client(served: tuple[Path, Path]) -> Iterator[TestClient]:
    """A service that nobody writes to."""
    with client_of(*served) as found:
        yield found


@pytest.fixture
def writing(model_folder: Path, served: tuple[Path, Path]) -> Iterator[TestClient]:
    """A service of its own, which may be written to."""
    with client_of(model_folder, served[1]) as found:
        yield found


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Start services that are gone when the test ends."""
    started: list[Process] = []

    def one(model: Path, *options: str, **how: Any) -> Process:
        started.append(Process(model, *options, **how))
        return started[-1]

    yield one
    for service in started:
        if service.process.poll() is None:
            service.process.kill()
            service.process.communicate()
