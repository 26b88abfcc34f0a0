"""Modules I–IV, each called alone on a tiny shop."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from mufin import Catalogue, Item
from mufin.config import Config
from mufin.data.items import Items
from mufin.encode.embedder import Embedder
from mufin.encode.features import Descriptors, Features, Groups
from mufin.errors import UsageError
from mufin.progress import Progress
from mufin.settings import Finetune, Pretrain
from mufin.train import finetune as module_iv
from mufin.train import loop as loops
from mufin.train.data import TrainingData
from mufin.train.epochs import TensorBoard, epochs_to_validate
from mufin.train.finetune import finetune
from mufin.train.fit import training_data
from mufin.train.loop import Context, Loop, seeded
from mufin.train.losses import margin_loss
from mufin.train.pretrain import pretrain
from mufin.train.sampling import shuffled
from mufin.train.validate import hold_out, precision_at_1


def state(*modules: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for module in modules for t in module.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# -- the loop -----------------------------------------------------------------------------------------------


def test_the_learning_rate_follows_one_cycle() -> None:
    weight, rows = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(4, 2))
    loop = Loop(
        Pretrain(lr=0.5, warmup=4),
        20,
        [{"params": [weight]}, {"params": []}],
        [{"params": [rows], "lr": 0.1}],
    )
    rise = [0.2, 0.4, 0.6, 0.8]
    fall = [0.5 * (1 + math.cos(math.pi * t / 16)) for t in range(16)]
    for factor in rise + fall:
        for optimizer, lr in zip((*loop.optimizers, *loop.row_optimizers), (0.5, 0.1), strict=True):
            assert optimizer.param_groups[0]["lr"] == pytest.approx(lr * factor)
        picked = nn.functional.embedding(torch.tensor([1]), rows, sparse=True)
        loop.step(weight.sum() + picked.sum())
    assert loop.optimizers[0].param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)
    assert torch.equal(rows[[0, 2, 3]], torch.ones(3, 2))


def test_gradients_are_clipped() -> None:
    weights = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
    loop = Loop(Pretrain(), 10, [{"params": weights}])
    loop.step(1e4 * (weights[0].sum() - 2 * weights[1].sum()))
    norm = torch.cat([w.grad for w in weights]).norm()
    assert float(norm) == pytest.approx(1, abs=1e-3)


def test_a_step_with_nothing_to_train_is_no_error() -> None:
    Loop(Pretrain(), 10, [{"params": []}]).step(torch.zeros(()))


def test_batches_go_through_all_numbers_once() -> None:
    batches = shuffled(torch.arange(10), 4, seeded(0))
    assert [len(b) for b in batches] == [4, 4, 2]
    assert sorted(torch.cat(batches).tolist()) == list(range(10))


def test_all_random_numbers_continue_from_the_state_of_the_context() -> None:
    context = Context()

    def drawn() -> list[Tensor]:
        order = torch.cat(shuffled(torch.arange(50), 8, context.generator))
        return [order, nn.functional.dropout(torch.ones(50))]

    drawn()
    state = context.state_dict()
    once = drawn()
    assert not same(once, drawn())
    context.load_state_dict(state)
    assert same(once, drawn())


@pytest.mark.parametrize("epochs", [1, 3, 10, 37, 200])
def test_the_last_epoch_is_always_validated(epochs: int) -> None:
    chosen = list(epochs_to_validate(epochs))
    assert chosen[-1] == epochs - 1
    assert len(chosen) <= 20


def test_margin_loss_without_negatives_is_zero() -> None:
    s = torch.zeros(2, 2, requires_grad=True)
    loss = margin_loss(s, torch.eye(2, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.bool), 0.2)
    loss.backward()
    assert float(loss.detach()) == 0
    assert torch.isfinite(s.grad).all()


# -- Module I -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["margin", "softmax"])
def test_pretraining_lowers_the_loss(loss: str, stage: Any, losses: list[float]) -> None:
    it = stage("pretrain.epochs=40", f"pretrain.loss={loss}")
    before = state(it.embedder)
    pretrain(it.embedder, it.data, it.config.pretrain, it.context)
    assert len(losses) == 40
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    assert not same(before, state(it.embedder))
    assert not it.embedder.training


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        ("margin", ["hard_positives"]),
        ("margin", ["hard_negatives"]),
        ("margin", ["hard_positives", "hard_negatives"]),
        ("softmax", ["hard_positives"]),
    ],
)
def test_random_positives_and_negatives(loss: str, names: list[str], stage: Any, losses: list[float]) -> None:
    it = stage("pretrain.epochs=30", f"pretrain.loss={loss}", *(f"pretrain.{name}=false" for name in names))
    pretrain(it.embedder, it.data, it.config.pretrain, it.context)
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_labels_whose_positives_are_all_too_easy_are_skipped(stage: Any, losses: list[float]) -> None:
    it = stage("pretrain.hard_similarity=-1.0")
    before = state(it.embedder)
    pretrain(it.embedder, it.data, it.config.pretrain, it.context)
    assert losses == [0.0] * 3
    assert same(before, state(it.embedder))


def test_no_epochs_change_nothing(stage: Any) -> None:
    it = stage("pretrain.epochs=0", "finetune.epochs=0")
    before = state(it.embedder, it.networks.ranker, it.networks.classifiers)
    pretrain(it.embedder, it.data, it.config.pretrain, it.context)
    finetune(it.networks, it.data, it.shortlist, it.config, it.context)
    assert same(before, state(it.embedder, it.networks.ranker, it.networks.classifiers))


# -- Modules II and III -------------------------------------------------------------------------------------


def test_shortlists(stage: Any) -> None:
    it = stage("retrieve.shortlist=4")
    found = it.shortlist
    assert found.labels.shape == (48, 4)
    for row in found.labels.tolist():
        assert len(set(row)) == 4
    assert (found.similarity[:, 1:] <= found.similarity[:, :-1]).all()


def test_transfer_starts_as_the_paper_says(stage: Any) -> None:
    it = stage()
    assert torch.equal(it.networks.ranker.cross_attention.blocks[0].query.weight, torch.eye(16))
    assert torch.equal(it.networks.classifiers.alpha(7), torch.full((7,), 0.5))
    bound = (6 / (7 + 16)) ** 0.5
    assert 0.8 * bound < float(it.networks.classifiers.free.detach().abs().max()) <= bound


# -- Module IV ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["cosine", "softmax"])
@pytest.mark.parametrize("cross", ["attention", "concat", "none"])
def test_finetuning_lowers_the_loss(loss: str, cross: str, stage: Any, losses: list[float]) -> None:
    it = stage(f"rank.cross={cross}", f"finetune.loss={loss}", "finetune.epochs=12")
    finetune(it.networks, it.data, it.shortlist, it.config, it.context)
    assert len(losses) == 36
    assert np.mean(losses[-5:]) < 0.85 * np.mean(losses[:5])
    assert not it.embedder.training
    assert not it.networks.ranker.training


@pytest.mark.parametrize("cross", ["attention", "none"])
@pytest.mark.parametrize("loss", ["cosine", "softmax"])
def test_lite_leaves_the_encoders_untouched(cross: str, loss: str, stage: Any, losses: list[float]) -> None:
    it = stage(
        "finetune.encoder_epochs=0", f"rank.cross={cross}", f"finetune.loss={loss}",
        "text.train_layers=1", "vision.train_layers=1",
    )  # fmt: skip
    encoders = (it.embedder.text, it.embedder.vision)
    before, rest = state(*encoders), state(it.networks.classifiers)
    trained = [p.requires_grad for p in it.embedder.parameters()]
    finetune(it.networks, it.data, it.shortlist, it.config, it.context)
    assert same(before, state(*encoders))
    assert not same(rest, state(it.networks.classifiers))
    assert [p.requires_grad for p in it.embedder.parameters()] == trained
    assert losses[-1] < losses[0]


def test_settings_that_leave_nothing_to_train(stage: Any) -> None:
    it = stage(
        "embed.projection=maxpool", "embed.attention=none", "rank.cross=none", "rank.alpha=one",
        "pretrain.loss=margin", "finetune.loss=cosine",
    )  # fmt: skip
    before = state(it.embedder)
    pretrain(it.embedder, it.data, it.config.pretrain, it.context)
    finetune(it.networks, it.data, it.shortlist, it.config, it.context)
    assert same(before, state(it.embedder))


@pytest.mark.parametrize("losses_of", [("margin", "cosine"), ("softmax", "softmax")])
@pytest.mark.parametrize(
    "embed", ["attention=attention", "attention=feedforward", "attention=none", "bag=raw"]
)
@pytest.mark.parametrize("cross", ["attention", "concat", "none"])
def test_gradients_reach_everything_that_is_trained(
    losses_of: tuple[str, str], embed: str, cross: str, stage: Any, shop: Catalogue
) -> None:
    """After one step of each module every trained weight has a gradient that is not all zero."""
    one, four = losses_of
    labels = [
        Item(label.id, [*label.texts, "of every kind"]) for label in shop.labels
    ]  # to look at one of two
    rich = Catalogue(shop.items, Items.of(labels), shop.parts.values())
    it = stage(
        f"embed.{embed}", f"rank.cross={cross}", "text.train_layers=1", "vision.train_layers=1",
        f"pretrain.loss={one}", f"finetune.loss={four}",
        f"finetune.margin={-1.0 if four == 'cosine' else 0.5}",  # every hinge is active
        "pretrain.epochs=1", "finetune.epochs=1", "pretrain.batch=64", "finetune.batch=64", catalogue=rich,
    )  # fmt: skip
    for parameter in [*it.embedder.self_attention.parameters(), *it.networks.ranker.parameters()]:
        parameter.data += 0.05 * torch.randn_like(parameter)
    # Adding a constant to all keys changes no attention weight: the bias of keys has no effect by nature.
    inert = ("key.bias", "k_proj.bias")

    def without(module: nn.Module) -> set[str]:
        trained = [(n, p) for n, p in module.named_parameters() if p.requires_grad and not n.endswith(inert)]
        return {n for n, p in trained if p.grad is None or not bool(p.grad.to_dense().abs().max() > 1e-9)}

    pretrain(it.embedder, it.data, it.config.pretrain, it.context)
    assert without(it.embedder) == set()
    it.embedder.zero_grad()
    finetune(it.networks, it.data, it.shortlist, it.config, it.context)
    assert without(it.embedder) == without(it.networks.ranker) == without(it.networks.classifiers) == set()


def test_excluded_pairs_are_no_negatives(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is hidden for a point stands in neither side of any loss."""
    it = stage("finetune.sampled=0", "finetune.negatives=7", "finetune.epochs=4")
    hidden = np.zeros(it.data.relevance.shape, bool)
    hidden[:, 2] = ~it.data.relevance.toarray()[:, 2]
    object.__setattr__(it.data, "exclude", csr_matrix(hidden))
    drawn, ignored = [], []
    step = module_iv.Tuner._loss

    def spied(self: Any, sample: module_iv.Sample, *bags: Any) -> Tensor:
        rows = zip(sample.points.tolist(), sample.own.tolist(), strict=True)
        drawn.extend((point, label) for point, row in rows for label in row if label >= 0)
        return step(self, sample, *bags)

    softmax = module_iv.decoupled_softmax

    def watched(logits: Tensor, positive: Tensor, hidden: Tensor) -> Tensor:
        ignored.append(int(hidden.sum()))
        return softmax(logits, positive, hidden)

    monkeypatch.setattr(module_iv.Tuner, "_loss", spied)
    monkeypatch.setattr(module_iv, "decoupled_softmax", watched)
    finetune(it.networks, it.data, it.shortlist, it.config, it.context)
    assert drawn
    assert not any(hidden[p, l] for p, l in drawn)
    assert sum(ignored) > 0


@pytest.mark.parametrize("loss", ["margin", "softmax"])
def test_excluded_pairs_have_no_influence_in_pretraining(loss: str, stage: Any) -> None:
    """The gradient at the similarity of an excluded pair is zero."""
    from mufin.train import pretrain as module_i

    it = stage(f"pretrain.loss={loss}", "pretrain.hard_positives=false")
    hidden = ~it.data.relevance.toarray()
    object.__setattr__(it.data, "exclude", csr_matrix(hidden))  # no pair is left that could be a negative
    before = state(it.embedder)
    trainer = module_i.Siamese(it.embedder, it.data, it.config.pretrain, it.context, 1)
    assert float(trainer.step(torch.from_numpy(it.data.used_labels)).detach()) == 0
    gradients = [p.grad for p in it.embedder.parameters() if p.grad is not None]
    assert all(not g.any() for g in gradients)
    assert len(before) == len(state(it.embedder))


# -- validation and logs ------------------------------------------------------------------------------------


def points_with(relevance: np.ndarray) -> TrainingData:
    nothing = Features(Descriptors.none(len(relevance)), Descriptors.none(len(relevance)))
    groups = Groups.singles(np.arange(len(relevance)))
    hidden = csr_matrix(relevance.shape, dtype=bool)
    return TrainingData(nothing, groups, nothing, csr_matrix(relevance), hidden)


def test_hold_out() -> None:
    rng = np.random.default_rng(0)
    data = points_with(np.eye(6, dtype=bool) & (np.arange(6) != 1)[:, None])
    held = hold_out(data, 0.5, rng)
    assert len(held) == 2
    assert 1 not in held
    assert len(hold_out(data, 0.0, rng)) == 0
    many = points_with(np.ones((3000, 1), bool))
    assert len(hold_out(many, 0.5, rng)) == 1000


def test_points_of_one_set_are_held_out_together() -> None:
    left_out = np.tile(np.eye(5, dtype=bool), (20, 20))  # 20 sets of 5: each point leaves one item out
    sets = np.kron(np.eye(20, dtype=bool), np.ones((5, 5), bool))
    data = points_with(left_out & sets)
    object.__setattr__(data, "exclude", csr_matrix(sets & ~left_out))
    held = hold_out(data, 0.23, np.random.default_rng(0))
    assert len(held) == 20  # as many whole sets as fit
    assert len(set(held // 5)) == 4
    alone = hold_out(points_with(np.ones((50, 1), bool)), 0.2, np.random.default_rng(0))
    assert len(alone) == 10  # the same label does not make a set


def with_twins(kind: str) -> Catalogue:
    """Twenty pairs of items with the same text, where every point has excluded labels."""
    twins = [Item(f"{twin}{i}", [f"thing {i}"]) for i in range(20) for twin in "ab"]
    others = [Item(f"c{i}", [f"other {i}"]) for i in range(20)]
    pairs = {twin.id: ["c0", f"c{i % 19 + 1}"] for i, twin in enumerate(twins)}
    match kind:
        case "products":  # an item is excluded for itself
            return Catalogue.build([*twins, *others], train=pairs)
        case "filter pairs":
            hidden = [(twin.id, "c0") for twin in twins]
            return Catalogue.build(twins, others, filter=hidden, train=pairs)
        case _:  # the rest of a set is excluded
            sets = {"outfits": [[twin.id, f"c{twin.id[1:]}"] for twin in twins]}
            return Catalogue.build([*twins, *others], sets=sets).from_sets("outfits")


@pytest.mark.parametrize("kind", ["products", "filter pairs", "sets"])
def test_points_of_the_same_text_are_held_out_together(kind: str, tiny_config: Config) -> None:
    catalogue = with_twins(kind)
    embedder, progress = Embedder(tiny_config), Progress(quiet=True)
    data = training_data(embedder, (), catalogue, catalogue.split("train"), progress)
    assert data.exclude.nnz
    held = hold_out(data, 0.3, np.random.default_rng(0))
    assert len(held)
    texts = np.array([catalogue.items.texts[int(row)].as_py()[0] for row in data.groups.members])
    assert not set(texts[held]) & set(texts[replace(data, held_out=held).seen])


@pytest.mark.parametrize("cross", ["attention", "none"])
def test_validation_leaves_out_what_is_excluded(cross: str, stage: Any) -> None:
    """With all but the relevant labels excluded, the best label is relevant, whatever the weights."""
    it = stage(f"rank.cross={cross}")
    object.__setattr__(it.data, "exclude", csr_matrix(~it.data.relevance.toarray()))
    assert precision_at_1(it.embedder, it.data) == 100
    assert precision_at_1(it.embedder, it.data, it.networks) == 100


def test_validation_changes_nothing(stage: Any) -> None:
    plain, watched = stage("embed.input_dropout=0.2"), stage("embed.input_dropout=0.2")
    seen: list[float] = []
    for it, validate in ((plain, None), (watched, lambda: seen.append(1.0) or 1.0)):
        torch.manual_seed(5)
        pretrain(it.embedder, it.data, it.config.pretrain, it.context, validate)
    assert same(state(plain.embedder), state(watched.embedder))
    assert len(seen) == 3
    it = copy.copy(plain)
    it.embedder.train()
    it.networks.ranker.train()
    precision_at_1(it.embedder, it.data, it.networks)
    assert it.embedder.training
    assert it.networks.ranker.training


@pytest.mark.filterwarnings("ignore")  # tensorboard's own, at import
def test_tensorboard_logs(stage: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    it = stage()
    context = Context(callbacks=[TensorBoard(tmp_path)])
    pretrain(it.embedder, it.data, it.config.pretrain, context, lambda: 50.0)
    finetune(it.networks, it.data, it.shortlist, it.config, context, lambda: 60.0)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    names = {"pretrain/loss", "pretrain/validation P@1", "finetune/loss", "finetune/validation P@1"}
    assert names <= set(events.Tags()["scalars"])


def test_tensorboard_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match="mufin.tensorboard"):
        TensorBoard(tmp_path)


def test_settings_name_what_the_modules_read() -> None:
    """No setting is dead: each field of Pretrain and Finetune is read somewhere in mufin.train."""
    source = "".join(p.read_text("utf-8") for p in Path(loops.__file__).parent.glob("*.py"))
    for section in (Pretrain, Finetune):
        for name in section.model_fields:
            assert f"settings.{name}" in source, name
