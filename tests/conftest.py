"""What every test stands on: one thread a process, no hub, a cache of its own."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

if TYPE_CHECKING:
    from mufin import Catalogue, Config, Mufin

sys.path.insert(0, str(Path(__file__).parent))  # for made.py, the small data the tests make

# Before anything imports torch or faiss: two xdist workers on two cores must not start four threads, and
# a test must give the same numbers alone and in company.
for _threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_threads] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# A test that asks a hub for weights fails at once instead of waiting for a network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"

# Files that take 20 s and more. Several workers begin with them, so that none is left with one at the end.
LONG = (
    "test_documents.py", "test_reproduce.py", "distributed/test_ray.py", "test_notebooks.py",
    "train/test_ranks.py", "train/test_resume.py", "model/test_milvus.py", "train/test_fit.py", "test_cli.py",
    "test_foreign.py", "model/test_store.py", "train/test_faults.py", "test_fuzz.py", "test_typing.py",
    "test_supply.py", "test_end_to_end.py", "serve/test_page.py", "serve/test_page_labels.py",
    "serve/test_page_access.py", "serve/test_service.py", "serve/test_writers.py", "evaluate/test_report.py",
    "test_sklearn.py", "model/test_export.py", "test_site.py",
)  # fmt: skip


# Time limits would fail on a busy machine. CI runs the same examples every time; elsewhere they are new, and
# a failure prints how to repeat it.
hypothesis_settings.register_profile(
    "mufin",
    deadline=None,
    database=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
hypothesis_settings.load_profile("mufin")


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a feature cache; workers, started later, inherit it (doctests have no fixtures)."""
    if hasattr(config, "workerinput"):
        return
    cache = tempfile.TemporaryDirectory(prefix="mufin-tests-", ignore_cleanup_errors=True)
    os.environ["MUFIN_CACHE"] = cache.name
    config.add_cleanup(cache.cleanup)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the workers of xdist begin with the long files; `--no-loadscope-reorder` keeps this order."""
    if hasattr(config, "workerinput"):
        here = Path(__file__).parent
        place = {here / name: number for number, name in enumerate(LONG)}
        items.sort(key=lambda item: place.get(item.path, len(LONG)))


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line prints the same text whatever terminal the tests run in."""
    for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")


# --- shared fixtures -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def tiny_encoders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a BERT and a ViT of a few thousand random weights: the real loading code, in no time."""
    from made import made_encoders

    return made_encoders(tmp_path_factory.mktemp("encoders"))


@pytest.fixture(scope="session")
def tiny_config(tiny_encoders: tuple[str, str]) -> Config:
    """Settings that train in a second."""
    from made import made_config

    return made_config(*tiny_encoders)


@pytest.fixture(scope="session")
def shop() -> Catalogue:
    """Sixty things of a colour and a shape with a title, a picture or both; labels are search words."""
    from made import made_shop

    return made_shop()


@pytest.fixture(scope="session")
def tiny_model(shop: Catalogue, tiny_config: Config) -> Mufin:
    """A trained model of the tiny encoders; tests that change it load a copy."""
    from mufin import fit

    return fit(shop, tiny_config, quiet=True)
