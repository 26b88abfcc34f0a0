"""Hook of mkdocs: the site has the layout of the repository, so that relative links work in both."""

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PUBLISHED = (
    "*.md",
    "CITATION.cff",
    "LICENSE",
    "benchmarks/results/*.md",
    "configs/*",
    "deploy/*",
    "docs/**/*",
    "src/mufin/demo/README.md",
    "src/mufin/serve/page/fonts/LICENCE.txt",
)

DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


class Doctests(griffe.Extension):
    """Show the examples of docstrings as code."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the repository that the site shows."""
    root = Path(config.config_file_path).parent
    found = [path for pattern in PUBLISHED for path in sorted(root.glob(pattern)) if path.is_file()]
    ours = [
        File(str(path.relative_to(root)), str(root), config.site_dir, config.use_directory_urls)
        for path in found
    ]
    return Files([*(file for file in files if file.src_dir != config.docs_dir), *ours])
