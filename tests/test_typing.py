"""A user's program passes `mypy --strict` without plugins, and mistakes in it are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
CACHE = SOURCE.parent / ".mypy_cache" / "users"  # kept: without it, mypy takes 15 s

USER = """
from pathlib import Path

from mufin import Catalogue, Config, Item, fit, load

shop = Catalogue.from_table("products.csv", text="title", labels="tags")
fit(shop, Config.preset("fast").override(["seed=1"]), out="runs/shop")
model = load(Path("runs/shop"))
best = model.recommend("oak desk", k=3)[0]
print(best.label, best.probability + 1, best.parts["memory"], best.text.upper())
for hits in model.recommend(["oak desk", Path("desk.jpg"), {"title": "lamp"}], min_probability=0.1):
    print([hit.label for hit in hits], hits.to_frame())
model.add_labels([Item("new", texts=["walnut desk"])])
print(model.explain(Item(texts=["desk"]), "new").rank, model.embed("desk").vector().shape)
"""
MISTAKES = """
from mufin import Item, load

model = load("runs/shop")
reveal_type(model.recommend("oak desk"))
reveal_type(model.recommend(["oak desk"]))
model.recommend("oak desk")[0].probabilty
model.recommend(5)
Item(texts=[1])
"""


def test_a_users_program_is_typed(tmp_path: Path) -> None:
    assert (SOURCE / "mufin" / "py.typed").is_file()
    for name, code in (("user.py", USER), ("mistakes.py", MISTAKES)):
        (tmp_path / name).write_text(code, "utf-8")
    # As for an installed package, errors inside mufin are not the user's.
    options = ["--strict", "--follow-imports=silent", f"--cache-dir={CACHE}", "--no-pretty"]
    # No public name has a type of transformers, which would take most of the time.
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-transformers.*]\nfollow_imports = skip\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "user.py", "mistakes.py"],
        cwd=tmp_path, env=os.environ | {"MYPYPATH": str(SOURCE)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith(("user.py", "mistakes.py"))]
    said = [(int(line.split(":")[1]), line) for line in found if line.startswith("mistakes.py")]
    assert [line for line in found if line.startswith("user.py")] == [], done.stderr
    assert re.search('type is "mufin.model.hits.Hits"', dict(said)[5])
    assert re.search('type is "mufin.model.hits.HitLists"', dict(said)[6])
    assert {7, 8, 9} <= {line for line, _ in said}
