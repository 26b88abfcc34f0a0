"""Hugging Face datasets: an object of that library, anything that gives rows, or a folder of `save_to_disk`.

The library itself is not needed: a saved folder is Arrow files with a `state.json`, or several such folders
with a `dataset_dict.json`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from mufin.data import safe_json
from mufin.data.catalogue import Catalogue
from mufin.data.formats.files import is_file
from mufin.data.importers.tabular import Columns, SourceTable, from_tables
from mufin.errors import CatalogueError, UsageError


def read_dataset(source: object, columns: Columns) -> Catalogue:
    """The catalogue in a dataset, a mapping of splits to datasets, or a folder of either."""
    if isinstance(source, str | Path):
        tables = _folder(Path(source))
    elif isinstance(source, Mapping):
        tables = [_named(str(name), one) for name, one in source.items()]
    else:
        tables = [_named(None, source)]
    catalogue = from_tables(tables, columns)
    if catalogue.imported is not None:
        catalogue.imported.format = "dataset"
    return catalogue


def _folder(folder: Path) -> list[SourceTable]:
    if (folder / "dataset_dict.json").is_file():
        names = _names(folder / "dataset_dict.json", lambda value: value["splits"])
        return [_saved(name, folder / name) for name in names]
    return [_saved(None, folder)]


def _names(path: Path, inside: Callable[[Any], Iterable[Any]]) -> list[str]:
    """The names of files or folders in a JSON file of a saved dataset; each lies beside that file."""
    try:
        names = [str(name) for name in inside(safe_json.loads(path.read_bytes()))]
        if any(name in ("", "..") or name != Path(name).name or not name.isprintable() for name in names):
            raise ValueError("a name that is none of a file beside it")
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = (
            f"cannot be used ({type(error).__name__}: {error}); save the dataset again with save_to_disk"
        )
        raise CatalogueError(message, path) from None
    return names


def _saved(name: str | None, folder: Path) -> SourceTable:
    state = folder / "state.json"
    if not is_file(state):
        message = "no dataset here; expected the folder of save_to_disk, with state.json or dataset_dict.json"
        raise CatalogueError(message, folder)
    tables = [
        _arrow(folder / file)
        for file in _names(
            state, lambda value: [Path(str(one["filename"])).name for one in value["_data_files"]]
        )
    ]
    if not tables:
        raise CatalogueError("no rows in it", folder)
    try:
        table = pa.concat_tables(tables)
        return SourceTable(name, table, folder, _classes(_features(table)))
    except (pa.ArrowException, ValueError) as error:
        message = f"its files do not fit together ({error}); save the dataset again with save_to_disk"
        raise CatalogueError(message, folder) from None


def _arrow(path: Path) -> pa.Table:
    """The table of a file, with offsets and texts that were looked at."""
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            table = reader.read_all()
        table.validate(full=True)
        safe_json.check_types(table.schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        message = f"not readable as Arrow ({error}); save the dataset again with save_to_disk"
        raise CatalogueError(message, path) from None
    return table


def _named(name: str | None, source: Any) -> SourceTable:
    """A dataset object as a table, in the order and choice of rows it shows."""
    if isinstance(source, pa.Table):
        table = source
    elif hasattr(source, "with_format") and hasattr(source, "__len__"):  # a streamed one has no length
        table = source.with_format("arrow")[:]
    elif isinstance(source, Iterable):
        table = pa.Table.from_pylist([{key: _plain(value) for key, value in row.items()} for row in source])
    else:
        raise UsageError(f"{type(source).__name__} gives no rows; expected a dataset or rows as dictionaries")
    features = getattr(source, "features", None)
    if not isinstance(features, Mapping):
        features = _features(table)
    return SourceTable(name, table, None, _classes(features))


def _plain(value: Any) -> Any:
    """A value that Arrow takes: pictures as bytes."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if not hasattr(value, "save") or not hasattr(value, "mode"):
        return value
    buffer = io.BytesIO()
    value.save(buffer, "PNG")
    return buffer.getvalue()


def _features(table: pa.Table) -> Mapping[str, Any]:
    """The features that the library writes into the schema of its files."""
    raw = (table.schema.metadata or {}).get(b"huggingface", b"{}")
    features: Any = safe_json.loads(raw)
    for name in ("info", "features"):
        features = features.get(name, {}) if isinstance(features, Mapping) else {}
    return features if isinstance(features, Mapping) else {}


def _classes(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """column → names, for columns of class numbers or lists of them."""
    found = {}
    for column, feature in features.items():
        for inner in (feature, _inner(feature)):
            names = inner.get("names") if isinstance(inner, Mapping) else getattr(inner, "names", None)
            if isinstance(names, list):
                found[column] = [str(name) for name in names]
    return found


def _inner(feature: Any) -> Any:
    """What a list feature is a list of."""
    if isinstance(feature, list) and feature:
        return feature[0]
    return feature.get("feature") if isinstance(feature, Mapping) else getattr(feature, "feature", None)
