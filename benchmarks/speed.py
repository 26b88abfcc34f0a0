"""How fast is mufin as people use it: `fit`, `load`, `recommend` and `mufin predict`, and nothing else?

    python benchmarks/speed.py                                   # 20,000 labels, 40,000 points, a few minutes
    python benchmarks/speed.py --labels 303296 --points 586781 --device cuda --presets fast
    python benchmarks/speed.py --presets fast,best,paper --images 0,1,5 --whole
    python benchmarks/speed.py --model runs/demo --catalogue src/mufin/demo      # a model of your own

Catalogues are made (`made_catalogue.py`). Models are trained for --steps batches per module, which gives them
the size and the parts of real ones, and times a step; --whole trains them in full and times that. `paper` has
ViT-B/32 and DistilBERT with random weights. Times run from strings and image bytes to ten hits; medians.
Results: OUT/speed-<device>.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from made_catalogue import made_catalogue, tokenizer_file
from mufin import Catalogue, Config, Item, Mufin, fit, load
from mufin.train.loop import Event

Row = dict[str, Any]
K = 10
BATCHES = (1, 64, 512)
PREDICTED = 4_096  # items of `mufin predict`
SECTIONS = ("start-up", "recommend", "predict", "peers")
ONE_EPOCH = ["pretrain.epochs=1", "finetune.epochs=1"]


# -- what is measured ----------------------------------------------------------------------------------------


def answers(model: Mufin, items: Sequence[Item]) -> Iterator[Row]:
    """Time `recommend` in batches of each size, and its stages."""
    for batch in BATCHES:
        parts = [items[i : i + batch] for i in range(0, len(items) - batch + 1, batch)]
        whole = seconds(lambda part: model.recommend(part, K), parts)
        row = {"batch": batch, "ms per item": 1e3 * whole / batch, "items/s": batch / whole}
        yield row | {f"{name} ms": 1e3 * took / batch for name, took in stages(model, parts).items()}


def stages(model: Mufin, parts: Sequence[Sequence[Item]]) -> dict[str, float]:
    """Time the steps of `recommend`: read (decode, tokenize, frozen layers), embed, rank, build hits."""
    from mufin.data.items import Items

    tables = [Items.of(part) for part in parts[:20]]
    read = [model.features(table) for table in tables]
    queries = [model.query(features) for features in read]
    ranked = [model.rank(query, K) for query in queries]
    return {
        "read": seconds(model.features, tables),
        "embed": seconds(model.query, read),
        "rank": seconds(lambda query: model.rank(replace(query, memo={}, neighbours={}), K), queries),
        "hits": seconds(model.hits, ranked),
    }


def start_up(folder: Path, device: str, title: str) -> Row:
    """Time a fresh process: import torch, import mufin and load, first answer; and what it holds then."""
    code = f"""
import json, re, time
start = time.perf_counter(); import torch
if {device!r} == "cuda": torch.zeros(1, device="cuda")
torch_in = time.perf_counter(); import mufin; from mufin import Item, load
imported = time.perf_counter(); model = load({str(folder)!r}, {device!r})
loaded = time.perf_counter(); model.recommend(Item(texts=[{title!r}]), {K})
done = time.perf_counter()
peak = re.search("VmHWM:\\s+(\\d+)", open("/proc/self/status").read())  # of this process alone
print(json.dumps({{"import torch s": torch_in - start, "load s": loaded - imported,
  "first answer s": done - loaded, "peak MB": int(peak[1]) / 1024}}))"""
    found = json.loads(_output([sys.executable, "-c", code]))
    command = [sys.executable, "-m", "mufin", "recommend", str(folder), title, "--device", device, "--json"]
    torch_alone, whole = elapsed([sys.executable, "-c", "import torch"]), elapsed(command)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    command_line = {"mufin recommend s": whole, "of python -c 'import torch'": whole / torch_alone}
    return {**found, "folder MB": size / 1e6, **command_line}


def predictions(folder: Path, items: Sequence[Item], device: str, work: Path) -> Row:
    """Time `mufin predict`, start-up included."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chosen = (list(items) * -(-PREDICTED // len(items)))[:PREDICTED]
    table = {"id": [str(i) for i in range(len(chosen))], "texts": [list(item.texts) for item in chosen]}
    if any(item.images for item in chosen):
        table["images"] = [list(item.images) for item in chosen]
    source, target = work / "input.parquet", work / "predictions.parquet"
    pq.write_table(pa.table(table), source)
    took = elapsed([sys.executable, "-m", "mufin", "predict", str(folder), str(source), "-o", str(target),
                    "-k", str(K), "--device", device, "--quiet"])  # fmt: skip
    return {"items": len(chosen), "seconds": took, "items/s": len(chosen) / took}


def peers(model: Mufin, items: Sequence[Item]) -> Iterator[Row]:
    """Time other searches over the same label vectors; those that are not installed are left out."""
    labels = model.labels.bags.vectors().float().cpu().numpy()
    vectors = model.embed(items[:512]).vector().float().cpu().numpy()
    device = model.labels.alive.device

    def shortlist(x: np.ndarray) -> Any:
        return model.index.search(torch.from_numpy(x).to(device), 100)

    yield {"search": "mufin, shortlist of 100 unique labels", **_per_query(shortlist, vectors)}
    import faiss

    flat = faiss.IndexFlatIP(labels.shape[1])
    flat.add(labels)
    yield {"search": "faiss IndexFlatIP, 100 vectors", **_per_query(lambda x: flat.search(x, 100), vectors)}
    try:
        from sentence_transformers.util import semantic_search

        def semantic(x: np.ndarray) -> Any:
            return semantic_search(torch.from_numpy(x), torch.from_numpy(labels), top_k=100)

        yield {"search": "sentence-transformers semantic_search", **_per_query(semantic, vectors)}
    except ImportError:
        pass
    try:
        import hnswlib

        graph = hnswlib.Index("ip", labels.shape[1])
        graph.init_index(len(labels), ef_construction=300, M=100)
        graph.add_items(labels)
        graph.set_ef(300)
        yield {"search": "hnswlib, M 100, ef 300", **_per_query(lambda x: graph.knn_query(x, 100), vectors)}
    except ImportError:
        pass


def _per_query(search: Callable[[np.ndarray], Any], vectors: np.ndarray) -> Row:
    parts = {batch: [vectors[i : i + batch] for i in range(0, len(vectors), batch)] for batch in (1, 512)}
    return {f"ms per query, batch {b}": 1e3 * seconds(search, p) / len(p[0]) for b, p in parts.items()}


# -- what it is measured on ----------------------------------------------------------------------------------


def config_of(preset: str, images: int, options: argparse.Namespace) -> Config:
    """The settings of a preset; `paper` reads encoders of the right shapes."""
    config = Config.preset(preset)
    changes = [f"run.device={options.device}", "run.pictures=false"]
    changes += [] if images else ["modalities=text"]
    if preset == "paper":
        text, vision = random_encoders(options.work / "encoders")
        changes += [f"text.model={text}", f"vision.model={vision}"]
    few = [] if options.whole else [*ONE_EPOCH, f"run.batches={options.steps}"]
    return config.override([*changes, *few])


def random_encoders(folder: Path) -> tuple[Path, Path]:
    """DistilBERT and ViT-B/32 as checkpoints with random weights."""
    import transformers as hf

    text, vision = folder / "distilbert", folder / "vit-b-32"
    if not (vision / "config.json").exists():
        torch.manual_seed(0)
        hf.DistilBertModel(hf.DistilBertConfig()).save_pretrained(text)
        hf.PreTrainedTokenizerFast(
            tokenizer_file=str(tokenizer_file()), pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
            sep_token="[SEP]", mask_token="[MASK]",
        ).save_pretrained(text)  # fmt: skip
        hf.ViTModel(hf.ViTConfig(patch_size=32)).save_pretrained(vision)
        hf.ViTImageProcessor().save_pretrained(vision)
    return text, vision


def trained(preset: str, images: int, options: argparse.Namespace) -> tuple[Path, Catalogue, Row]:
    """Train a model on a made catalogue of the wanted size, once; say how long it took."""
    name = f"{options.labels}x{options.points}-{images}"
    started = time.perf_counter()
    catalogue = Catalogue.read(made_catalogue(options.work / name, options.labels, options.points, images))
    read = time.perf_counter() - started
    folder = options.work / "models" / f"{preset}-{name}{'-whole' if options.whole else ''}-{options.device}"
    row: Row = {"read s": read}
    if not (folder / "mufin.json").exists():
        started, steps = time.perf_counter(), StepTimes()
        fit(catalogue, config_of(preset, images, options), out=folder, callbacks=[steps])
        took = "whole s" if options.whole else f"{options.steps} batches per module s"
        row |= {took: time.perf_counter() - started, **steps.row()}
    return folder, catalogue, row


class StepTimes:
    """A callback that times training steps, from one report of the loss to the next."""

    def __init__(self) -> None:
        self.heard: dict[str, list[tuple[int, float]]] = {}

    def __call__(self, event: Event) -> None:
        if "loss" in event.values:
            self.heard.setdefault(event.module, []).append((event.step, time.perf_counter()))

    def row(self) -> Row:
        """The median time per step of each module."""
        return {f"{name} ms per step": _per_step(heard) for name, heard in self.heard.items() if heard[1:]}


def _per_step(heard: list[tuple[int, float]]) -> float:
    return 1e3 * median((end - start) / (b - a) for (a, start), (b, end) in pairwise(heard) if b > a)


def queries(catalogue: Catalogue, arrays: bool) -> list[Item]:
    """Items to ask for; with `arrays`, their images come decoded, as (224, 224, 3) bytes."""
    items = [catalogue.items[i] for i in range(min(1024, len(catalogue.items)))]
    random = np.random.default_rng(0)
    return [
        Item(texts=item.texts, images=[random.integers(0, 255, (224, 224, 3), np.uint8) for _ in item.images]
             if arrays else item.images)
        for item in items
    ]  # fmt: skip


def measured(folder: Path, items: Sequence[Item], options: argparse.Namespace) -> Row:
    """Measure the wanted sections about one model."""
    found: Row = {}
    if "start-up" in options.only:
        found["start-up"] = [start_up(folder, options.device, items[0].texts[0])]
    model = load(folder, options.device, exact=options.exact)
    if "recommend" in options.only:
        found["recommend"] = list(answers(model, items))
    if "predict" in options.only and isinstance(next(iter(items[0].images), b""), bytes):
        found["mufin predict"] = [predictions(folder, items, options.device, options.work)]
    return found | ({"peers": list(peers(model, items))} if "peers" in options.only else {})


# -- helpers -------------------------------------------------------------------------------------------------


def seconds(run: Callable[[Any], Any], given: Sequence[Any], at_least: float = 1.5) -> float:
    """The median time of a call, on one input after the other."""
    run(given[0])
    times: list[float] = []
    while len(times) < 3 or (sum(times) < at_least and len(times) < 300):
        _wait()
        start = time.perf_counter()
        run(given[len(times) % len(given)])
        _wait()
        times.append(time.perf_counter() - start)
    return median(times)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def elapsed(command: list[str], times: int = 3) -> float:
    """The fastest of a few runs of a command."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        _output(command)
        took.append(time.perf_counter() - start)
    return min(took)


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}\n{done.stderr}")
    return done.stdout


def machine(device: str) -> Row:
    """What the numbers were measured on."""
    if device == "cuda":
        name = torch.cuda.get_device_name()
    else:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "CPU")
    return {
        "device": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def page(results: Row) -> str:
    """All sections as Markdown tables."""
    facts = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    parts = [
        f"# Speed on {results['machine']['device']}",
        f"Made by `benchmarks/speed.py`; medians. {facts}.",
    ]
    for name, sections in results["models"].items():
        parts.append(f"## {name}")
        for title, rows in sections.items():
            parts += [f"### {title}", table(rows)]
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Row]) -> str:
    """A Markdown table; columns in the order in which they first appear."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([_shown(row.get(c, "")) for c in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--labels", type=int, default=20_000)
    parser.add_argument("--points", type=int, default=40_000)
    parser.add_argument("--presets", default="fast")
    parser.add_argument("--images", default="0,1", help="images per item; `paper` takes them decoded")
    parser.add_argument("--steps", type=int, default=2, help="batches per module that are trained")
    parser.add_argument("--whole", action="store_true", help="train in full, and time it")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections to measure")
    parser.add_argument("--exact", action="store_true", help="load at full precision")
    parser.add_argument("--model", type=Path, help="measure this model instead, on --catalogue")
    parser.add_argument("--catalogue", type=Path)
    parser.add_argument(
        "--work", type=Path, default=Path("build/speed"), help="where catalogues and models are kept"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name().split()[-1].lower() if options.device == "cuda" else "cpu"
    target = options.out / f"speed-{name}.json"
    results: Row = json.loads(target.read_text()) if target.exists() else {}
    results["machine"] = machine(options.device)
    models = results.setdefault("models", {})

    def keep(title: str, found: Row) -> None:
        models[title] = models.get(title, {}) | found
        target.write_text(json.dumps(results, indent=1, default=str))
        target.with_suffix(".md").write_text(page(results))
        print(
            f"## {title}",
            *(f"### {name}\n{table(rows)}" for name, rows in found.items()),
            sep="\n",
            flush=True,
        )

    if options.model:
        items = queries(Catalogue.read(options.catalogue), arrays=False)
        keep(str(options.model), measured(options.model, items, options))
        return
    for preset in options.presets.split(","):
        for images in (int(n) for n in options.images.split(",")):
            folder, catalogue, row = trained(preset, images, options)
            items = queries(catalogue, arrays=preset == "paper")
            title = (
                f"{preset}, {options.labels:,} labels, {options.points:,} points, {images} images per item"
            )
            keep(title, {"training": [row]} if len(row) > 1 else {})
            keep(title, measured(folder, items, options))


if __name__ == "__main__":
    main()
