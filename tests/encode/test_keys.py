"""Cached features of texts and images: keyed by content, of what was encoded and nothing else."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from made import picture
from mufin import Config, Item
from mufin.data.items import Items
from mufin.data.ragged import Ragged
from mufin.encode.cache import key
from mufin.encode.embedder import Embedder
from mufin.encode.features import Groups, extract
from mufin.encode.text import TextEncoder
from mufin.settings import Text


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "cache"))


def png(**arguments: Any) -> bytes:
    buffer = io.BytesIO()
    picture("red", "circle", **arguments).save(buffer, "PNG")
    return buffer.getvalue()


class Spy:
    """An embedder whose frozen layers report what they compute."""

    def __init__(self, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
        self.embedder = Embedder(config).eval()
        self.computed: list[Any] = []
        for encoder in (self.embedder.text, self.embedder.vision):
            monkeypatch.setattr(encoder, "prepare", self._spied(encoder.prepare))

    def _spied(self, prepare: Any) -> Any:
        def spied(descriptors: Sequence[Any], *rest: Any) -> Ragged:
            self.computed += descriptors
            return prepare(descriptors, *rest)

        return spied

    def see(self, *items: Item) -> tuple[list[Any], torch.Tensor]:
        """What had to be computed for these items, and their vectors."""
        self.computed.clear()
        features = self.embedder.features(Items.of(items))
        vectors = self.embedder.embed(features, Groups.singles(np.arange(len(items)))).vectors()
        return list(self.computed), vectors


def test_keyed_by_content(tiny_config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spy = Spy(tiny_config, monkeypatch)
    encoded = png()
    for name in ("one.png", "two.png"):
        (tmp_path / name).write_bytes(encoded)
    computed, first = spy.see(Item("a", ["oak desk"], [encoded]))
    assert computed == ["oak desk", encoded]
    for other in (
        Item("b", ["oak desk"], [tmp_path / "one.png"]),
        Item("c", ["oak desk"], [str(tmp_path / "two.png")]),
        Item("d", ["oak desk"], [encoded]),
    ):
        computed, vector = spy.see(other)
        assert computed == []
        assert torch.equal(vector, first)
    assert spy.see(Item("a", ["oak desks"], [png(shift=1)]))[0] == ["oak desks", png(shift=1)]
    assert len(spy.see(Item("a", ["new", "new"]), Item("b", ["new"]))[0]) == 1


def test_path_bytes_and_pil_are_one_picture(tiny_config: Config, tmp_path: Path) -> None:
    embedder = Embedder(tiny_config).eval()
    (tmp_path / "p.png").write_bytes(png())
    items = [
        Item("a", images=[picture("red", "circle")]),
        Item("b", images=[png()]),
        Item("c", images=[tmp_path / "p.png"]),
    ]
    for listed in (items, *([item] for item in items)):
        features = embedder.features(Items.of(listed))
        vectors = embedder.embed(features, Groups.singles(np.arange(len(listed)))).vectors()
        torch.testing.assert_close(vectors, vectors[:1].expand_as(vectors), atol=1e-5, rtol=0)


def test_a_picture_file_that_changes_is_another_picture(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spy, path = Spy(tiny_config, monkeypatch), tmp_path / "p.png"
    assert spy.see(Item("a", ["t"], [path]))[1].norm() > 0  # not there yet
    path.write_bytes(png())
    assert len(spy.see(Item("a", ["t"], [path]))[0]) == 1
    path.write_bytes(png(shift=2))
    assert len(spy.see(Item("a", ["t"], [path]))[0]) == 1
    assert spy.see(Item("a", ["t"], [path]))[0] == []


class Reader:
    """Encodes the bytes of an image as their length; meanwhile somebody replaces the file."""

    width = 1

    def __init__(self, path: Path, now: bytes) -> None:
        self.path, self.now = path, now

    def fingerprint(self) -> str:
        self.path.write_bytes(self.now)  # asked for after all keys are known
        return "reader"

    def prepare(self, descriptors: Sequence[Any], batch: int = 64) -> Ragged:
        contents = [one if isinstance(one, bytes) else one.read_bytes() for one in descriptors]
        return Ragged.of([np.full((1, 1), len(content), np.float32) for content in contents])


def test_an_image_that_changes_while_it_is_encoded_does_not_spoil_its_entry(tmp_path: Path) -> None:
    path, steady = tmp_path / "a.png", tmp_path / "b.png"
    steady.write_bytes(b"seven..")
    items = Items.of([Item("a", images=[path]), Item("b", images=[steady])])

    def lengths(before: bytes, after: bytes) -> list[float]:
        path.write_bytes(before)
        features = extract(items, None, Reader(path, after))
        return [float(features.image.rows.flat[i, 0]) for i in features.image.which]

    assert lengths(b"one", b"three") == [5, 7]  # used as it was read, and not kept
    assert lengths(b"one", b"one") == [3, 7]
    assert lengths(b"three", b"three") == [5, 7]


def test_broken_pictures_are_no_descriptor_and_remembered_so(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spy = Spy(tiny_config, monkeypatch)
    broken = [b"", b"no picture", png()[:60]]
    computed, vectors = spy.see(Item("a", ["desk"], broken), Item("b", ["desk"]), Item("c", [], broken))
    assert len(computed) == 4
    assert torch.equal(vectors[0], vectors[1])
    assert not vectors[2].any()
    computed, again = spy.see(Item("a", ["desk"], broken), Item("b", ["desk"]), Item("c", [], broken))
    assert computed == []
    assert torch.equal(again, vectors)
    for name in ("missing.png", "with\0nul.png", str(tmp_path), "https://example.org/a.png"):
        _, vectors = spy.see(Item("a", ["desk"], [name]), Item("b", ["desk"]))
        assert torch.equal(vectors[0], vectors[1])


def test_other_settings_and_encoders_do_not_share(
    tiny_config: Config, tiny_encoders: tuple[str, str], tmp_path: Path
) -> None:
    def text(**changes: Any) -> str:
        return TextEncoder(
            Text(**{"model": tiny_encoders[0], "train_layers": 0, "max_length": 16} | changes)
        ).fingerprint()

    prints = [
        text(),
        text(max_length=8),
        text(train_layers=1),
        text(train_layers=2),
        text(train_layers="all"),
    ]
    assert len(set(prints)) == 5
    assert text() == prints[0]
    # trained layers do not matter to what is frozen before them
    encoder = TextEncoder(Text(model=tiny_encoders[0], train_layers=1, max_length=16))
    before = encoder.fingerprint()
    encoder.prepare(["tokenizers remember how they were called"])
    for parameter in encoder.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    assert encoder.fingerprint() == before
    other = TextEncoder(Text(model=tiny_encoders[0], train_layers=1, max_length=16))
    torch.nn.init.normal_(next(p for p in other.parameters() if not p.requires_grad))
    assert other.fingerprint() != before


def test_tokens_of_another_vocabulary_are_not_shared(tiny_encoders: tuple[str, str], tmp_path: Path) -> None:
    """With every layer trained nothing frozen is left but the tokenizer: its numbers must not be mixed up."""
    import transformers as hf

    words = (Path(tiny_encoders[0]) / "vocab.txt").read_text().splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join(words[:4] + words[:3:-1]))
    hf.BertConfig.from_pretrained(tiny_encoders[0]).save_pretrained(tmp_path)
    hf.BertModel.from_pretrained(tiny_encoders[0]).save_pretrained(tmp_path)
    hf.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    one, other = (
        TextEncoder(Text(model=str(folder), train_layers="all", max_length=16))
        for folder in (tiny_encoders[0], tmp_path)
    )
    assert one.prepare(["desk"]).flat.tolist() != other.prepare(["desk"]).flat.tolist()
    assert one.fingerprint() != other.fingerprint()


def test_scale_of_pixels_is_part_of_the_key(tiny_config: Config) -> None:
    vision = Embedder(tiny_config).vision
    before = vision.fingerprint()
    vision.mean = [0.0] * 3
    assert vision.fingerprint() != before


def test_keys() -> None:
    assert key("a") != key("b")
    assert key("é") == key("é")
    assert key(b"a") == key(b"a")
    key("\udce9 a lone surrogate")


def test_embedding_without_a_place_to_write(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = Items.of([Item("a", ["oak desk"], [png()]), Item("b", ["lamp"])])
    embedder = Embedder(tiny_config).eval()
    expected = embedder.features(items)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "file" / "cache"))
    found = embedder.features(items)
    for one, other in ((expected.text, found.text), (expected.image, found.image)):
        assert np.array_equal(one.rows.flat, other.rows.flat)
