"""The command `log export`: write recorded requests and the tools they used as a dataset."""

from __future__ import annotations

import typer

from toolscout.cli import output
from toolscout.cli.common import OutOption, StoreOption, open_store, plural

_MAX_NAMES = 5  # ids of removed tools named in the note


def export(ctx: typer.Context, out: OutOption, store: StoreOption = None) -> None:
    """Write the recorded requests and the tools they used as a BEIR folder with one split, "log".

    Equal requests become one, with the tools that at least half of them used. Then: toolscout split FOLDER.
    """
    from toolscout.data import feedback_export

    with open_store(ctx, store) as opened:
        made = feedback_export.export(out.resolve().name, opened.tools(), (example for _, example in opened.feedback()))
    made.dataset.save(out)
    labelled, requests = len(made.dataset.split(feedback_export.SPLIT)), len(made.dataset.requests)
    output.write(
        f"{plural(made.examples, 'example')} of {plural(requests, 'request')}: {labelled:,} with tools, "
        f"{requests - labelled:,} without; {plural(len(made.dataset.tools), 'tool')}"
    )
    if made.gone:
        shown = ", ".join(sorted(made.gone)[:_MAX_NAMES]) + (" …" if len(made.gone) > _MAX_NAMES else "")
        output.note(
            f"left out, no longer in the catalogue: {plural(len(made.gone), 'tool')} that requests named: {shown}"
        )
    if made.blank:
        output.note(f"left out: {plural(made.blank, 'example')} without any text")
    output.note(f"one split, {feedback_export.SPLIT}, in {out}", label="written")
