"""Catalogues from tables and Hugging Face datasets."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mufin.data.convert import column_names_of, rows_of
from mufin.data.formats import safe_json
from mufin.data.formats.files import is_file
from mufin.data.importers.records import Columns, SourceTable
from mufin.data.importers.rows import ROWS_PER_BATCH, OpenTable, Row, arrow_rows, open_table
from mufin.data.importers.tabular import from_tables
from mufin.errors import CatalogueError, InputTypeError

if TYPE_CHECKING:
    from mufin.data.catalogue import Catalogue


def read_tables(make: type[Catalogue], paths: Sequence[Path], columns: Columns) -> Catalogue:
    """Read these files as a catalogue; each of several files is a split, named after the file."""
    tables = (
        SourceTable(
            path.stem if len(paths) > 1 else None,
            open_table(path, columns.wanted, columns.encoding),
            path.parent,
        )
        for path in paths
    )
    return from_tables(make, tables, columns)


def column_names(path: Path, encoding: str | None = None) -> list[str]:
    """Return the names of the columns of a file; of JSON lines, those of the first object."""
    with closing(open_table(path, encoding=encoding)) as table:
        return table.names or next((list(row.cells) for row in table.rows if row.cells), [])


def read_dataset(
    make: type[Catalogue], source: object, columns: Columns, format: str = "dataset"
) -> Catalogue:
    """Build a catalogue from a dataset, a mapping of splits to datasets, or a saved folder of either."""
    if isinstance(source, str | Path):
        tables = _read_folder(Path(source))
    elif isinstance(source, Mapping):
        tables = [_as_table(str(split), rows) for split, rows in source.items()]
    else:
        tables = [_as_table(None, source)]
    catalogue = from_tables(make, tables, columns)
    if catalogue.imported is not None:
        catalogue.imported.format = format
    return catalogue


def _read_folder(folder: Path) -> list[SourceTable]:
    if (folder / "dataset_dict.json").is_file():
        splits = _listed_names(folder / "dataset_dict.json", lambda value: value["splits"])
        return [_read_split(split, folder / split) for split in splits]
    return [_read_split(None, folder)]


def _listed_names(path: Path, select: Callable[[Any], Iterable[Any]]) -> list[str]:
    """Read names of files or folders from a JSON file of a saved dataset; they must be beside it."""
    try:
        names = [str(name) for name in select(safe_json.loads(path.read_bytes()))]
        if any(name in ("", "..") or name != Path(name).name or not name.isprintable() for name in names):
            raise ValueError("a name is not that of a file beside it")
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"not usable ({type(error).__name__}: {error}); save the dataset again with save_to_disk"
        raise CatalogueError(message, path) from None
    return names


def _read_split(split: str | None, folder: Path) -> SourceTable:
    state = folder / "state.json"
    if not is_file(state):
        message = "no state.json or dataset_dict.json; expected a folder written by save_to_disk"
        raise CatalogueError(message, folder)
    tables = [
        _read_arrow(folder / file)
        for file in _listed_names(
            state, lambda value: [Path(str(one["filename"])).name for one in value["_data_files"]]
        )
    ]
    if not tables:
        raise CatalogueError("the dataset is empty; save one with rows", folder)
    try:
        table = pa.concat_tables(tables)
        return SourceTable(split, _open(table, str(folder)), folder, _classes(_features(table)))
    except (pa.ArrowException, ValueError) as error:
        message = f"the Arrow files do not match ({error}); save the dataset again with save_to_disk"
        raise CatalogueError(message, folder) from None


def _read_arrow(path: Path) -> pa.Table:
    """Read and validate an Arrow file."""
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            table = reader.read_all()
        table.validate(full=True)
        safe_json.check_types(table.schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        message = f"not readable as Arrow ({error}); save the dataset again with save_to_disk"
        raise CatalogueError(message, path) from None
    return table


def _as_table(split: str | None, source: Any) -> SourceTable:
    """Return a dataset object, data frame or rows as a table; a dataset applies its own order."""
    if not isinstance(source, pa.Table) and (rows := rows_of(source)) is not None:
        return _open_frame(split, source, rows)
    if isinstance(source, pa.Table):
        table = source
    elif hasattr(source, "with_format") and hasattr(source, "__len__"):  # streaming datasets have no length
        table = source.with_format("arrow")[:]
    elif isinstance(source, Iterable):
        table = pa.Table.from_pylist(
            [{key: _as_arrow_value(value) for key, value in row.items()} for row in source]
        )
    else:
        found = type(source).__name__
        raise InputTypeError(
            f"{found} has no rows; expected a data frame, a dataset or a list of dictionaries"
        )
    features = getattr(source, "features", None)
    if not isinstance(features, Mapping):
        features = _features(table)
    return SourceTable(split, _open(table, split or "table"), None, _classes(features))


def _open_frame(split: str | None, frame: Any, rows: Iterable[dict[str, Any]]) -> SourceTable:
    """Open a data frame without turning it into an Arrow table: its cells may be of any type."""
    numbered = (
        Row(f"row {number}", {name: _as_arrow_value(cell) for name, cell in row.items()})
        for number, row in enumerate(rows, 1)
    )
    return SourceTable(split, OpenTable(split or "data frame", column_names_of(frame), numbered))


def _open(table: pa.Table, name: str) -> OpenTable:
    """Open a table in memory."""
    return OpenTable(name, table.column_names, arrow_rows(table.to_batches(ROWS_PER_BATCH)))


def _as_arrow_value(value: Any) -> Any:
    """Return a value that Arrow accepts: PIL images become PNG bytes, paths strings, arrays lists."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.ndarray) or hasattr(value, "to_list"):
        value = value.tolist() if isinstance(value, np.ndarray) else value.to_list()
    if isinstance(value, list | tuple):
        return [_as_arrow_value(one) for one in value]
    if not hasattr(value, "save") or not hasattr(value, "mode"):
        return value
    buffer = io.BytesIO()
    value.save(buffer, "PNG")
    return buffer.getvalue()


def _features(table: pa.Table) -> Mapping[str, Any]:
    """Return the features that the library stores in the schema of its files."""
    raw = (table.schema.metadata or {}).get(b"huggingface", b"{}")
    features: Any = safe_json.loads(raw)
    for name in ("info", "features"):
        features = features.get(name, {}) if isinstance(features, Mapping) else {}
    return features if isinstance(features, Mapping) else {}


def _classes(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return column → class names, for columns of class numbers or lists of them."""
    found = {}
    for column, feature in features.items():
        for one in (feature, _element(feature)):
            names = one.get("names") if isinstance(one, Mapping) else getattr(one, "names", None)
            if isinstance(names, list):
                found[column] = [str(name) for name in names]
    return found


def _element(feature: Any) -> Any:
    """Return the feature of the elements of a list feature."""
    if isinstance(feature, list) and feature:
        return feature[0]
    return feature.get("feature") if isinstance(feature, Mapping) else getattr(feature, "feature", None)
