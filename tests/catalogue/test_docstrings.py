"""Docstrings of the three common styles."""

from __future__ import annotations

import pytest

from toolscout.catalogue.docstrings import parse_docstring

GOOGLE = """Find things.

    Looks everywhere, twice.

    Args:
        query: What to find,
            on two lines.
        limit (int, optional): How many: at most.
        *rest: The rest.

    Returns:
        query: not this
    """
NUMPY = """Find things.

    Looks everywhere, twice.

    Parameters
    ----------
    query : str
        What to find,
        on two lines.
    limit, rest : int, optional
        How many: at most.

    Returns
    -------
    query
        not this
    """
REST = """Find things.

    Looks everywhere, twice.

    :param str query: What to find,
        on two lines.
    :param limit: How many: at most.
    :type limit: int
    :returns: not this
    :raises ValueError: never
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, REST])
def test_docstrings(docstring: str) -> None:
    description, parameters = parse_docstring(docstring)
    assert description == "Find things.\n\nLooks everywhere, twice."
    assert parameters["query"] == "What to find, on two lines."
    assert parameters["limit"] == "How many: at most."
    assert set(parameters) <= {"query", "limit", "rest"}


def test_docstrings_without_sections() -> None:
    assert parse_docstring(None) == ("", {})
    text = "Note: this is text.\nAnd: so is this.\n\n- a: list"
    assert parse_docstring(text) == (text, {})
