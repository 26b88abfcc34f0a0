"""Early fusion: an item's images reach its vector as tokens of the language model, and in no other way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from made import made_shop, picture
from mufin import Config, Item, fit, load
from mufin.data.items import Items
from mufin.encode.embedder import Embedder
from mufin.encode.features import Groups
from mufin.errors import ConfigError

Checkpoint = Callable[[str], str]
RED, BLUE = picture("red", "bar"), picture("blue", "circle")
ITEMS = [
    Item("both", ["red desk"], [RED, BLUE]),
    Item("texts", ["oak table", "two drawers"]),
    Item("image", images=[BLUE]),
    Item("nothing"),
    Item("more", ["lamp", "a"], [RED]),
]
DEPTHS: list[Any] = [0, 1, "all"]


@pytest.fixture
def early(tiny_config: Config, checkpoint: Checkpoint) -> Callable[..., Config]:
    """Settings of early fusion by the language model of a family, with so many layers of it trained."""

    def make(family: str, depth: Any = "all") -> Config:
        models = [f"text.model={checkpoint(family)}", f"vision.model={checkpoint('vit')}"]
        return tiny_config.override(
            [*models, "embed.fusion=early", "embed.attention=none", f"text.train_layers={depth}"]
        )

    return make


def embedded(config: Config) -> Embedder:
    torch.manual_seed(0)
    return Embedder(config).eval()


def rows(embedder: Embedder, items: list[Item]) -> Tensor:
    """X̂⁰ of each item, (n, D): one row."""
    batch = embedder.features(Items.of(items), cached=False).batch(Groups.singles(np.arange(len(items))))
    bag = embedder.raw_bag(batch)
    assert bag.values.shape[1] == 1
    assert bag.mask[:, 0].tolist() == [bool(item.texts or item.images) for item in items]
    return bag.values[:, 0]


def tokens(embedder: Embedder, item: Item) -> Tensor:
    """The words of all texts behind one [CLS], each text ended by [SEP]: (1, T)."""
    first, *others = [embedder.text.tokenizer(text)["input_ids"] for text in item.texts or [""]]
    return torch.tensor([[*first, *(token for text in others for token in text[1:])]])


def seen(embedder: Embedder, item: Item) -> Tensor:
    """What the image encoder gives for each image, (1, i, H)."""
    assert embedder.vision is not None
    return torch.from_numpy(embedder.vision.prepare(list(item.images)).flat)[None]


@torch.no_grad()
def test_visual_bert_reads_images_by_its_own_embeddings(early: Callable[..., Config]) -> None:
    embedder = embedded(early("visualbert"))
    assert not list(embedder.joint.parameters())
    for item, row in zip(ITEMS, rows(embedder, ITEMS), strict=True):
        if item.id == "nothing":
            assert not row.any()
            continue
        visual = {"visual_embeds": seen(embedder, item)} if item.images else {}
        hidden = embedder.text.network(input_ids=tokens(embedder, item), **visual).last_hidden_state
        expected = embedder.text_projection(hidden.mean(1))[0]
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "electra", "albert"])
@torch.no_grad()
def test_other_language_models_read_images_in_front_of_words(
    family: str, early: Callable[..., Config]
) -> None:
    embedder = embedded(early(family))
    for item, row in zip(ITEMS, rows(embedder, ITEMS), strict=True):
        if item.id == "nothing":
            continue
        found = embedder.text.network.get_input_embeddings()(tokens(embedder, item))
        if item.images:
            found = torch.cat([embedder.joint.tokens(seen(embedder, item)), found], dim=1)
        hidden = embedder.text.network(inputs_embeds=found).last_hidden_state
        torch.testing.assert_close(row, embedder.text_projection(hidden.mean(1))[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["bert", "visualbert", "narrow"])
@torch.no_grad()
def test_an_item_does_not_depend_on_the_batch(family: str, early: Callable[..., Config]) -> None:
    embedder = embedded(early(family))
    together = rows(embedder, ITEMS)
    for item, row in zip(ITEMS, together, strict=True):
        torch.testing.assert_close(rows(embedder, [item])[0], row, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(together[0], rows(embedder, [Item("x", ["red desk"])])[0])


@pytest.mark.parametrize("family", ["bert", "visualbert", "narrow"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_gradients_reach_what_is_trained(family: str, depth: Any, early: Callable[..., Config]) -> None:
    embedder = embedded(early(family, depth)).train()
    rows(embedder, ITEMS).square().sum().backward()
    reached = {name for name, p in embedder.named_parameters() if p.grad is not None and p.grad.any()}
    own = {name.removeprefix("text.network.") for name in reached if name.startswith("text.")}
    if depth == "all":
        assert {name.split(".")[0] for name in own} == {"embeddings", "encoder"}
        assert any("visual_projection" in name for name in own) == (family != "bert")
    else:
        assert {name.rpartition("layer.")[2][:2] for name in own} == ({"2."} if depth else set())
    # Only VisualBERT that takes vectors of this very width needs no layer in front.
    assert ("joint.tokens.weight" in reached) == (family != "visualbert")
    assert "text_projection.weight" in reached
    assert not any(name.startswith("vision.") for name in reached)


@torch.no_grad()
def test_a_frozen_language_model_has_no_dropout(early: Callable[..., Config]) -> None:
    embedder = embedded(early("visualbert", 0))
    resting = rows(embedder, ITEMS)
    embedder.train()
    embedder.vision.eval()
    torch.testing.assert_close(rows(embedder, ITEMS), resting)


@pytest.mark.parametrize("family", ["bert", "visualbert"])
@torch.no_grad()
def test_words_beyond_the_places_of_the_network_are_cut_off(
    family: str, early: Callable[..., Config]
) -> None:
    embedder = embedded(early(family))
    words = [" ".join("abcdefghijklmnop") for _ in range(60)]  # 16 tokens each, of 512 places
    long = Item("long", words, [RED])
    assert rows(embedder, [long]).isfinite().all()
    assert not torch.allclose(rows(embedder, [long]), rows(embedder, [Item("long", words, [BLUE])]))


def test_clip_takes_no_images_as_tokens(early: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match='embed.fusion = "early" needs .*CLIPTextModelWithProjection does'):
        Embedder(early("clip"))


@pytest.mark.parametrize("layers", DEPTHS)
def test_visual_bert_in_the_pipeline(layers: Any, early: Callable[..., Config], tmp_path: Path) -> None:
    """The paper's VisualBERT + MUFIN, frozen or fine-tuned, for items with texts, images or both."""
    config = early("visualbert", layers).override(
        ['retrieve.entries=["vector"]', "embed.projection=maxpool", "rank.cross=attention"]
    )
    model = fit(made_shop(3), config, out=tmp_path, quiet=True)
    again = load(tmp_path)
    for asked in (
        Item(texts=["red bar"], images=[picture("red", "bar")]),
        Item(images=[picture("red", "bar")]),
        Item(texts=["red bar"]),
    ):
        found, after = model.recommend(asked, k=7), again.recommend(asked, k=7)
        assert [hit.label for hit in after] == [hit.label for hit in found]
        assert [hit.score for hit in after] == pytest.approx([hit.score for hit in found], abs=1e-4)
