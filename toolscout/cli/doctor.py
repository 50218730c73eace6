"""The command `doctor`: check what is installed, and say how to get what is missing."""

from __future__ import annotations

import importlib
import os
import platform
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer
from rich.text import Text

from toolscout.cli import output
from toolscout.cli.common import NONE, StoreOption, plural, store_place
from toolscout.errors import MissingEncoder, ToolscoutError

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?[^;]*(?:;.*extra\s*==\s*[\"']([^\"']+)[\"'])?")
_MODULES = {"PyYAML": "yaml", "google-re2": "re2"}
_STYLES = {"ok": "green", "missing": "yellow", "broken": "bold red"}
_PROBE = "hello"
_GET_ENCODER = ("unset TOOLSCOUT_ENCODER", "pip install --force-reinstall toolscout")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: the part, its state, what was found, and the commands that would help."""

    part: str
    state: Literal["ok", "missing", "broken"]
    about: str
    remedy: tuple[str, ...] = ()


def doctor(ctx: typer.Context, store: StoreOption = None) -> None:
    """Check the installation, the encoder and the catalogue, and say how to get what is missing.

    Exit code 0 where requests can be answered, if only from words; 1 where something is broken.
    """
    made = output.table("part", "state", "what was found", grow="what was found")
    remedies: list[str] = []
    broken = False
    for finding in _findings(store_place(ctx, store)):
        made.add_row(finding.part, output.shown(finding.state, _STYLES[finding.state]), output.shown(finding.about))
        remedies += [f"{finding.part}: {line}" for line in finding.remedy]
        broken |= finding.state == "broken"
    console = output.stdout()
    console.print(made)
    console.print()
    if remedies:
        console.print("To do:")
        for line in remedies:
            console.print(Text("  ") + output.shown(line), soft_wrap=True)
    console.print("Something is broken." if broken else "Requests can be answered.")
    if broken:
        raise typer.Exit(NONE)


def _findings(store: str) -> Iterator[Finding]:
    from toolscout import __version__

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Finding("cores", "ok", str(cores))
    yield Finding("sqlite", "ok", sqlite3.sqlite_version)
    yield Finding("toolscout", "ok", f"{__version__} in {Path(__file__).parent.parent}")
    yield from _packages()
    finding, fingerprint = _encoder()
    yield finding
    yield _store(store, fingerprint)


def _packages() -> Iterator[Finding]:
    """Yield a finding for each required package and each extra that the package's metadata names."""
    from importlib import metadata

    try:
        required = metadata.requires("toolscout") or []
    except metadata.PackageNotFoundError:
        yield Finding(
            "package", "missing", "toolscout runs from its source without being installed", ("pip install .",)
        )
        return
    extras: dict[str, list[str]] = {}
    for name, inner, extra in (match.groups() for match in map(_REQUIREMENT.match, required) if match):
        if not extra:
            yield _package(name)
        elif name == "toolscout":
            extras.setdefault(extra, []).extend(n for part in inner.split(",") for n in extras.get(part.strip(), []))
        else:
            extras.setdefault(extra, []).append(name)
    for extra, names in extras.items():
        absent = [name for name in names if _version(name) is None]
        if not absent:
            yield Finding(f"extra {extra}", "ok", ", ".join(f"{name} {_version(name)}" for name in names))
        elif extra != "dev":
            line = f"pip install 'toolscout[{extra}]'"
            yield Finding(f"extra {extra}", "missing", f"optional; not installed: {', '.join(absent)}", (line,))


def _package(name: str) -> Finding:
    version = _version(name)
    try:
        importlib.import_module(_MODULES.get(name, name))
    except ImportError as error:
        return Finding(
            name, "broken", f"{version or 'not installed'}: {error}", (f"pip install --force-reinstall {name}",)
        )
    return Finding(name, "ok", version or "")


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _encoder() -> tuple[Finding, str]:
    """Return a finding about the encoder, and its fingerprint; "" where it does not work."""
    try:
        from toolscout.models.encoders.onnx_encoder import default_folder
        from toolscout.models.encoders.opening import open_encoder
    except ImportError as error:
        return Finding("encoder", "broken", f"cannot be tried: {error}"), ""
    try:
        encoder = open_encoder()
        encoder.encode_request(_PROBE)
    except MissingEncoder:
        return Finding("encoder", "missing", f"none in {default_folder()}: words alone answer", _GET_ENCODER), ""
    except ToolscoutError as error:
        return Finding("encoder", "broken", str(error), _GET_ENCODER), ""
    place = f" in {encoder.folder}" if encoder.folder else ""
    about = f"{encoder.details().get('name', 'an encoder')}{place}, fingerprint {encoder.fingerprint}"
    return Finding("encoder", "ok", about), encoder.fingerprint


def _store(place: str, fingerprint: str) -> Finding:
    from toolscout.stores import may_exist, open_store, shown

    if not may_exist(place):
        return Finding("catalogue", "missing", f"there is none at {place}", ("toolscout add SOURCE",))
    try:
        with open_store(place) as store:
            store.check()
            namespaces, version = store.namespaces(), store.version()
            waiting = len(store.missing_vectors(fingerprint)) if fingerprint else 0
    except ToolscoutError as error:
        return Finding("catalogue", "broken", str(error))
    tools = plural(sum(namespaces.values()), "tool")
    about = f"{shown(place)}: version {version}, {tools} in {plural(len(namespaces), 'namespace')}, undamaged"
    if not fingerprint:
        return Finding("catalogue", "ok", f"{about}; all found by words only")
    remedy = ("toolscout embed",) if waiting else ()
    return Finding("catalogue", "ok", f"{about}; {waiting:,} not embedded yet", remedy)
