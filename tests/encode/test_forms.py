"""The fast forms of encoders: the same answers but for rounding, and the weights as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from mufin import Catalogue, Config, Item, Mufin, fit, load, save
from mufin.data.ragged import CPU
from mufin.encode import fast_forms as fast_text
from mufin.encode.checkpoints import Layout
from mufin.encode.embedder import Embedder
from mufin.encode.fast_forms import FastTextEncoder, round_to_bf16, text_encoder
from mufin.encode.features import Groups
from mufin.encode.text import TextEncoder
from mufin.encode.vision import VisionEncoder
from mufin.runtime import onednn as packed
from mufin.runtime.fast_bert import FastBert
from mufin.settings import Text

TEXTS = ["red circle", "Ünïcode ☃ 42", "", "a" * 500, *(f"blue square {i} " * (i % 7) for i in range(90))]
ASKED = Item(texts=["red circle"])


@pytest.fixture(params=["0", "1", '"all"'])
def saved(request: pytest.FixtureRequest, shop: Catalogue, tiny_config: Config, tmp_path: Path) -> Path:
    layers = [f"{kind}.train_layers={request.param}" for kind in ("text", "vision")]
    fit(shop, tiny_config.override([*layers, "text.pretrained_similarity=true"]), tmp_path, quiet=True)
    return tmp_path


def test_load_takes_the_fast_form_and_answers_the_same(saved: Path, shop: Catalogue) -> None:
    fast, exact = load(saved), load(saved, exact=True)
    assert (fast.exact, exact.exact) == (False, True)
    assert isinstance(fast.embedder.text, FastTextEncoder)
    assert isinstance(exact.embedder.text, TextEncoder)
    items = [*shop.items.take(np.arange(20))]
    torch.testing.assert_close(fast.embed(items).values, exact.embed(items).values, atol=5e-3, rtol=0)
    for one, other in zip(fast.recommend(items, k=5), exact.recommend(items, k=5), strict=True):
        assert [hit.score for hit in one] == pytest.approx([hit.score for hit in other], abs=2e-2)


def test_a_fast_model_can_be_changed_and_saved(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Into its own folder and into another, with the weights that were trained."""
    before = json.loads((saved / "mufin.json").read_text())["parts"]
    model, copy = load(saved), tmp_path_factory.mktemp("copy")
    model.add_labels(Item("zebra", ["zebra crossing"]))
    for folder in (copy, saved):
        save(model, folder)
        after = json.loads((folder / "mufin.json").read_text())["parts"]
        same = [part for part in before if part.startswith(("network", "layout", "config"))]
        assert same
        assert all(after[part]["hash"] == before[part]["hash"] for part in same)
        again = load(folder).recommend(Item(texts=["zebra crossing"]), k=9)
        assert again == model.recommend(Item(texts=["zebra crossing"]), k=9)
    assert "zebra" in load(copy, exact=True).labels.items.ids.to_pylist()


def test_one_text_is_encoded_alone_as_in_company(tiny_model: Mufin, tmp_path: Path) -> None:
    save(tiny_model, tmp_path)
    text = load(tmp_path).embedder.text
    together = text.prepare(TEXTS).flat
    alone = np.concatenate([text.prepare([one]).flat for one in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_text_has_the_same_numbers_in_any_company(dtype: torch.dtype) -> None:
    """In bf16 other sums of the same numbers were 0.006 apart, and scores 0.012."""
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=99, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128
    )
    network = FastBert(config.to_dict(), hf.BertModel(config).eval().state_dict(), dtype)
    lengths = torch.randint(1, 33, (150,))
    ids = torch.randint(0, 99, (150, 32)) * (torch.arange(32) < lengths[:, None])
    alone = torch.cat([network(ids[i : i + 1, :n], lengths[i : i + 1]) for i, n in enumerate(lengths)])
    for size in (2, 3, 16, 150):
        for order in (torch.arange(150), lengths.argsort()):
            parts = [network(ids[some], lengths[some]) for some in order.split(size)]
            torch.testing.assert_close(torch.cat(parts), alone[order], atol=1e-5, rtol=0)


def test_tokens_and_fingerprint_are_those_of_the_exact_form(
    tiny_encoders: tuple[str, str], tmp_path: Path
) -> None:
    """So that features of frozen encoders are shared."""
    exact = TextEncoder(Text(model=tiny_encoders[0], max_length=16, train_layers=0)).eval()
    exact.save(tmp_path / "text")
    fast = text_encoder(Text(model=tiny_encoders[0], max_length=16, train_layers=0), Layout(tmp_path, CPU))
    assert isinstance(fast, FastTextEncoder)
    fast.load_state_dict(exact.state_dict())
    assert fast.fingerprint() == exact.fingerprint()
    np.testing.assert_allclose(fast.prepare(TEXTS).flat, exact.prepare(TEXTS).flat, atol=1e-5)
    whole, other = (
        kind(Text(model=tiny_encoders[0], max_length=16, train_layers="all"), tmp_path / "text")
        for kind in (TextEncoder, FastTextEncoder)
    )
    assert np.array_equal(whole.prepare(TEXTS).flat, other.prepare(TEXTS).flat)


def test_bf16_is_close(
    tiny_encoders: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Text(model=tiny_encoders[0], max_length=16, train_layers=0)
    exact = TextEncoder(settings).eval()
    exact.save(tmp_path)
    monkeypatch.setattr(fast_text, "MIN_BF16_WIDTH", 1)
    monkeypatch.setattr(fast_text, "fast_dtype", lambda: torch.bfloat16)
    fast = FastTextEncoder(settings, tmp_path)
    fast.load_state_dict(exact.state_dict())
    np.testing.assert_allclose(fast.prepare(TEXTS).flat, exact.prepare(TEXTS).flat, atol=0.05)
    assert fast.fingerprint() != exact.fingerprint()  # rounded features are kept apart


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"hidden_act": "relu"}),
        ("config.json", {"position_embedding_type": "relative_key"}),
        ("config.json", {"num_attention_heads": 5}),
        ("tokenizer_config.json", {"truncation_side": "left"}),
        ("tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"}),
    ],
)
def test_layouts_that_it_does_not_compute(
    file: str, change: dict[str, object], tiny_encoders: tuple[str, str], tmp_path: Path
) -> None:
    settings = Text(model=tiny_encoders[0], max_length=16, train_layers=0)
    TextEncoder(settings).save(tmp_path)
    assert FastTextEncoder.can_load(settings, tmp_path)
    values = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps(values | change))
    assert not FastTextEncoder.can_load(settings, tmp_path)


@pytest.mark.parametrize("family", ["distilbert", "roberta"])
def test_other_networks_get_packed_products(
    family: str,
    checkpoint: Callable[[str], str],
    shop: Catalogue,
    tiny_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny_config.override([f"text.model={checkpoint(family)}"])
    fit(shop, config, tmp_path, quiet=True)
    monkeypatch.setattr(packed, "MIN_WEIGHTS", 1)
    fast, exact = load(tmp_path), load(tmp_path, exact=True)
    found = [part for part in fast.embedder.modules() if isinstance(part, packed.PackedLinear)]
    assert len(found) > 10
    torch.testing.assert_close(fast.embed(ASKED).values, exact.embed(ASKED).values, atol=1e-4, rtol=0)
    kept, trained = fast.embedder.state_dict(), exact.embedder.state_dict()
    assert kept.keys() == trained.keys()
    assert all(torch.equal(kept[name], trained[name]) for name in trained)


@pytest.mark.parametrize("layers", [0, 1, "all"])
def test_the_form_of_a_gpu_gives_the_same_bags(
    shop: Catalogue, tiny_config: Config, layers: int | str
) -> None:
    """bf16 and one pass, tried on a CPU."""
    config = tiny_config.override([f"text.train_layers={layers}", f"vision.train_layers={layers}"])
    torch.manual_seed(0)
    embedder = Embedder(config).eval()
    items, everyone = shop.items.take(np.arange(20)), Groups.singles(np.arange(20))
    with torch.no_grad():
        own = embedder(embedder.features(items, cached=False).batch(everyone))
        before = [encoder.fingerprint() for encoder in (embedder.text, embedder.vision)]
        for encoder in (embedder.text, embedder.vision):
            assert isinstance(encoder, TextEncoder | VisionEncoder)
            encoder.cut.__dict__.pop("fingerprint")
            round_to_bf16(encoder, one_pass=True)
            assert encoder.depth in (0, "all")
        other = embedder(embedder.features(items, cached=False).batch(everyone))
        after = [encoder.fingerprint() for encoder in (embedder.text, embedder.vision)]
    assert torch.equal(own.mask, other.mask)
    torch.testing.assert_close(own.values, other.values, atol=5e-2, rtol=0)
    assert not {*before} & {*after}
