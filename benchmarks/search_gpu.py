"""How fast is exact search on a GPU, how far from what the hardware allows, and is it right?

    python benchmarks/search_gpu.py --out DIR                        # all sections, about three minutes
    python benchmarks/search_gpu.py --out DIR --only search,module_two

Vectors are made (`made_vectors.py`). DIR/search-<device>.json is written after each section.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from made_vectors import DIM, SIZES, World, made

DEVICE = "cuda"
POINTS = 600_000
K, BATCHES = 100, (1, 64, 512)
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
    from mufin.retrieve import exact_gpu as scan
    from mufin.retrieve import kernels

    free()
    worst = 0.0
    for width in (100, DIM):
        vectors = torch.nn.functional.normalize(torch.randn(40_000, width, device=DEVICE), dim=1)
        labels = torch.randint(9000, (40_000,), device=DEVICE).sort()[0]
        packed = scan.pack(vectors).rows
        for n in (1, 2, 17, 64, 100, 512, 700):
            queries = torch.nn.functional.normalize(torch.randn(n, width, device=DEVICE), dim=1)
            rounded = scan.rounded_queries(queries, packed.shape[1])[0]
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
    from mufin.retrieve import exact_gpu as scan
    from mufin.retrieve import kernels

    free()
    world = made("4.5M", 512, DEVICE)
    packed = scan.pack(world.entries.vectors).rows
    shapes = {
        512: [(128, 4, 2, 1), (128, 8, 2, 1), (128, 8, 3, 1), (128, 8, 1, 2), (256, 8, 1, 1), (256, 8, 2, 1),
              (256, 16, 2, 1), (256, 16, 1, 1), (128, 4, 1, 2)],
        64: [(64, 4, 2, 1), (64, 4, 3, 1), (64, 4, 1, 3), (64, 8, 2, 1)],
        16: [(16, 4, 2, 4), (16, 4, 3, 2), (16, 4, 4, 1), (16, 8, 3, 2)],
    }  # fmt: skip
    out: Row = {"entries": len(world.entries)}
    for n, tried in shapes.items():
        rounded = scan.rounded_queries(world.queries[:n].contiguous(), packed.shape[1])[0]
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
    one = scan.rounded_queries(world.queries[:1], packed.shape[1])[0]
    single = seconds(kernels.group_maxima, one, packed, most=0.1)
    out |= {"ms for 1": 1e3 * single, "TB/s for 1": packed.nbytes / single / 1e12}
    return out


def parts_of_a_search() -> Row:
    """Where the time of a search over 9 million entries goes, 512 queries and 1."""
    from mufin.retrieve import exact_gpu as scan
    from mufin.retrieve.exact import ExactIndex, top

    free()
    world = made("4.5M", 512, DEVICE)
    index = scan.ScanIndex(world.entries)
    out: Row = {"entries": len(world.entries), "D": DIM}
    for n in (512, 1):
        queries = world.queries[:n].contiguous()
        rounded = scan.rounded_queries(queries, index.packed.rows.shape[1])[0]
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
    from mufin.retrieve.exact_gpu import ScanIndex

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
                index.packed.rows.nbytes / (bounds["copy TB/s"] * 1e12),
                2 * n * index.packed.rows.numel() / (bounds["bf16 TFLOP/s"] * 1e12),
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
    from mufin.retrieve.exact_gpu import ScanIndex

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--only", default="", help="sections, with commas between")
    parser.add_argument("--sizes", default=",".join(SIZES))
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(",")))
    name = torch.cuda.get_device_name()
    path = options.out / f"search-{name.split()[-1].lower()}.json"
    found: Row = json.loads(path.read_text()) if path.exists() else {}
    found["machine"] = {"device": name, "torch": torch.__version__}
    found["limits"] = limits()
    sections: dict[str, Callable[[], Any]] = {
        "check": check, "tune": tune, "parts_of_a_search": parts_of_a_search,
        "search": lambda: search(options.sizes.split(","), found["limits"]), "module_two": module_two,
    }  # fmt: skip
    for section, run in sections.items():
        if not wanted or section in wanted:
            found[section] = run()
            print(f"## {section}\n{json.dumps(found[section], indent=1)}", flush=True)
            path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
