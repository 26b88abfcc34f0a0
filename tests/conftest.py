"""What every test stands on: one thread a process, no hub, a cache of its own."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a feature cache; workers, started later, inherit it (doctests have no fixtures)."""
    if hasattr(config, "workerinput"):
        return
    cache = tempfile.TemporaryDirectory(prefix="mufin-tests-", ignore_cleanup_errors=True)
    os.environ["MUFIN_CACHE"] = cache.name
    config.add_cleanup(cache.cleanup)


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
    import torch
    import transformers as hf

    torch.manual_seed(0)
    text, vision = (tmp_path_factory.mktemp(name) for name in ("text", "vision"))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz0123456789"]
    words += [f"##{character}" for character in "abcdefghijklmnopqrstuvwxyz0123456789"]
    (text / "vocab.txt").write_text("\n".join(words))
    shape = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    hf.BertModel(hf.BertConfig(vocab_size=len(words), **shape)).save_pretrained(text)
    hf.BertTokenizer(str(text / "vocab.txt")).save_pretrained(text)
    hf.ViTModel(hf.ViTConfig(image_size=32, patch_size=16, **shape)).save_pretrained(vision)
    return str(text), str(vision)


@pytest.fixture(scope="session")
def tiny_config(tiny_encoders: tuple[str, str]) -> Config:
    """Settings that train in a second."""
    from mufin.config import Config

    text, vision = tiny_encoders
    return Config.parse(
        {
            "text": {"model": text, "train_layers": 0, "max_length": 16},
            "vision": {"model": vision, "train_layers": 0},
            "embed": {"dim": 16, "projection": "linear"},
            "pretrain": {"epochs": 3, "batch": 16, "lr": 1e-2, "loss": "softmax", "sampled": 8},
            "finetune": {
                "epochs": 3,
                "batch": 16,
                "lr": 1e-2,
                "loss": "softmax",
                "sampled": 8,
                "negatives": 4,
            },
            "rank": {"cross": "attention"},
            "run": {"validation": 0.1},
        },
        "tiny",
    )


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
