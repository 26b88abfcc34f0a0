"""The sections of `speed.py` for a GPU: limits, search, encoders, prediction from end to end, training."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from speed_made import DIM, SIZES, World, flops_of_distilbert, flops_of_layer, flops_of_vit, made

DEVICE = "cuda"
POINTS = 600_000
K, BATCHES, TOKENS, SIDE = 100, (1, 64, 512), 32, 224
Row = dict[str, Any]


def seconds(run: Callable[..., Any], *given: Any, most: float = 0.3, least: int = 3, warm: int = 2) -> float:
    """The median time of a call, by the host's clock, until the device is idle again."""
    for _ in range(warm):
        run(*given)
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < least or (sum(times) < most and len(times) < 50):
        start = time.perf_counter()
        run(*given)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return median(times)


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def peak() -> float:
    """GB held at most since `free`."""
    return torch.cuda.max_memory_allocated() / 1e9


# -- limits --------------------------------------------------------------------------------------------------


def limits() -> Row:
    """What the hardware gives: copy bandwidth, bf16 matrix rate, and from the host to the device."""
    free()
    source = torch.randn(2**30, device=DEVICE)
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / seconds(target.copy_, source)
    del source, target
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    matrix = 2 * 8192**3 / seconds(torch.matmul, a, b)
    host = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(host, device=DEVICE)
    upload = host.nbytes / seconds(there.copy_, host, True)
    return {"copy TB/s": copy / 1e12, "bf16 TFLOP/s": matrix / 1e12, "upload GB/s": upload / 1e9}


# -- search --------------------------------------------------------------------------------------------------


def check() -> Row:
    """The kernels against plain torch, and the index against f64 over every entry; stops at a fault."""
    from mufin.retrieve import kernels, scan

    free()
    worst = 0.0
    for width in (100, DIM):
        vectors = torch.nn.functional.normalize(torch.randn(40_000, width, device=DEVICE), dim=1)
        labels = torch.randint(9000, (40_000,), device=DEVICE).sort()[0]
        packed, _ = scan.pack(vectors)
        for n in (1, 2, 17, 64, 100, 512, 700):
            queries = torch.nn.functional.normalize(torch.randn(n, width, device=DEVICE), dim=1)
            rounded, _ = scan.rounded_queries(queries, packed.shape[1])
            want = scan.group_maxima(rounded, packed)
            got = kernels.group_maxima(rounded, packed)
            worst = max(worst, float((want - got).abs().max()))
            assert worst < 2e-5, f"group_maxima is off by {worst} at D = {width}, B = {n}"
            groups = torch.randint(len(packed) // 32, (min(n, 20), 50), device=DEVICE)
            want = scan.member_scores(queries[:20], vectors, labels, groups)
            got = kernels.member_scores(queries[:20].contiguous(), vectors, labels, groups)
            assert torch.equal(want.isinf(), got.isinf()), f"members kept differ at D = {width}, B = {n}"
            there = ~want.isinf()
            assert torch.allclose(want[there], got[there], atol=2e-7, rtol=0), "members' scores differ"
    world = made("10K", 600, DEVICE)
    index = scan.ScanIndex(world.entries)
    assert index.kernels is not None, "the index did not take the kernels"
    allowed = torch.rand(world.entries.n_labels, device=DEVICE) < 0.9
    exclude = csr_matrix((torch.rand(600, world.entries.n_labels) < 0.0005).numpy())
    for n in (1, 5, 64, 512, 600):
        queries = world.queries[:n]
        for hidden, mask in ((None, None), (exclude[:n], None), (None, allowed), (exclude[:n], allowed)):
            agree(index.search(queries, K, hidden, mask), world, queries, hidden, mask)
    return {"largest difference of a maximum": worst, "answers equal those of f64": True}


def agree(found: Any, world: World, queries: Tensor, hidden: Any = None, mask: Tensor | None = None) -> None:
    """The shortlist is that of f64 over every entry; labels closer than 2e-7 may change places."""
    entries = world.entries
    n, fault = entries.n_labels, 2e-7
    for rows in torch.arange(len(queries)).split(32):
        best = torch.full((len(rows), n), -2.0, dtype=torch.float64, device=DEVICE)
        for start in range(0, len(entries), 2**20):
            vectors, labels = entries.vectors[start : start + 2**20], entries.labels[start : start + 2**20]
            scores = queries[rows].double() @ vectors.double().T
            best.scatter_reduce_(1, labels.expand(len(rows), -1), scores, "amax")
        if mask is not None:
            best[:, ~mask] = -2.0
        if hidden is not None:
            best[torch.from_numpy(hidden[rows.numpy()].toarray()).to(DEVICE)] = -2.0
        labels, similarity = found.labels[rows.to(DEVICE)], found.similarity[rows.to(DEVICE)]
        truth = best.topk(K, dim=1).values
        assert bool((similarity - truth).abs().max() < fault), "similarities are not those of f64"
        assert bool((best.gather(1, labels) - truth).abs().max() < fault), "labels are not those of f64"
        assert all(len(set(row)) == K for row in labels.tolist()), "labels repeat"


def tune() -> Row:
    """How fast is the pass over 9 million entries in each shape of the kernel? The best one stays."""
    from mufin.retrieve import kernels, scan

    free()
    world = made("4.5M", 512, DEVICE)
    packed, _ = scan.pack(world.entries.vectors)
    shapes = {
        512: [(128, 4, 2, 1), (128, 8, 2, 1), (128, 8, 3, 1), (128, 8, 1, 2), (256, 8, 1, 1), (256, 8, 2, 1),
              (256, 16, 2, 1), (256, 16, 1, 1), (128, 4, 1, 2)],
        64: [(64, 4, 2, 1), (64, 4, 3, 1), (64, 4, 1, 3), (64, 8, 2, 1)],
        16: [(16, 4, 2, 4), (16, 4, 3, 2), (16, 4, 4, 1), (16, 8, 3, 2)],
    }  # fmt: skip
    out: Row = {"entries": len(world.entries)}
    for n, tried in shapes.items():
        rounded, _ = scan.rounded_queries(world.queries[:n].contiguous(), packed.shape[1])
        wanted = scan.group_maxima(rounded, packed)
        times: dict[tuple[int, ...], float] = {}
        for shape in tried:
            got = None
            try:
                got = kernels.group_maxima(rounded, packed, shape)
                assert float((got - wanted).abs().max()) < 2e-5
                times[shape] = seconds(kernels.group_maxima, rounded, packed, shape, most=0.1)
            except Exception as error:
                out[f"{n}: {shape}"] = f"{type(error).__name__}: {str(error)[:120]}"
            del got
        if times:
            best = min(times, key=times.__getitem__)
            kernels.SHAPES[n] = best
            out |= {f"{n}: {shape}": f"{1e3 * t:.3f} ms" for shape, t in times.items()}
            out[f"best for {n}"], out[f"ms for {n}"] = list(best), 1e3 * times[best]
            out[f"TFLOP/s for {n}"] = 2 * n * packed.numel() / times[best] / 1e12
        del wanted
    one, _ = scan.rounded_queries(world.queries[:1], packed.shape[1])
    single = seconds(kernels.group_maxima, one, packed, most=0.1)
    out |= {"ms for 1": 1e3 * single, "TB/s for 1": packed.nbytes / single / 1e12}
    return out


def parts_of_a_search() -> Row:
    """Where the time of a search over 9 million entries goes, 512 queries and 1."""
    from mufin.retrieve import scan
    from mufin.retrieve.exact import ExactIndex, top

    free()
    world = made("4.5M", 512, DEVICE)
    index = scan.ScanIndex(world.entries)
    out: Row = {"entries": len(world.entries), "D": DIM}
    for n in (512, 1):
        queries = world.queries[:n].contiguous()
        rounded, _ = scan.rounded_queries(queries, index.packed.shape[1])
        maxima = index._maxima(rounded)
        wide = 186
        _, groups = top(maxima, wide + 1)
        groups = groups[:, :wide].contiguous()
        out |= {
            f"pass, {n}": 1e3 * seconds(index._maxima, rounded),
            f"best groups, {n}": 1e3 * seconds(top, maxima, wide + 1),
            f"members, {n}": 1e3 * seconds(index._scores, queries, groups),
            f"all, {n}": 1e3 * seconds(index.search, queries, K),
        }
        rest = out[f"all, {n}"] - sum(out[f"{part}, {n}"] for part in ("pass", "best groups", "members"))
        out[f"rest, {n}"] = rest
    agree(index.search(world.queries[:64], K), world, world.queries[:64])
    out["64 answers equal those of f64"] = True
    index.kernels = None
    out["all without kernels, 512"] = 1e3 * seconds(index.search, world.queries, K, least=2, warm=1)
    plain = ExactIndex(world.entries)
    out["all in f32 by plain torch, 512"] = 1e3 * seconds(plain.search, world.queries, K, least=2, warm=1)
    return out


def search(sizes: list[str], bounds: Row) -> list[Row]:
    """Exact search alone: every size, 1, 64 and 512 queries."""
    from mufin.retrieve.scan import ScanIndex

    rows = []
    for name in sizes:
        free()
        world = made(name, 512, DEVICE)
        index = ScanIndex(world.entries)
        for n in (1, 32):
            agree(index.search(world.queries[:n], K), world, world.queries[:n])
        for n in BATCHES:
            queries = world.queries[:n].contiguous()
            took = seconds(index.search, queries, K)
            floor = max(
                index.packed.nbytes / (bounds["copy TB/s"] * 1e12),
                2 * n * index.packed.numel() / (bounds["bf16 TFLOP/s"] * 1e12),
            )
            rows.append(
                {"labels": world.entries.n_labels, "entries": len(world.entries), "batch": n,
                 "ms": 1e3 * took, "us a query": 1e6 * took / n, "queries/s": n / took, "recall@100": 1.0,
                 "share of the limit": floor / took, "GB": peak()}
            )  # fmt: skip
        del world, index
    return rows


def module_two() -> Row:
    """Shortlists of 600,000 points over 303,296 labels, 2.1 million entries, as `train/retrieve.py` asks."""
    from mufin.retrieve.scan import ScanIndex

    free()
    world = made("303K", POINTS, DEVICE)
    exclude = csr_matrix((POINTS, world.entries.n_labels), dtype=bool)
    torch.cuda.synchronize()
    start = time.perf_counter()
    index = ScanIndex(world.entries)
    for first in range(0, POINTS, 4096):
        last = min(first + 4096, POINTS)
        index.search(world.queries[first:last], K, exclude[first:last])
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    return {
        "points": POINTS,
        "entries": len(world.entries),
        "s": took,
        "us a point": 1e6 * took / POINTS,
        "GB": peak(),
    }


# -- encoders and prediction ---------------------------------------------------------------------------------


def paper_embedder() -> Any:
    """The paper's embedder with random weights, on the GPU."""
    from mufin.encode.embedder import Embedder
    from speed_made import paper_config, paper_layout

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        paper_layout(Path(name))
        return Embedder(paper_config(), Path(name)).to(DEVICE).eval()


@cache
def decoded(n: int, pictures: int) -> Any:
    """n datapoints as decoding leaves them, in pinned memory: pixels, and titles of 20 ± 8 token ids."""
    from mufin.encode.features import Batch, Part

    lengths = torch.randint(12, 29, (n,)).clamp(max=TOKENS)
    ids = torch.randint(5, 30_000, (n, int(lengths.max())))
    point = torch.arange(n)
    text = Part(*(t.pin_memory() for t in (ids, lengths, point, torch.zeros(n, dtype=torch.int64))))
    pixels = torch.randint(256, (n * pictures, 1, SIDE, SIDE, 3), dtype=torch.uint8)
    which = (torch.ones(n * pictures, dtype=torch.int64), point.repeat_interleave(pictures))
    slots = 1 + torch.arange(pictures).repeat(n)
    image = Part(*(t.pin_memory() for t in (pixels, *which, slots)))
    return Batch(n, 1 + pictures, text, image)


def encoders(bounds: Row) -> list[Row]:
    """E_T and E_V alone: as they are, and with compiled layers."""
    from mufin.encode.lean import lean

    free()
    embedder = paper_embedder()
    rate, rows = bounds["bf16 TFLOP/s"] * 1e12, []
    for how in ("eager", "compiled"):
        try:
            fast = lean(embedder, compiled=how == "compiled")
            for n, pictures in ((512, 5), (512, 1), (64, 5), (64, 1), (1, 5), (1, 1)):
                if how == "compiled" and n < 512:  # each new shape is compiled anew
                    continue
                batch = decoded(n, pictures).to(torch.device(DEVICE))
                with torch.inference_mode():
                    images = seconds(fast.vision, batch.image.values, batch.image.lengths)
                    texts = seconds(fast.text, batch.text.values, batch.text.lengths)
                    whole = seconds(fast, batch)
                work, words = (
                    n * pictures * flops_of_vit(),
                    n * flops_of_distilbert(batch.text.values.shape[1]),
                )
                rows.append(
                    {"how": how, "batch": n, "pictures": pictures, "pictures us": 1e6 * images / n,
                     "text us": 1e6 * texts / n, "bag us": 1e6 * whole / n,
                     "ViT share of matrix rate": work / images / rate,
                     "text share of matrix rate": words / texts / rate}
                )  # fmt: skip
        except Exception as error:
            rows.append({"how": how, "failed": f"{type(error).__name__}: {str(error)[:300]}"})
    return rows


def predictor(world: World, fast: Any) -> Any:
    """A model over these labels: the paper's ranker, exact search."""
    from mufin.model import Mufin
    from mufin.rank.ranker import Ranker
    from mufin.signals import signals_of
    from mufin.signals.mixture import Mixture
    from speed_made import made_labels, paper_config

    config = paper_config()
    from mufin.retrieve.build import build_index

    index = build_index(world.entries)
    signals = signals_of(config)
    mixture = Mixture.of_beta(signals, 0.7)
    ranker = Ranker(config).to(DEVICE)
    return Mufin(config, fast, ranker, made_labels(world), signals, mixture, None, index)


class Predict:
    """A batch of datapoints from pixels and tokens to the ten best labels on the host.

    Encoders of random weights would send every query to one place, so the bags are moved to made ones after
    encoding: same shapes, same work.
    """

    def __init__(self, model: Any, fast: Any, queries: Tensor) -> None:
        self.model, self.fast, self.place = model, fast, queries[:, None]

    def bags(self, batch: Any) -> Any:
        from mufin.bag import Bag, PackedBags

        bag = self.fast(batch)
        return PackedBags.pack([Bag(self.place + 0 * bag.values, bag.mask)], DIM)

    def answer(self, bags: Any) -> tuple[Tensor, Tensor]:
        from mufin.signals.base import Query

        ranked = self.model.rank(Query(self.model.known, bags, {}), 10)
        return ranked.labels.cpu(), ranked.score.cpu()

    def __call__(self, batch: Any) -> tuple[Tensor, Tensor]:
        return self.answer(self.bags(batch))


def end_to_end(sizes: list[str], compiled: bool) -> list[Row]:
    """Prediction by stages: 5 pictures and a title (4.5M: 1 picture and a text), 1, 64 and 512 at a time."""
    from mufin.encode.lean import lean

    rows = []
    embedder = paper_embedder()
    fast = lean(embedder, compiled)
    for name in sizes:
        free()
        world = made(name, 512, DEVICE)
        model = predictor(world, fast)
        for pictures in (1,) if name == "4.5M" else (5, 1):
            for n in (512,) if compiled else BATCHES:
                batch = decoded(n, pictures)
                on_device = batch.to(torch.device(DEVICE))
                run = Predict(model, fast, world.queries[:n])
                with torch.inference_mode():
                    ready = run.bags(on_device)
                    copy = seconds(batch.to, torch.device(DEVICE), most=0.1)
                    encode = seconds(run.bags, on_device, most=0.2)
                    find = seconds(
                        model.index.search, ready.vectors(), K, None, model.labels.alive, most=0.15
                    )
                    rank = seconds(run.answer, ready, most=0.15)
                    whole = seconds(run, batch)
                rows.append(
                    {"labels": world.entries.n_labels, "entries": len(world.entries), "pictures": pictures,
                     "batch": n, "encoders": "compiled" if compiled else "eager", "copy us": 1e6 * copy / n,
                     "encode us": 1e6 * encode / n, "search us": 1e6 * find / n,
                     "rank us": 1e6 * (rank - find) / n, "all us": 1e6 * whole / n, "datapoints/s": n / whole,
                     "GB": peak()}
                )  # fmt: skip
        del world, model
    return rows


# -- training ------------------------------------------------------------------------------------------------


class ModuleOne:
    """A step of Module I from pixels on: frozen layers forward, the last of ViT-B/32 and DistilBERT trained.

    A label has two positives, everything a title and 5 pictures; pixels of the next step travel meanwhile.
    """

    def __init__(self, labels: int, compiled: bool) -> None:
        from mufin.config import Config
        from mufin.train.loop import Loop, embedder_groups

        self.labels, self.embedder, self.settings = labels, paper_embedder().train(), Config().pretrain
        groups = embedder_groups(self.embedder, self.settings.lr, self.settings.encoder_lr)
        self.loop = Loop(self.settings, 1000, groups)
        self.frozen = frozen_part(self.embedder.vision, compiled)
        self.batches = [decoded(labels, 5), decoded(2 * labels, 5)]
        self.side = torch.cuda.Stream()
        self.coming: list[Any] = []
        self._send()

    def _send(self) -> None:
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.coming = [batch.to(torch.device(DEVICE)) for batch in self.batches]

    def __call__(self) -> None:
        from mufin.train.losses import hardest, margin_loss

        torch.cuda.current_stream().wait_stream(self.side)
        here = self.coming
        self._send()
        z, x = (self._vectors(batch) for batch in here)
        positive = torch.eye(self.labels, dtype=torch.bool, device=DEVICE).repeat(1, 2)
        similarity = z @ x.T
        negative = hardest(similarity, ~positive, self.settings.negatives)
        self.loop.step(margin_loss(similarity, positive, negative, self.settings.margin))

    def _vectors(self, batch: Any) -> Tensor:
        from mufin.encode.features import Batch, Part
        from mufin.train.loop import autocast

        with torch.no_grad():
            hidden = torch.cat([self.frozen(part) for part in batch.image.values[:, 0].split(2560)])
        image = Part(hidden[:, None], *list(vars(batch.image).values())[1:])
        with autocast(torch.device(DEVICE)):
            bag = self.embedder(Batch(batch.size, batch.width, batch.text, image))
        return bag.vector().float()

    @property
    def flops(self) -> float:
        """Frozen layers once, trained ones three times: forward, and backward for weights and inputs."""
        tokens, patches = self.batches[0].text.values.shape[1], (SIDE // 32) ** 2 + 1
        pictures = flops_of_vit() + 2 * flops_of_layer(patches)
        return 3 * self.labels * (5 * pictures + 3 * flops_of_distilbert(tokens))


def module_one(bounds: Row, labels: int = 512) -> list[Row]:
    """Training samples a second and the share of the matrix rate; frozen layers as they are, and compiled."""
    rows = []
    for how in ("eager", "compiled"):
        free()
        try:
            step = ModuleOne(labels, how == "compiled")
            took = seconds(step, most=3.0, least=5, warm=3)
            rate = step.flops / took / 1e12
            rows.append(
                {"frozen layers": how, "labels a batch": labels, "s a step": took, "labels/s": labels / took,
                 "items/s": 3 * labels / took, "pictures/s": 15 * labels / took, "TFLOP/s": rate,
                 "share of matrix rate": rate / bounds["bf16 TFLOP/s"], "GB": peak()}
            )  # fmt: skip
        except Exception as error:
            rows.append({"frozen layers": how, "failed": f"{type(error).__name__}: {str(error)[:300]}"})
        step = None
    return rows


def frozen_part(encoder: Any, compiled: bool) -> Callable[[Tensor], Tensor]:
    """Pixels (n, S, S, 3) → the hidden states at the cut, in bf16."""
    from copy import deepcopy

    copy = deepcopy(encoder).requires_grad_(False)
    copy.network.to(torch.bfloat16)
    if compiled:
        for layer in getattr(copy.cut.holder, copy.cut.attribute):
            layer.forward = torch.compile(layer.forward)

    def run(pixels: Tensor) -> Tensor:
        values = copy._normalise(pixels)
        return copy.cut.before(lambda: copy.network(pixel_values=values))

    return run


def classifiers() -> list[Row]:
    """η and α of 4.5 million labels: memory of weights and optimizer, and a step against that of 45,000."""
    from mufin.rank.classifiers import Classifiers

    rows = []
    for n in (45_000, SIZES["4.5M"]):
        free()
        before = torch.cuda.memory_allocated()
        model = Classifiers(n, DIM).to(DEVICE)
        optimizer = torch.optim.SparseAdam(model.sparse_parameters())
        z = torch.nn.functional.normalize(torch.randn(2800, DIM, device=DEVICE), dim=1)

        took = seconds(_sparse_step, model, optimizer, z)
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated() - before - z.nbytes
        rows.append(
            {"labels": n, "ms a step": 1e3 * took, "GB of η": model.free.nbytes / 1e9, "GB held": held / 1e9,
             "times η": held / model.free.nbytes}
        )  # fmt: skip
        del model, optimizer
    return rows


def _sparse_step(model: Any, optimizer: Any, z: Tensor) -> None:
    labels = torch.randint(len(model.free), (len(z),), device=DEVICE).unique()
    optimizer.zero_grad(set_to_none=True)
    (1 - (model.weight(labels, z[: len(labels)]) * z[: len(labels)]).sum(1)).mean().backward()
    optimizer.step()
