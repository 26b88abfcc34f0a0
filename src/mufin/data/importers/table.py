"""Catalogues from tables and Hugging Face datasets."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from mufin.data.check_report import BadLines
from mufin.data.formats import jsonl, parquet, safe_json
from mufin.data.formats.files import is_file
from mufin.data.formats.schema import STRING
from mufin.data.importers.tabular import Columns, SourceTable, from_tables
from mufin.errors import CatalogueError, UsageError

if TYPE_CHECKING:
    from mufin.data.catalogue import Catalogue

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl")
HEADER_BLOCK = 1 << 20  # bytes read to find the column names


def read_tables(make: type[Catalogue], paths: Sequence[Path], columns: Columns) -> Catalogue:
    """Read these files as a catalogue; each of several files is a split, named after the file."""
    bad_lines = BadLines()
    tables = [
        SourceTable(
            path.stem if len(paths) > 1 else None,
            _read_table(path, columns, bad_lines),
            path.parent,
            path=path,
        )
        for path in paths
    ]
    catalogue = from_tables(make, tables, columns)
    if catalogue.imported is not None:
        catalogue.imported.counts["bad lines"] = bad_lines.count
        catalogue.imported.problems = [*bad_lines.problems(), *catalogue.imported.problems]
    return catalogue


def _read_table(path: Path, columns: Columns, bad_lines: BadLines) -> pa.Table:
    """Read the wanted columns of a file."""
    if not path.is_file():
        raise CatalogueError(f"no such file; expected one of {', '.join(SUFFIXES)}", path)
    match path.suffix:
        case ".parquet":
            columns.check(parquet.columns(path), path)
            return parquet.read_columns(path, columns.wanted)
        case ".csv" | ".tsv":
            return _read_csv(path, columns, bad_lines)
        case ".jsonl":
            table = jsonl.read_any(path)
            columns.check(table.column_names, path)
            return table.select(columns.wanted)
        case _:
            raise CatalogueError(f"unknown format; expected one of {', '.join(SUFFIXES)}", path)


def _read_csv(path: Path, columns: Columns, bad_lines: BadLines) -> pa.Table:
    """Read a CSV or TSV file; count and skip rows with too many or too few cells."""

    def count_and_skip(row: Any) -> str:
        message = f"{row.actual_columns} cells, expected {row.expected_columns}; row skipped"
        bad_lines.add(path.name, message, row.number)
        return "skip"

    def parsing(bad_row: Callable[[Any], str]) -> pa_csv.ParseOptions:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        return pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=bad_row)

    try:
        with path.open("rb") as file:
            options = pa_csv.ReadOptions(use_threads=False, block_size=HEADER_BLOCK)
            names = pa_csv.open_csv(file, options, parsing(lambda row: "skip")).schema.names
        columns.check(names, path)
        types = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(columns.wanted, STRING),
            include_columns=columns.wanted,
            strings_can_be_null=True,
        )
        options = pa_csv.ReadOptions(use_threads=False)
        return pa_csv.read_csv(path, options, parsing(count_and_skip), types)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> CatalogueError:
    """Return the error for a CSV file that Arrow refuses; name the first line that is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as wrong:
                message = f"byte {wrong.start + 1} of the line is not UTF-8; save the file as UTF-8"
                return CatalogueError(message, path, number)
    return CatalogueError(f"not readable as a table ({error}); save it as UTF-8 CSV", path)


def read_dataset(make: type[Catalogue], source: object, columns: Columns) -> Catalogue:
    """Build a catalogue from a dataset, a mapping of splits to datasets, or a saved folder of either."""
    if isinstance(source, str | Path):
        tables = _read_folder(Path(source))
    elif isinstance(source, Mapping):
        tables = [_as_table(str(split), rows) for split, rows in source.items()]
    else:
        tables = [_as_table(None, source)]
    catalogue = from_tables(make, tables, columns)
    if catalogue.imported is not None:
        catalogue.imported.format = "dataset"
    return catalogue


def _read_folder(folder: Path) -> list[SourceTable]:
    if (folder / "dataset_dict.json").is_file():
        splits = _listed_names(folder / "dataset_dict.json", lambda value: value["splits"])
        return [_read_split(split, folder / split) for split in splits]
    return [_read_split(None, folder)]


def _listed_names(path: Path, select: Callable[[Any], Iterable[Any]]) -> list[str]:
    """Read names of files or folders from a JSON file of a saved dataset; they must lie beside it."""
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
        return SourceTable(split, table, folder, _classes(_features(table)))
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
    """Return a dataset object or rows as a table; a dataset applies its own order and selection."""
    if isinstance(source, pa.Table):
        table = source
    elif hasattr(source, "with_format") and hasattr(source, "__len__"):  # streaming datasets have no length
        table = source.with_format("arrow")[:]
    elif isinstance(source, Iterable):
        table = pa.Table.from_pylist(
            [{key: _as_arrow_value(value) for key, value in row.items()} for row in source]
        )
    else:
        raise UsageError(f"{type(source).__name__} has no rows; expected a dataset or dictionaries")
    features = getattr(source, "features", None)
    if not isinstance(features, Mapping):
        features = _features(table)
    return SourceTable(split, table, None, _classes(features))


def _as_arrow_value(value: Any) -> Any:
    """Return a value that Arrow accepts: PIL images become PNG bytes."""
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
