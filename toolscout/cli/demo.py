"""The command `demo`: index the bundled catalogue and answer six requests."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from toolscout.cli import output
from toolscout.cli.common import plural
from toolscout.cli.search import print_answer
from toolscout.search.score_share import EXPLANATION

BUNDLED = Path(__file__).parent.parent / "bundled"
REQUESTS = (
    ("one tool", "I left my bank card in a taxi, block it until I get it back"),
    (
        "three tools of different namespaces",
        "refund charge ch_881, reply to the customer's ticket, and log the call in the CRM",
    ),
    ("a tool's exact name", "rerun_workflow on acme/web, run 8812"),
    ("words in camelCase", "pullRequests of acme/web on GitHub"),
    ("misspelt words", "convret 200 dolars to euors"),
    ("nothing fits", "water the tomatoes on my balcony"),
)


def demo() -> None:
    """Index the bundled catalogue and answer six requests.

    Takes seconds and leaves nothing behind.
    """
    from toolscout.scout import Scout

    console = output.stdout()
    with tempfile.TemporaryDirectory() as folder, Scout.open(Path(folder) / "demo.db") as scout:
        start = time.perf_counter()
        with output.progress() as report:
            added = scout.add(BUNDLED, progress=report)
        spent = time.perf_counter() - start
        tools = plural(added.report.added, "tool")
        console.print(f"{tools} indexed, {added.embedded:,} embedded, in {spent:.1f} s")
        if scout.words_only():
            console.print("no encoder is installed: words alone answer, and not as well; run: toolscout doctor")
        console.print(Text(EXPLANATION, "dim"))
        for number, (about, request) in enumerate(REQUESTS, 1):
            start = time.perf_counter()
            answer = scout.search(request)
            spent = 1000 * (time.perf_counter() - start)
            console.print()
            console.print(Text.assemble((f"{number}. {about}", "bold cyan"), f" · {spent:.0f} ms"))
            console.print(Text(f"“{request}”", "italic"))
            print_answer(console, scout, replace(answer, notes=()))
