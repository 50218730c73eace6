"""Findings as SARIF 2.1.0, the form in which code hosts and CI systems take the results of scanners."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from toolscout.catalogue.poisoning import EXPLANATIONS, Finding

_LEVELS = MappingProxyType({"low": "note", "medium": "warning", "high": "error"})
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def document(findings: Sequence[tuple[str, Finding]], version: str) -> dict[str, Any]:
    """Return the SARIF document of findings, each with the source that it is of; `version`: of toolscout."""
    names = list(EXPLANATIONS)
    rules = [{"id": name, "shortDescription": {"text": text}} for name, text in EXPLANATIONS.items()]
    driver = {"name": "toolscout", "version": version, "rules": rules}
    results = [
        {
            "ruleId": finding.rule,
            "ruleIndex": names.index(finding.rule),
            "level": _LEVELS[finding.level],
            "message": {"text": f"{finding.tool_id}, {finding.where}: {EXPLANATIONS[finding.rule]}: {finding.excerpt}"},
            "locations": [
                {
                    "physicalLocation": {"artifactLocation": {"uri": _uri(source)}},
                    "logicalLocations": [{"fullyQualifiedName": f"{finding.tool_id}#{finding.where}"}],
                }
            ],
        }
        for source, finding in findings
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _uri(source: str) -> str:
    """Return a source, such as a path or a command line, as a URI reference."""
    return quote(source, safe="/:._-~@")
