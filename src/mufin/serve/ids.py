"""Ids in addresses: any text, with slashes and line breaks."""

from __future__ import annotations

from starlette.convertors import PathConvertor, register_url_convertor


class Id(PathConvertor):
    """Like Starlette's `path`, whose dot does not match line breaks."""

    regex = r"[\s\S]*"


register_url_convertor("id", Id())
ANY_ID = "/{id:id}"  # the part of a route; taken from here, it is known to Starlette
