"""Finds a paper by the name that the command line has for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from toolscout.errors import BadRequest
from toolscout.papers import colt, query_generation, toolgen, toolweaver
from toolscout.papers.masstool import paper as masstool
from toolscout.papers.paper import Paper, Table

PAPERS: Mapping[str, Paper] = MappingProxyType(
    {one.key: one for one in (module.PAPER for module in (masstool, colt, query_generation, toolgen, toolweaver))}
)


def find_paper(name: str) -> Paper:
    """Return a paper. Raises BadRequest where there is none of this name."""
    if name not in PAPERS:
        raise BadRequest(f"there is no paper {name!r:.80}; name one of {', '.join(PAPERS)}, or see them with --list")
    return PAPERS[name]


def find_tables(paper: Paper, id: str = "") -> list[Table]:
    """Return the tables of a paper with this id, all parts of it, or the part that is named too; all tables for "".

    Raises BadRequest for none.
    """
    found = [table for table in paper.tables if id in ("", table.id, table.title)]
    if not found:
        known = ", ".join(dict.fromkeys(table.id for table in paper.tables))
        raise BadRequest(f"{paper.key} has no table {id!r:.80}; name one of {known}")
    return found
