"""How accurate presets, variants, modalities and other people's tools are on a catalogue, side by side.

    python benchmarks/accuracy.py DATA [ROW …] [--seeds 3] [--device auto] [--jobs 1] [--list]

Writes accuracy-<name of DATA>.md and .json into benchmarks/results (or --results). Every row and seed is
measured in a process of its own, --jobs at a time, and leaves a part in --keep: its figures, and what
happened at the first ten places of each test point, from which paired differences are computed. What was
measured before is kept; --again measures it anew, --jobs 0 only puts together the parts in --keep, wherever
they were made.

With --task fitb, models are trained on the sets of DATA and answer its fill-in-the-blank questions. With
--slice, 15 % of the train split, whole families of titles at a time, stand in for the test split: settings
are chosen there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Kept, leaks, paired_difference, questions_of
from mufin import Catalogue, Config, fit
from mufin.config import differences
from mufin.encode.cache_folder import cache_folder
from mufin.errors import MufinError
from mufin.evaluate import metrics
from mufin.evaluate.score import answer, predict
from mufin.presets import PRESETS, VARIANTS
from mufin.progress import Progress
from peers import PEERS, outfits, rank
from peers.tune import tuned
from slices import sliced
from tables import Results, Run, replace_file

# Row → preset and what it changes. A row whose preset this version does not have is left out.
NO_MEMORY = ["memory.neighbours=0", "memory.loss=0"]
# The paper's recipe on the packaged encoders, frozen. The paper's learning rates suit pre-trained encoders;
# what is trained here, a projection and classifiers, starts at random and needs higher ones.
PACKAGED = [
    "text.model=offline", "text.train_layers=0", "vision.model=offline", "vision.train_layers=0",
    "vision.size=128", "embed.projection=linear", "pretrain.epochs=60", "pretrain.lr=1e-3",
    "finetune.epochs=15", "finetune.lr=1e-3", "finetune.classifier_lr=1e-2", "finetune.warmup=100",
]  # fmt: skip
ROWS: dict[str, tuple[str, list[str]]] = {
    "best": ("best", []),
    "best, text only": ("best", ["modalities=text"]),
    "best, image only": ("best", ["modalities=image"]),
    "best, with cross-attention": ("best", ["rank.cross=attention"]),
    "best, no words": ("best", ["text.words=false"]),
    "best, no memory": ("best", NO_MEMORY),
    "best, memory not trained": ("best", ["memory.loss=0"]),
    "best, no title labels": ("best", ["memory.title_labels=false"]),
    "best, no pretrained similarity": ("best", ["text.pretrained_similarity=false"]),
    "best, no linear": ("best", ["text.linear=false"]),
    "best, no early features": ("best", ["vision.stages=false", "embed.stages=false"]),
    "best, early fusion": ("best", ["embed.fusion=early"]),
    "best, 10 epochs": ("best", ["finetune.epochs=10", "finetune.encoder_epochs=7"]),
    "fast": ("fast", []),
    "fast, text only": ("fast", ["modalities=text"]),
    "fast, image only": ("fast", ["modalities=image"]),
    "fast, no words": ("fast", ["text.words=false"]),
    "fast, no linear": ("fast", ["text.linear=false"]),
    "fast, no title labels": ("fast", ["memory.title_labels=false"]),
    "fast, no pretrained similarity": ("fast", ["text.pretrained_similarity=false"]),
    "fast, no memory": ("fast", NO_MEMORY),
    "fast, no memory, β = 0.7": ("fast", [*NO_MEMORY, "rank.beta=0.7"]),
    "fast, with cross-attention": ("fast", ["rank.cross=attention"]),
    "fast, raw bags": ("fast", ["embed.bag=raw", "rank.cross=attention"]),
    "fast, ConCat": ("fast", [*VARIANTS["concat"]]),
    "fast, no A_S": ("fast", [*VARIANTS["no-as"]]),
    "fast, 2A_S → 2A_C": ("fast", [*VARIANTS["two-blocks"], "rank.cross=attention"]),
    "fast, α = 1": ("fast", [*VARIANTS["alpha-one"]]),
    "fast, no +ve": ("fast", [*VARIANTS["random-positives"]]),
    "best, lite": ("best", ["pretrain.encoder_epochs=all", *VARIANTS["lite"]]),
    "fast, clustered batches": ("fast", ["finetune.batches=clustered"]),
    "fast, R_i every 5 epochs": ("fast", ["finetune.refresh=5"]),
    "fast, guard 0.95": ("fast", ["pretrain.guard=0.95", "finetune.guard=0.95"]),
    "fast, η from centroids": ("fast", ["rank.start=centroid"]),
    "fast, all labels": ("fast", ["finetune.sampled=100000"]),
    "fast, P-I-bag": ("fast", [*VARIANTS["p-i-bag"], "pretrain.epochs=30", *NO_MEMORY]),
    "fast, P-I-vec": ("fast", [*VARIANTS["p-i-vec"], "pretrain.epochs=30", *NO_MEMORY]),
    "SiameseXML": ("fast", [*VARIANTS["siamese-xml"], *NO_MEMORY]),
    "paper, packaged encoders": ("paper", PACKAGED),
    "paper, no A_C": ("paper", [*PACKAGED, *VARIANTS["no-ac"]]),
    "paper, no +ve": ("paper", [*PACKAGED, *VARIANTS["random-positives"]]),
    "paper, no +ve, −ve": ("paper", [*PACKAGED, *VARIANTS["random-pairs"]]),
    "paper, dynamic margin": ("paper", [*PACKAGED, "pretrain.margin=dynamic"]),
}
ANSWERING = ("best", "best, text only", "best, image only", "fast")
COMPARED = [  # paired differences, first minus second
    *(("best", row) for row in ("best, text only", "best, image only", *PEERS)),
    *(("fast", row) for row in ("fast, text only", "fast, image only", "fast, with cross-attention")),
    ("best", "best, with cross-attention"),
]
ORDER = [*PEERS, *outfits.ANSWERS, *ROWS]  # of the lines of a table
RESULTS = Path(__file__).parent / "results"
TASKS = ("test", "fitb")


@dataclass(frozen=True)
class Job:
    """One row, one seed."""

    task: str
    row: str
    seed: int

    def part(self, keep: Path) -> Path:
        """Its figures; what it keeps of each point lies beside them."""
        return keep / self.task / f"{slug(self.row)}-{self.seed}.json"

    def points(self, keep: Path) -> Path:
        """What it keeps of each point; earlier versions kept something else as .npz."""
        return self.part(keep).with_suffix(".points.npz")


def slug(row: str) -> str:
    """A row's name as a file's name.

    >>> slug("no memory, β = 0.7")
    'no-memory-β-0.7'
    """
    return re.sub(r"[^\w.]+", "-", row).strip("-")


def settings_of(row: str, seed: int = 0, device: str = "auto") -> Config:
    preset, changes = ROWS[row]
    return Config.preset(preset).override([*changes, f"seed={seed}", f"run.device={device}"])


def today() -> dict[str, list[str]]:
    """The settings of every variant that this version knows, as differences from the paper's."""
    known = (row for row, (preset, _) in ROWS.items() if preset in PRESETS)
    return {row: differences(settings_of(row), Config()) for row in known}


# -- one row, one seed ---------------------------------------------------------------------------------------


def measure(job: Job, catalogue: Catalogue, keep: Path, device: str) -> Run:
    """All figures of a job; what happened at each point goes into --keep."""
    if job.task == "fitb":
        return _answer(job, catalogue, device)
    train, test = catalogue.split("train"), catalogue.split("test")
    probability, facts = None, {}
    if job.row in PEERS:
        facts["chosen"] = tuned(job.row, catalogue, keep)
        started = time.perf_counter()
        labels = rank(job.row, catalogue, job.seed, facts["chosen"])
        facts["seconds"] = time.perf_counter() - started
    else:
        started = time.perf_counter()
        model = fit(catalogue, settings_of(job.row, job.seed, device))
        facts |= {"settings": today()[job.row], "seconds": time.perf_counter() - started}
        predictions = predict(model, catalogue, test, progress=Progress())
        labels, probability = predictions.labels, predictions.probability
        facts["ms_per_point"] = predictions.ms_per_point
    kept = Kept.of(labels, test.relevance, train.relevance, probability)
    kept.save(job.points(keep))
    figures = metrics.evaluate(labels, test.relevance, metrics.propensities(train.relevance))
    return facts | figures | kept.figures()


def _answer(job: Job, catalogue: Catalogue, device: str) -> Run:
    """The share of questions answered rightly, in percent, for every file of questions."""
    sets = catalogue.from_sets(catalogue.sets[0])
    files = questions_of(catalogue)
    questions = {name: catalogue.questions(name) for name in files}
    started, facts = time.perf_counter(), {}
    if job.row in outfits.ANSWERS:
        reply = outfits.ANSWERS[job.row](catalogue)
        chosen = {name: reply(asked) for name, asked in questions.items()}
        facts["seconds"] = time.perf_counter() - started
    else:
        model = fit(sets, settings_of(job.row, job.seed, device))
        facts |= {"settings": today()[job.row], "seconds": time.perf_counter() - started}
        chosen = {name: answer(model, sets, asked) for name, asked in questions.items()}
    right = {name: 100 * metrics.fitb_accuracy(chosen[name], questions[name].answer) for name in files}
    return facts | right


def run_part(job: Job, arguments: argparse.Namespace, keep: Path) -> None:
    """Measure one job and leave its part; a peer that cannot be run leaves the reason."""
    catalogue = Catalogue.read(arguments.data)
    if arguments.slice:
        catalogue = sliced(catalogue)
    try:
        run = measure(job, catalogue, keep, arguments.device)
    except (MufinError, ImportError) as error:
        run = {"failed": str(error)}
    about = {"task": job.task, "row": job.row, "seed": job.seed}
    replace_file(job.part(keep), json.dumps(about | run, ensure_ascii=False))


# -- all of them ---------------------------------------------------------------------------------------------


def wanted(arguments: argparse.Namespace, catalogue: Catalogue) -> list[Job]:
    """The jobs that were asked for: peers that are not left to chance have one seed."""
    known = today()
    jobs = []
    asks = bool(catalogue.sets and questions_of(catalogue)) and not arguments.slice
    for task in TASKS if arguments.task == "all" else [arguments.task]:
        peers = PEERS if task == "test" else outfits.ANSWERS
        ours = [row for row in known if task == "test" or row in ANSWERING]
        usual = {"peers": [*peers], "ours": ours, None: [*peers, *ours]}[arguments.only]
        for row in arguments.rows or usual:
            if row not in peers and row not in known:
                if arguments.task == "all" and (row in PEERS or row in outfits.ANSWERS):
                    continue  # a peer of the other task
                raise SystemExit(f"no row {row!r}; --list names them all")
            seeds = arguments.seeds
            if row in peers:
                seeds = min(seeds, PEERS[row].seeds) if task == "test" else 1
            jobs += [Job(task, row, seed) for seed in range(seeds) if task == "test" or asks]
    return jobs


def run_all(jobs: list[Job], arguments: argparse.Namespace, keep: Path, results: Results) -> list[Job]:
    """Measure the jobs, each in a process of its own; the results on disk grow with each. Who died?"""
    died = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        started = {pool.submit(_process, job, arguments): job for job in jobs}
        for future in as_completed(started):
            job, complaint = started[future], future.result()
            if complaint:
                died.append(job)
                print(f"{job.row}, seed {job.seed}: {complaint}", flush=True)
                continue
            put(job, keep, results)
            results.write(ORDER, today())
            print(results.line(job.task, job.row, today()), flush=True)
    return died


def _process(job: Job, arguments: argparse.Namespace) -> str | None:
    """Measure a job; the end of its complaint if it died."""
    command = [sys.executable, __file__, str(arguments.data), "--device", arguments.device]
    command += ["--keep", str(arguments.keep), "--part", job.task, job.row, str(job.seed)]
    command += ["--slice"] if arguments.slice else []
    threads = str(max(1, (os.cpu_count() or 1) // arguments.jobs))
    own = {"OMP_NUM_THREADS": threads} if arguments.jobs > 1 else {}
    done = subprocess.run(command, env=os.environ | own, stderr=subprocess.PIPE, text=True)
    return done.stderr[-2000:] if done.returncode else None


def put(job: Job, keep: Path, results: Results) -> None:
    """Put the part of a job into the results, if there is one; a failure replaces no success."""
    if not job.part(keep).exists():
        return
    part: dict[str, Any] = json.loads(job.part(keep).read_text())
    if "failed" not in part or not results.has(job.task, job.row, job.seed):
        results.add(job.task, job.row, {key: part[key] for key in part if key not in ("task", "row")})


def compare(results: Results, keep: Path) -> None:
    """Paired differences of all rows that kept their points, over the seeds that are in the results.

    A row of other settings than today's says nothing about those it would be compared with.
    """
    settings, differences = today(), results.values.setdefault("differences", {})

    def points(row: str) -> list[Kept]:
        paths = [
            Job("test", row, run["seed"]).points(keep)
            for run in results.runs("test", row)
            if "seed" in run and "failed" not in run
        ]
        return [Kept.load(path) for path in paths if path.exists()]

    for ours, theirs in COMPARED:
        name, left, right = f"{ours} − {theirs}", points(ours), points(theirs)
        if results.stale("test", ours, settings) or results.stale("test", theirs, settings):
            differences.pop(name, None)
        elif left and right:
            differences[name] = paired_difference(left, right)
        elif left:  # measured anew, and what it was compared with is not at hand
            differences.pop(name, None)


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to measure; all if none is named")
    parser.add_argument("--only", choices=["ours", "peers"], help="of all rows, where none is named")
    parser.add_argument("--task", choices=[*TASKS, "all"], default="all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time; 0 only puts parts together")
    parser.add_argument("--keep", type=Path, default=cache_folder() / "benchmarks" / "accuracy")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="measure what was measured before, too")
    parser.add_argument("--slice", action="store_true")
    parser.add_argument("--list", action="store_true", help="name the rows, and end")
    parser.add_argument("--part", nargs=3, metavar=("TASK", "ROW", "SEED"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = arguments_of()
    if arguments.list:
        print("\n".join([*PEERS, *today(), *outfits.ANSWERS]))
        return
    name = arguments.data.resolve().name + ("-slice" if arguments.slice else "")
    keep = arguments.keep / name
    if arguments.part:
        task, row, seed = arguments.part
        run_part(Job(task, row, int(seed)), arguments, keep)
        return
    catalogue = Catalogue.read(arguments.data)
    results = Results(arguments.results / f"accuracy-{name}.json")
    jobs = wanted(arguments, catalogue)
    if arguments.again and arguments.jobs:
        for job in jobs:
            job.part(keep).unlink(missing_ok=True)
    else:
        for job in jobs:
            put(job, keep, results)
        jobs = [job for job in jobs if not results.has(job.task, job.row, job.seed)]
    died = run_all(jobs, arguments, keep, results) if arguments.jobs else []
    if not arguments.slice:
        results.values["leaks"] = leaks(catalogue)
    compare(results, keep)
    results.write(ORDER, today())
    if died:
        raise SystemExit(f"{len(died)} of {len(jobs)} runs failed: {', '.join(job.row for job in died)}")


if __name__ == "__main__":
    main()
