"""Parts of an input, and the folder that they become; without Ray."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mufin import Mufin
from mufin.data.formats.parquet import batches, open_parquet
from mufin.distributed.parts import DONE, OutputFolder, input_files, parts_of
from mufin.errors import UsageError
from mufin.model.blocks import Source
from mufin.model.bulk import Summary


@pytest.fixture
def items(tmp_path: Path) -> Path:
    """A folder with two files of 2,500 and 10 rows, without ids."""
    folder = tmp_path / "items"
    folder.mkdir()
    pq.write_table(
        pa.table({"title": [f"red {row}" for row in range(2500)]}), folder / "a.parquet", row_group_size=99
    )
    pq.write_table(pa.table({"title": ["blue"] * 10}), folder / "b.parquet")
    return folder


@pytest.mark.parametrize(
    "rows", [range(0), range(1), range(98, 99), range(99, 100), range(150, 1174), range(2400, 2500)]
)
def test_some_rows_of_a_file(items: Path, rows: range) -> None:
    file = open_parquet(items / "a.parquet")
    found = [title for batch in batches(file, 64, ["title"], rows) for title in batch["title"].to_pylist()]
    assert found == [f"red {row}" for row in rows]


def test_parts_have_all_rows_in_order(items: Path, tiny_model: Mufin) -> None:
    parts = parts_of(input_files(items))
    assert [(part.source.name, len(part.span.rows)) for part in parts] == [
        ("a.parquet", 1024), ("a.parquet", 1024), ("a.parquet", 452), ("b.parquet", 10),
    ]  # fmt: skip
    ids = [
        id
        for part in parts
        for block in Source.of(part.source, tiny_model, span=part.span).blocks
        for id in block.items.ids.to_pylist()
    ]
    assert ids == [f"row-{row}" for row in range(1, 2511)]


def test_a_folder_knows_what_is_finished(items: Path, tmp_path: Path) -> None:
    parts, out, asked = parts_of(input_files(items)), tmp_path / "out", {"labels": {"k": 3}}
    with OutputFolder.opened(out, asked, overwrite=False) as folder:
        for part in parts[:3]:
            pq.write_table(pa.table({"id": ["x"] * len(part.span.rows)}), out / part.name)
            folder.note(part, Summary(len(part.span.rows), 1, ["a bad row"]))
        (out / ".mufin-0123456789abcdef.tmp").touch()
    assert not list(out.glob(".*.tmp"))
    (out / parts[1].name).write_bytes(b"damaged")
    (out / parts[2].name).unlink()
    with (out / DONE).open("a") as file:
        file.write('{"part": "part-0000')  # cut short
    with OutputFolder.opened(out, asked, overwrite=False) as folder:
        assert folder.open_parts(parts) == parts[1:]
        assert folder.summary() == Summary(1024, 1, ["a bad row"])
        pq.write_table(pa.table({"id": ["x"] * 10}), out / parts[3].name)
        folder.note(parts[3], Summary(10, 0, []))
    with OutputFolder.opened(out, asked, overwrite=False) as folder:
        assert folder.open_parts(parts) == parts[1:3]
    other = {"labels": {"k": 4}}
    expected = r"labels\.k was 3 and is 4; choose another folder"
    with pytest.raises(UsageError, match=expected), OutputFolder.opened(out, other, overwrite=False):
        pass
    with OutputFolder.opened(out, other, overwrite=True) as folder:
        assert folder.open_parts(parts) == parts
    assert not list(out.glob("part-*"))
    (out / "_mufin.json").write_text(json.dumps([]))
    with pytest.raises(UsageError, match="is damaged"), OutputFolder.opened(out, asked, overwrite=False):
        pass
