"""The sections of `speed.py` for a CPU: search and its peers, ranking, encoding, serving, loading.

A model of each size is made once and kept in a cache folder, so that sections may be run one by one.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from speed_made import exponent, made, made_labels, made_titles

K, BATCHES, TUNED = 100, (1, 64, 512), 256
POINTS = 300_000  # remembered by a model, at most
PLAIN = ("similarity", "classifier")  # the paper's signals
KEPT = 400_000  # labels of a model that is saved whole; of more only search and ranking are measured
Row = dict[str, Any]


def seconds(run: Callable[[Any], Any], given: Sequence[Any], most: float = 1.5, least: int = 3) -> float:
    """The median time of a call, each with the next of what is given."""
    run(given[0])
    times: list[float] = []
    while len(times) < least or (sum(times) < most and len(times) < 200):
        start = time.perf_counter()
        run(given[len(times) % len(given)])
        times.append(time.perf_counter() - start)
    return median(times)


def conditions() -> Row:
    """What else decides a time: threads, and how many processes wanted the cores in the last minute."""
    return {"threads": torch.get_num_threads(), "load": os.getloadavg()[0]}


def limits() -> Row:
    """What the hardware gives: copy bandwidth and f32 matrix rate."""
    source = torch.randn(2**27)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / seconds(target.copy_, [source], 1.0)
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return {"copy GB/s": copied / 1e9, "f32 GFLOP/s": 2 * 2048**3 / seconds(a.matmul, [b], 1.0) / 1e9}


# -- a model of each size ------------------------------------------------------------------------------------


def model_folder(name: str, cache: Path) -> Path:
    """A saved model with the offline encoders, cross-attention, a memory with words, and labels of that size.

    It has all that a preset may have; what a measurement does without is taken away from it (`served`).
    """
    import pyarrow as pa

    from mufin import Config, Mufin, save
    from mufin.data.items import Items
    from mufin.encode.embedder import Embedder
    from mufin.rank.ranker import Ranker
    from mufin.retrieve.approximate import ApproximateIndex
    from mufin.retrieve.lists import Lists
    from mufin.signals import signals_of
    from mufin.signals.mixture import Mixture

    folder = cache / name
    if (folder / "mufin.json").exists():
        return folder
    n_points = 1300 + min(POINTS, 10 * _labels_of(name))
    world = made(name, n_points)
    n = world.entries.n_labels
    changes = ["rank.cross=attention", "retrieve.search=approximate", "memory.title_labels=false"]
    config = Config.preset("fast").override(changes)
    torch.manual_seed(0)
    embedder = Embedder(config)
    vocabulary = embedder.text.tokenizer.get_vocab()

    def written(count: int, words: int) -> Items:
        texts = [[title] for title in made_titles(vocabulary, count, words)]
        return Items.from_table(pa.table({"id": [f"label-{i}" for i in range(count)], "texts": texts}))

    keys, points = world.queries[1300:], written(n_points - 1300, 7)
    labels = replace(made_labels(world), items=written(n, 3))
    start = time.perf_counter()
    index = ApproximateIndex(world.entries, queries=world.queries[:TUNED])
    built = time.perf_counter() - start
    offsets = torch.arange(0, 3 * len(keys) + 1, 3)
    had = torch.randint(n, (3 * len(keys),))
    signals = [signal.study(points) for signal in signals_of(config)]
    mixture = Mixture.of_beta(signals, 0.7)
    model = Mufin(config, embedder, Ranker(config), labels, signals, mixture, Lists(offsets, had), index)
    teach(model, keys, points)
    start = time.perf_counter()
    _ = next(signal for signal in model.signals if signal.name == "memory").index
    remembered = time.perf_counter() - start
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(world.queries[:1300].clone(), folder / "queries.pt")
    facts = {"labels": n, "entries": len(world.entries), "index s": built, "memory s": remembered,
             "effort": effort(index)}  # fmt: skip
    (folder / "facts.json").write_text(json.dumps(facts))
    save(model, folder)
    return folder


def teach(model: Any, keys: Tensor, points: Any) -> None:
    """What the signals would have learnt from these points; no title is encoded, it would take hours."""
    from mufin.bag import PackedBags
    from mufin.encode.features import silent
    from mufin.rows import DenseRows
    from mufin.signals.base import Query, Training

    def readings(items: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for signal in model.signals:
            if signal.name == "pretrained":
                made = torch.nn.functional.normalize(
                    torch.randn(len(items), model.embedder.text.width), dim=1
                )
                found[signal.name] = DenseRows(made.half())
            else:
                found[signal.name] = signal.read(items, None, False, silent)
        return found

    bags = PackedBags(keys, torch.arange(len(keys) + 1), keys)
    remembered = Query(model.known, bags, readings(points))
    labels = Query(model.known, model.labels.bags, readings(model.labels.items))
    nothing = csr_matrix((len(keys), len(model.labels.alive)), dtype=bool)
    training = Training(remembered, labels, nothing, nothing, own_items=False)
    model.signals = tuple(signal.learn(training) for signal in model.signals)


def only(model: Any, *names: str) -> None:
    """Leave the model these signals alone, with the paper's mixture."""
    from mufin.signals.mixture import Mixture

    model.signals = tuple(signal for signal in model.signals if signal.name in names)
    model.mixture = Mixture.of_beta(model.signals, 0.7)


def unsaved(name: str) -> tuple[Any, Tensor]:
    """A model with that many labels, cross-attention and no memory, and queries; its index is built anew."""
    from mufin import Config, Mufin
    from mufin.encode.embedder import Embedder
    from mufin.rank.ranker import Ranker
    from mufin.retrieve.approximate import ApproximateIndex
    from mufin.signals import signals_of
    from mufin.signals.mixture import Mixture

    world = made(name, 1300)
    config = Config.preset("fast").override(["rank.cross=attention", "modalities=text"])
    labels = made_labels(world)
    index = ApproximateIndex(world.entries, queries=world.queries[:TUNED])
    signals = [signal for signal in signals_of(config) if signal.name in PLAIN]
    mixture = Mixture.of_beta(signals, 0.7)
    model = Mufin(config, Embedder(config), Ranker(config), labels, signals, mixture, None, index)
    return model, world.queries


def served(name: str, cache: Path, like: str) -> Any:
    """The model of that size as it is served, with what the preset `paper` or `fast` has."""
    from mufin import load
    from mufin.rank.ranker import Ranker
    from mufin.serve.packing import pack

    model = load(model_folder(name, cache), "cpu")
    if like == "paper":  # cross-attention, no memory, no words
        only(model, *PLAIN)
    else:  # a memory with words, no cross-attention
        model.ranker = Ranker(model.config.override(["rank.cross=none"])).eval()
    pack(model)
    return model


def _labels_of(name: str) -> int:
    from speed_made import SIZES

    return SIZES[name] if name in SIZES else int(name)


def is_large(name: str) -> bool:
    return _labels_of(name) > KEPT


def effort(index: Any) -> str:
    return f"efSearch {index.faiss.hnsw.efSearch}" if index.is_graph else f"nprobe {index.lists.nprobe}"


def build(name: str, cache: Path) -> list[Row]:
    """Seconds to build the index and the memory's, on a CPU."""
    rows = []
    facts = json.loads((model_folder(name, cache) / "facts.json").read_text())
    files = sum(path.stat().st_size for path in (cache / name).rglob("*") if path.is_file())
    rows.append({"size": name, **facts, "folder GB": files / 1e9})
    return rows


# -- search and rank -----------------------------------------------------------------------------------------


def search(name: str, cache: Path) -> list[Row]:
    """Search, and ranking of what it found with and without the memory, for ready embeddings."""
    from mufin import load
    from mufin.retrieve.approximate import label_recall
    from mufin.signals.base import Query

    rows = []
    if is_large(name):
        model, queries = unsaved(name)
        queries = queries[TUNED:]
    else:
        model = load(folder := model_folder(name, cache), "cpu")
        queries = torch.load(folder / "queries.pt")[TUNED:]
    model.config = model.config.override(["retrieve.shortlist=100"])
    truth = torch.cat([model.index.exact.search(part, K).labels for part in queries[:256].split(64)])
    alone = torch.cat([model.index.search(query, K).labels for query in queries[:256].split(1)])
    recall = label_recall(alone, truth)
    only(model, *PLAIN, "memory")
    remembering = copy(model)
    only(model, *PLAIN)
    for n in BATCHES:
        some = queries.split(n) if n < 512 else [queries[:512], queries[512:1024]]
        bags = [as_bags(part) for part in some if len(part) == n]
        find = seconds(lambda q: model.index.search(q, K), [q for q in some if len(q) == n])

        def answer(bags: Any, by: Any = model) -> Any:
            return by.rank(Query(by.known, bags, {}), 10)

        plain = seconds(answer, bags)
        whole = seconds(partial(answer, by=remembering), bags) if len(model.points) else None
        rows.append(
            {"size": name, "labels": len(model.labels), "entries": model.index.n_entries, "batch": n,
             "search ms": 1e3 * find / n, "rank ms": 1e3 * (plain - find) / n,
             "search + rank ms": 1e3 * plain / n, "with memory ms": whole and 1e3 * whole / n,
             "recall@100": recall, "effort": effort(model.index), "peak GB": peak(), **conditions()}
        )  # fmt: skip
    return rows


def as_bags(vectors: Tensor) -> Any:
    """Bags of two rows whose vectors these are: a title and a picture."""
    from mufin.bag import PackedBags

    rows = vectors.repeat_interleave(2, dim=0)
    return PackedBags(rows, torch.arange(0, len(rows) + 1, 2))


def growth(rows: list[Row], cache: Path) -> Row:
    """The fitted exponent of one query's search time over the labels, where recall is at least 0.97.

    Ten queries of each size in turn: a slow minute of the machine is slow for all of them.
    """
    from mufin import load

    alone = [row for row in rows if row["batch"] == 1 and row["recall@100"] >= 0.97]
    good = [row["size"] for row in alone if row["labels"] <= KEPT]
    indexes = {name: load(model_folder(name, cache), "cpu").index for name in good}
    asked = {name: torch.load(cache / name / "queries.pt")[TUNED:].split(1) for name in good}
    times: dict[str, list[float]] = {name: [] for name in good}
    for first, name in product(range(0, 300, 10), good):
        for query in asked[name][first : first + 10]:
            start = time.perf_counter()
            indexes[name].search(query, K)
            times[name].append(1e3 * (time.perf_counter() - start))
    found = {name: median(times[name]) for name in good}
    slope = exponent([indexes[name].n_labels for name in good], list(found.values()))
    over_all = exponent([row["labels"] for row in alone], [row["search ms"] for row in alone])
    return {
        "exponent": slope,
        **{f"{name} ms": ms for name, ms in found.items()},
        "exponent of the table above, all sizes": over_all,
    }


def peak() -> float:
    """GB resident at most so far in this process, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


# -- peers and difficulty ------------------------------------------------------------------------------------


def peers(name: str, cache: Path, hnswlib_at: str) -> list[Row]:
    """One query: ours, brute force, faiss HNSW-flat, hnswlib with the settings of the released MUFIN."""
    from mufin import load
    from mufin.retrieve.approximate import label_recall

    rows: list[Row] = []
    folder = model_folder(name, cache)
    index = load(folder, "cpu").index
    entries, queries = index.entries, torch.load(folder / "queries.pt")[TUNED : TUNED + 128]
    truth = index.exact.search(queries, K).labels
    built = json.loads((folder / "facts.json").read_text())["index s"]
    ways: list[tuple[str, Callable[[Tensor], Tensor], float]] = [
        ("mufin, " + effort(index), lambda q, index=index: index.search(q, K).labels, built),
        ("mufin, exact", lambda q, index=index: index.exact.search(q, K).labels, 0.0),
        ("brute force, NumPy", brute_force(entries), 0.0),
    ]
    if len(entries) <= 250_000:
        ways.append(hnsw_flat(entries))
    if hnswlib_at:
        ways.append(released_hnswlib(entries, hnswlib_at))
    for way, run, took in ways:
        slow = seconds(run, queries.split(1), 3.0)
        found = torch.cat([run(q) for q in queries[:64].split(1)])
        rows.append(
            {"size": name, "labels": entries.n_labels, "entries": len(entries), "search": way,
             "ms a query": 1e3 * slow, "recall@100": label_recall(found, truth[:64]), "build s": took,
             **conditions()}
        )  # fmt: skip
    return rows


def brute_force(entries: Any) -> Callable[[Tensor], Tensor]:
    vectors, owner = entries.vectors.numpy(), entries.labels.numpy()
    starts = np.flatnonzero(np.diff(owner, prepend=-1))

    def run(query: Tensor) -> Tensor:
        best = np.maximum.reduceat(vectors @ query[0].numpy(), starts)  # (L,)
        top = np.argpartition(-best, K)[:K]
        return torch.from_numpy(owner[starts[top[np.argsort(-best[top])]]])[None]

    return run


def unique_labels(found: Any, owner: Any) -> Tensor:
    """The first K labels of entries in their order, −1 where there are fewer."""
    labels = owner[found[found >= 0]]
    _, first = np.unique(labels, return_index=True)
    chosen = labels[np.sort(first)[:K]]
    return torch.from_numpy(np.pad(chosen, (0, K - len(chosen)), constant_values=-1))[None]


def hnsw_flat(entries: Any) -> tuple[str, Callable[[Tensor], Tensor], float]:
    """faiss HNSW over the entries as they are, enough of them fetched for 100 labels."""
    import faiss

    start = time.perf_counter()
    index = faiss.IndexHNSWFlat(entries.vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 100
    index.add(entries.vectors.numpy())
    took, owner = time.perf_counter() - start, entries.labels.numpy()
    effort = faiss.SearchParametersHNSW(efSearch=600)

    def run(query: Tensor) -> Tensor:
        return unique_labels(index.search(query.numpy(), 480, params=effort)[1][0], owner)

    return "faiss HNSW32-flat, efSearch 600, 480 entries", run, took


def released_hnswlib(entries: Any, where: str) -> tuple[str, Callable[[Tensor], Tensor], float]:
    """One vector a label, N(Σ its entries), M = 100, ef = 300: the settings of the released MUFIN."""
    sys.path.append(where)
    import hnswlib

    sums = torch.zeros(entries.n_labels, entries.vectors.shape[1]).index_add_(
        0, entries.labels, entries.vectors
    )
    start = time.perf_counter()
    index = hnswlib.Index("cosine", sums.shape[1])
    index.init_index(len(sums), M=100, ef_construction=300)
    index.add_items(sums.numpy())
    index.set_ef(300)
    index.set_num_threads(1)
    took = time.perf_counter() - start

    def run(query: Tensor) -> Tensor:
        return torch.from_numpy(index.knn_query(query.numpy(), K)[0].astype(np.int64))

    return "hnswlib, one vector a label, M 100, ef 300", run, took


def difficulty(trained: Path, catalogue: Path) -> list[Row]:
    """The same lists and efforts over trained embeddings and over as many made labels: recall of both."""
    from mufin import Catalogue, load
    from mufin.encode.features import Groups
    from mufin.retrieve import approximate, codes
    from mufin.retrieve.entries import Entries

    model, read = load(trained, "cpu"), Catalogue.read(catalogue)
    chosen = read.items.take(np.unique(read.split("test").members)[:512])
    features = model.features(chosen, cached=True)
    queries = model.embedder.embed(features, Groups.singles(np.arange(len(chosen)))).vectors()
    real = model.index.entries
    world = made(str(real.n_labels), 512)
    first = world.entries.labels.diff(prepend=torch.tensor([-1])) > 0
    two = first | torch.cat([first.new_zeros(1), first[:-1]])  # as many entries a label as icon-search has
    few = Entries(world.entries.vectors[two], world.entries.labels[two], real.n_labels)
    rows, before = [], codes.GRAPH
    codes.GRAPH = 0  # lists, as catalogues of the paper's sizes have them
    for name, entries, asked in (
        (f"trained: {trained.name}", real, queries),
        ("made, 2 entries a label", few, world.queries),
        ("made, 7 entries a label", world.entries, world.queries),
    ):
        index = approximate.ApproximateIndex(entries, queries=asked[:TUNED])
        truth = index.exact.search(asked[TUNED:], K)
        row: Row = {"vectors": name, "labels": entries.n_labels, "entries": len(entries),
                    "lists": index.lists.nlist, "tuned to": effort(index)}  # fmt: skip
        for share in (32, 16, 8, 4):  # of the lists
            index.lists.nprobe = index.lists.nlist // share
            found = index.search(asked[TUNED:], K).labels
            row[f"recall, 1/{share} of the lists"] = approximate.label_recall(found, truth.labels)
        row["similarity of label 1, 100"] = ", ".join(
            f"{v:.2f}" for v in truth.similarity[:, [0, -1]].mean(0).tolist()
        )
        rows.append(row)
    codes.GRAPH = before
    return rows


# -- from items to hits --------------------------------------------------------------------------------------


def jpeg(side: int, seed: int) -> bytes:
    """A photograph-like JPEG."""
    from PIL import Image

    small = np.random.default_rng(seed).integers(0, 255, (12, 12, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
    return stream.getvalue()


TITLE = "solid oak writing desk with two drawers number {}"


def stages(name: str, cache: Path) -> list[Row]:
    """Prediction by stages for title + picture and for titles alone, 1, 64 and 512 at a time."""
    pictures = [jpeg(500, seed) for seed in range(64)]
    rows = []
    for like in ("paper", "fast"):
        model = served(name, cache, like)
        for kind, n in product(("title", "title + picture"), BATCHES):
            about: Row = {"size": name, "model": like, "item": kind, "batch": n}
            rows.append(about | _stages(model, n, pictures if "picture" in kind else []) | conditions())
    return rows


def _stages(model: Any, n: int, pictures: list[bytes]) -> Row:
    """Milliseconds an item, n items at a time, with a picture if there are any."""
    from mufin import Item
    from mufin.data.images import load_batch
    from mufin.data.items import Items

    def item(i: int) -> Item:
        return Item(texts=[TITLE.format(i)], images=[pictures[i % len(pictures)]] if pictures else [])

    asked = [[item(n * b + i) for i in range(n)] for b in range(max(1, 32 // n))]
    tables = [Items.of(items) for items in asked]

    def read(table: Items) -> Any:
        return model.query(model.features(table))

    with torch.inference_mode():
        decode = 0.0
        if pictures:
            flat = [list(table.flat_images()[1]) for table in tables]
            decode = seconds(lambda some: load_batch(some, 128), flat, 1.0, 1)
        encode = seconds(read, tables, 1.0, 1)
        queries = [read(table) for table in tables]
        rank = seconds(lambda query: model.rank(query, 10), queries, 1.0, 1)
        find = seconds(lambda query: model.index.search(query.bags.vectors(), K), queries, 1.0, 1)
    whole = seconds(lambda items: model.recommend(items, k=10), asked, 1.0, 1)
    return {
        "decode ms": 1e3 * decode / n, "encode ms": 1e3 * (encode - decode) / n, "search ms": 1e3 * find / n,
        "rank ms": 1e3 * (rank - find) / n, "all ms": 1e3 * whole / n, "items/s": n / whole,
    }  # fmt: skip


def loading(name: str, cache: Path) -> list[Row]:
    """Seconds from imports to the first answer, and the memory that costs, each in a process of its own."""
    rows = []
    folder = model_folder(name, cache)
    runs = []
    for _ in range(3):
        told = subprocess.run([sys.executable, __file__, str(folder)], capture_output=True, text=True)
        if told.returncode:
            raise RuntimeError(told.stderr[-500:])
        runs.append(json.loads(told.stdout.splitlines()[-1]))
    middle = sorted(runs, key=lambda run: run["first answer s"])[1]
    rows.append({"size": name, **middle, **conditions()})
    return rows


def _load_and_answer(folder: str) -> None:
    """One load, told as JSON; the encoders' own part is the size of their weights."""
    import efficientnet_lite_pytorch  # noqa: F401  # imports are not timed
    import faiss  # noqa: F401  # imports are not timed
    from transformers import AutoConfig, AutoModel, AutoTokenizer, BertModel, BertTokenizer  # noqa: F401  # imports are not timed

    import mufin.store  # noqa: F401  # imports are not timed
    from mufin import Item, load

    def resident() -> dict[str, float]:
        lines = Path("/proc/self/status").read_text().splitlines()
        return {line.split(":")[0]: int(line.split()[1]) / 1e3 for line in lines if line.startswith("Rss")}

    files = {p.name: p.stat().st_size for p in Path(folder).iterdir() if p.is_file()}
    encoders = sum(size for file, size in files.items() if file.startswith("network-")) / 1e6
    torch.ones(8, 8) @ torch.ones(8, 8)
    before, start, worked = resident(), time.perf_counter(), time.process_time()
    model = load(folder, "cpu")
    loaded = time.perf_counter() - start
    model.recommend(Item(texts=["oak desk"]), k=10)
    first, worked, after = time.perf_counter() - start, time.process_time() - worked, resident()
    print(json.dumps({
        "labels": len(model.labels), "load s": loaded, "first answer s": first, "of it CPU s": worked,
        "encoders MB": encoders,
        "private MB above encoders": after["RssAnon"] - before["RssAnon"] - encoders,
        "mapped MB touched": after["RssFile"] - before["RssFile"],
        "mapped MB in all": sum(s for f, s in files.items() if f.endswith(".safetensors")) / 1e6 - encoders,
    }))  # fmt: skip


def scoring() -> list[Row]:
    """The metrics beside napkinXC's."""
    import metrics as ours

    return ours.compare(100_000, 100_000, 10)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    _load_and_answer(sys.argv[1])
