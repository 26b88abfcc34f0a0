"""The public names, what importing them costs, and the one direction in which imports point."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mufin
from mufin import Catalogue, Config, Mufin, fit, save
from mufin.version import VERSION

SOURCE = Path(mufin.__file__).parent

# A module may import its own stage and those before it.
STAGES = [
    ["runtime", "errors", "version", "progress", "presets", "config_checks", "settings", "config"],
    ["config_docs", "demo"],
    ["files"],
    ["data"],
    ["encode"],
    ["retrieve"],
    ["rank"],
    ["signals"],
    ["model"],
    ["train"],
    ["distributed"],
    ["evaluate", "serve", "client", "sklearn"],
    ["commands"],
    ["cli"],
    ["__main__"],
]
PLACE = {name: place for place, names in enumerate(STAGES) for name in names}
BASE = {*STAGES[0], *STAGES[1]}


def test_public_names_are_what_all_says() -> None:
    for name in mufin.__all__:
        assert getattr(mufin, name) is not None
    assert sorted({*mufin.__all__} - {"__version__"}) == sorted(mufin._MODULES)
    assert dir(mufin) == sorted(mufin.__all__)
    assert mufin.__version__ == VERSION
    namespace: dict[str, object] = {}
    exec("from mufin import *", namespace)
    assert {*mufin.__all__} <= namespace.keys()
    assert {name for name in namespace if not name.startswith("__")} <= {*mufin.__all__}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        _ = mufin.fitt


def loaded_by(code: str, *arguments: str) -> set[str]:
    """The modules that a program has imported when it ends."""
    code += "\nimport sys; print(*sys.modules, file=sys.stderr)"
    run = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return {*done.stderr.split()}


def test_importing_mufin_does_not_load_torch() -> None:
    code = "import mufin; from mufin import Config, Item, MufinError; Config.preset('best'); dir(mufin)"
    assert not loaded_by(code) & {"torch", "transformers", "faiss"}
    assert not loaded_by("import mufin") & {"torch", "transformers", "numpy", "pydantic", "pyarrow"}


def test_help_and_info_do_not_load_torch(tiny_model: Mufin, tmp_path: Path) -> None:
    save(tiny_model, tmp_path)
    code = "import sys; from mufin.cli import main; assert main(sys.argv[1:]) == 0"
    for command in (
        ["--help"],
        ["info", str(tmp_path)],
        ["info", str(tmp_path), "--json"],
        ["cache", "info"],
    ):
        assert not loaded_by(code, *command) & {"torch", "transformers", "scipy", "faiss"}


def test_recommend_does_without_transformers(shop: Catalogue, tiny_config: Config, tmp_path: Path) -> None:
    """Of a BERT model; nor does it load what takes torch seconds to import."""
    fit(shop, tiny_config.override(["modalities=text"]), out=tmp_path, quiet=True)
    code = "import sys; from mufin.cli import main; assert main(sys.argv[1:]) == 0"
    found = loaded_by(code, "recommend", str(tmp_path), "red circle")
    assert "torch" in found
    assert not found & {"transformers", "sympy", "torch._dynamo", "faiss", "pyarrow.dataset", "sklearn"}


def test_the_version_is_known_without_an_installed_package() -> None:
    """As in a source tree on the path: a finished training must not fail for want of metadata."""
    code = (
        "import importlib.metadata as metadata\n"
        "real = metadata.distribution\n"
        "def without(name):\n"
        "    if name == 'mufin': raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.distribution = without\n"
        "import mufin.model.store, mufin.cli, mufin.serve.app, mufin.data.download.download\n"
        "print(mufin.model.store.VERSION, mufin.cli.main(['--version']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["mufin", VERSION, VERSION, "0"]


def stage(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The stages of mufin that a file imports anywhere, but for typing."""
    found = set()
    tree = ast.parse(path.read_text("utf-8"))
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            assert node.level == 0, f"{path}: relative import"
            if parts[0] == "mufin":
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("mufin.")}
    return found


@pytest.mark.parametrize(
    "path",
    [p for p in sorted(SOURCE.rglob("*.py")) if p != SOURCE / "__init__.py"],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_imports_point_one_way(path: Path) -> None:
    own = stage(path)
    assert own in PLACE, f"{own} has no place among the stages; give it one"
    # public names (`from mufin import Item`) would hide the direction, so nothing inside uses them
    wrong = {
        name
        for name in imports(path) - {own}
        if name not in PLACE or PLACE[name] > PLACE[own] or (PLACE[name] == PLACE[own] and not is_base(own))
    }
    if own in ("commands", "cli", "__main__"):
        wrong.discard("__version__")
    assert not wrong, f"{path.relative_to(SOURCE)} must not import {sorted(wrong)}"


def is_base(name: str) -> bool:
    return name in BASE
