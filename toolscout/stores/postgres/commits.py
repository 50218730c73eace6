"""Follows the commits of all processes to one schema, without ever keeping a caller waiting."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg import errors

from toolscout.stores.postgres.connection import Connection

POLL_SECONDS = 0.5  # what a lost notification may cost
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_LOG = logging.getLogger(__name__)


class Commits:
    """The number of the newest commit that is known here.

    Each transaction that writes counts `commits.number` up as its last step, so numbers commit in order: whoever knows
    a number sees all commits up to it. A thread with a connection of its own hears of them by LISTEN, and asks every
    half second besides, since a notification may be lost. While the server is away it tries to connect again, and the
    number stays.
    """

    def __init__(self, connect: Callable[[], Connection], channel: str, number: int) -> None:
        """Begin to follow. `connect` opens the connection of the thread."""
        self.number = number
        self.connected = True
        self._connect = connect
        self._channel = channel
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        threading.Thread(target=self._follow, name="toolscout-commits", daemon=True).start()

    def saw(self, number: int) -> None:
        """Note that this commit has happened."""
        with self._lock:
            self.number = max(self.number, number)

    def stop(self) -> None:
        """Let the thread end within half a second."""
        self._stopped.set()

    def _follow(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                with self._connect() as db:
                    self._listen(db)
            except (psycopg.Error, OSError) as error:
                if self.connected and not self._stopped.is_set():
                    _LOG.info("lost the connection that follows commits: %s", error)
                pause = _FIRST_PAUSE if self.connected else min(2 * pause, _LONGEST_PAUSE)
                self.connected = False
                self._stopped.wait(pause)

    def _listen(self, db: Connection) -> None:
        db.patience = 10 * POLL_SECONDS
        with suppress(errors.ReadOnlySqlTransaction):  # a standby notifies nobody, and is asked every half second
            db.execute(f'LISTEN "{self._channel}"')
        while not self._stopped.is_set():
            row = db.execute("SELECT number FROM commits").fetchone()
            self.saw(int(row[0]) if row else 0)
            self.connected = True
            asked = time.monotonic()
            while (left := POLL_SECONDS - (time.monotonic() - asked)) > 0:
                for notice in db.notifies(timeout=left):
                    self.saw(int(notice.payload))
