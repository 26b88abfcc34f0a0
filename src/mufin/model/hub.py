"""Share models: a model card in every folder, upload to the Hugging Face Hub, download into its cache."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mufin.config import Config
from mufin.errors import ModelError, UsageError
from mufin.files.folder import MANIFEST, check_parts
from mufin.model.info import read_config
from mufin.model.manifest import read_model_manifest
from mufin.retrieve.collection import URI

CARD = "README.md"
MARK = "<!-- Written by mufin at every save; remove this line to keep your own text. -->"
OFFLINE_WEIGHTS = {"text": "all-MiniLM-L6-v2", "images": "EfficientNet-Lite0"}  # as in docs/licences.md
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def write_card(folder: Path, staged: Path, manifest: dict[str, Any], config: Config) -> None:
    """Put the card into the folder, unless its owner has written another."""
    path = folder / CARD
    if path.exists() and MARK not in path.read_text("utf-8", "replace"):
        return
    (staged / CARD).write_text(card(manifest, config), "utf-8")
    (staged / CARD).replace(path)


def card(manifest: dict[str, Any], config: Config) -> str:
    """Return a model card; it depends on the model alone, so that equal models have equal cards."""
    reads = {"both": "text and images", "text": "text", "image": "images"}[config.modalities]
    kind = "image-classification" if config.modalities == "image" else "text-classification"
    used = {"text": config.text.model, "images": config.vision.model}
    if config.modalities == "text":
        del used["images"]
    encoders = [f"{what}: `{_public(name)}`" for what, name in used.items()]
    weights = [
        f"{OFFLINE_WEIGHTS[what]}: Apache-2.0"
        if name == "offline"
        else f"`{_public(name)}`: see its own card"
        for what, name in used.items()
    ]
    learnt = config.rank.beta == "learnt"
    calibration = (
        "Score and probability were fitted on training points held out from training."
        if learnt
        else f"Scores have β = {config.rank.beta}; probabilities were fitted on held-out points."
    )
    labels = "items of the catalogue" if manifest["own_items"] else "separate from the items"
    return f"""\
---
library_name: mufin
pipeline_tag: {kind}
tags:
- extreme-classification
- recommendation
- multi-modal
---
{MARK}

# A mufin model

- **Task**: rank {manifest["labels"]:,} labels for items made of {reads}.
- **Data**: the labels are {labels}; their texts and small images are part of this folder, and so are
  vectors of training points if the model has a memory. Ids of training points are not.
- **Encoders**: {", ".join(encoders)}; D = {config.embed.dim}.
- **Metrics**: measure them on your own held-out items with `mufin evaluate RUN CATALOGUE`.
- **Calibration**: {calibration} They hold for items like those of the training data.
- **Licences**: the encoders' weights keep their licences ({"; ".join(weights)}),
  and so do texts and images of the labels: state theirs here.
  mufin {manifest["library"]} is under Apache-2.0.

```python
from mufin import Item, load

model = load("user/model")  # or the path of this folder
model.recommend(Item(texts=["oak desk"], images=["desk.jpg"]), k=10)
```
"""


def _public(encoder: str) -> str:
    """Return the name of an encoder; of a folder, no more than its last part."""
    return encoder if REPOSITORY.fullmatch(encoder) else Path(encoder).name


def push_to_hub(
    folder: Path | str, repository: str, revision: str | None = None, private: bool = False
) -> str:
    """Upload a model folder to `user/model`, created if needed, and return the address of the commit.

    Only the card and the files that the manifest names are sent, after their hashes are checked. Parts of an
    earlier model are removed in the same commit. The token is that of `hf auth login` or HF_TOKEN.
    """
    folder = Path(folder)
    if not REPOSITORY.fullmatch(repository):
        raise UsageError(f"repository {repository!r}: expected user/model")
    manifest = read_model_manifest(folder)
    check_parts(folder, manifest)
    files = [MANIFEST, CARD, *(entry["file"] for entry in manifest["parts"].values())]
    stems = sorted({re.split(r"[./]", part)[0] for part in manifest["parts"]})
    with _explained(f"{repository} was not uploaded"):
        from huggingface_hub import HfApi

        api = HfApi(library_name="mufin")
        api.create_repo(repository, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository, folder_path=folder, revision=revision, allow_patterns=files,
            delete_patterns=[f"{stem}-*" for stem in stems], commit_message="Upload a mufin model",
        )  # fmt: skip
    return str(done.commit_url)


def local_folder(name: Path | str, revision: str | None = None) -> Path:
    """Return an existing folder unchanged, without the network; otherwise download the model `user/model`.

    Only what its manifest names is downloaded, all of one commit, into the cache of `huggingface_hub`.
    """
    path = Path(name)
    remote = isinstance(name, str) and REPOSITORY.fullmatch(name) and not path.parent.exists()
    if path.exists() or not remote:
        if revision is not None:
            raise UsageError(f"revision {revision!r} is for models of the hub, but {name} is a local folder")
        return path
    with _explained(f"{name} is not a local folder and was not downloaded"):
        from huggingface_hub import hf_hub_download, snapshot_download

        found = Path(hf_hub_download(str(name), MANIFEST, revision=revision, library_name="mufin")).parent
        parts = read_model_manifest(found)["parts"].values()
        files = [MANIFEST, CARD, *(entry["file"] for entry in parts)]
        folder = snapshot_download(str(name), revision=found.name, allow_patterns=files, library_name="mufin")
        return _without_foreign_address(Path(folder), str(name))


def _without_foreign_address(folder: Path, name: str) -> Path:
    """Return a downloaded folder; raise a ModelError if loading it would connect to where its author says."""
    settings = read_config(folder / read_model_manifest(folder)["parts"]["config.toml"]["file"]).retrieve
    if settings.search == "milvus" and not os.environ.get(URI):
        raise ModelError(f"{name} searches in Milvus at {settings.uri}; set {URI} to a server that you trust")
    return folder


@contextmanager
def _explained(outcome: str) -> Iterator[None]:
    """Turn the errors of the hub into a ModelError of one sentence that begins with the outcome."""
    try:
        yield
    except (ModelError, UsageError):
        raise
    except Exception as error:  # of the hub, of HTTP and of the file system
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise ModelError(f"{outcome}: {reason} ({type(error).__name__})") from None
