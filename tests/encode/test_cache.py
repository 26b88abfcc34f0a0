"""Outputs of frozen layers on disk: computed once, keyed by content, whole whatever happens."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from made import picture
from mufin import Config, Item
from mufin.config import Text
from mufin.data.items import Items
from mufin.encode import cache
from mufin.encode.cache import FeatureCache, key
from mufin.encode.embedder import Embedder
from mufin.encode.features import Groups
from mufin.encode.text import TextEncoder
from mufin.ragged import Ragged


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "cache"))


class Counter:
    """Prepares a number as that many rows of itself, and remembers what it was asked."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.asked: list[int] = []
        self.fail_at = fail_at

    def __call__(self, numbers: Sequence[int]) -> Ragged:
        if self.fail_at in numbers:
            raise RuntimeError("killed")
        self.asked += numbers
        return Ragged.of([np.full((n % 4, 2), n, np.float32) for n in numbers])


def asked_for(numbers: list[int], prepare: Any, name: str = "f") -> Ragged:
    return FeatureCache(name).features(np.array(numbers, np.uint64), numbers, prepare)


def check(rows: Ragged, numbers: list[int]) -> None:
    assert rows.lengths.tolist() == [n % 4 for n in numbers]
    for i, n in enumerate(numbers):
        assert (rows.flat[rows.offsets[i] : rows.offsets[i + 1]] == n).all()


def test_the_second_call_computes_nothing() -> None:
    prepare = Counter()
    check(asked_for([5, 3, 9, 4], prepare), [5, 3, 9, 4])
    assert sorted(prepare.asked) == [3, 4, 5, 9]
    check(asked_for([9, 5, 4], prepare), [9, 5, 4])
    assert len(prepare.asked) == 4
    check(asked_for([7, 9], prepare), [7, 9])
    assert prepare.asked[4:] == [7]
    asked_for([5], prepare, "another")
    assert prepare.asked[5:] == [5]


def test_a_killed_run_keeps_the_shards_it_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SHARD", 3)
    numbers = list(range(1, 9))
    with pytest.raises(RuntimeError):
        asked_for(numbers, Counter(fail_at=5))
    prepare = Counter()
    check(asked_for(numbers, prepare), numbers)
    assert prepare.asked == [4, 5, 6, 7, 8]


def test_half_written_shards_are_not_read(tmp_path: Path) -> None:
    """What another run is writing, or was killed at, lies in hidden folders and is nobody's business."""
    prepare = Counter()
    asked_for([1, 2], prepare)
    hidden = tmp_path / "cache" / "features" / "f" / ".tmp-other"
    hidden.mkdir()
    (hidden / "keys.npy").write_bytes(b"\x93NUM")
    check(asked_for([2, 3], prepare), [2, 3])


def test_runs_side_by_side_do_not_clash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SHARD", 8)
    failures: list[BaseException] = []
    together = threading.Barrier(4)

    def run(start: int) -> None:
        try:
            together.wait(timeout=20)
            for numbers in (list(range(1, 60)), list(range(start, start + 40))):
                check(asked_for(numbers, Counter()), numbers)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(start,)) for start in (1, 1, 20, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_features_beyond_memory_are_mapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache, "IN_MEMORY", 0)
    rows = asked_for([3, 2, 7], Counter())
    assert isinstance(rows.flat, np.memmap)
    check(rows, [3, 2, 7])
    assert not list(tmp_path.glob("**/.gathered-*"))


# -- through the embedder -----------------------------------------------------------------------------------


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
