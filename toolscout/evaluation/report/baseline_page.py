"""A comparison with the baseline as a page of HTML, whole in itself."""

from __future__ import annotations

from html import escape

from toolscout.evaluation.baseline import BaselineComparison, Side

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid #ddd }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
.right { color: #176b34; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  body { background: #161616; color: #e8e8e8 } th, td { border-color: #3a3a3a } .right { color: #6bd58f }
}
"""


def figures(found: BaselineComparison) -> list[tuple[str, str, str]]:
    """Return the figures of both: what is measured, of the baseline, and of toolscout."""
    sides = (found.baseline, found.ours)

    def both(name: str, values: list[str]) -> tuple[str, str, str]:
        return name, values[0], values[1]

    return [
        both(f"recall@{found.k}", [f"{found.recall(side):.3f}" for side in sides]),
        both("requests with all their tools", [f"{100 * found.whole(side):.1f} %" for side in sides]),
        both("milliseconds a request, median", [f"{side.milliseconds:.1f}" for side in sides]),
        both(f"seconds to index {found.tools:,} tools", [f"{side.index_s:.1f}" for side in sides]),
        ("requests turned away, as served", "never", f"{100 * found.turned_away:.1f} %"),
    ]


def saved(found: BaselineComparison) -> str:
    """Say what the tools found take of a prompt, beside all tools."""
    share = 1 - found.tokens_found / max(1, found.tokens)
    return (
        f"All {found.tools:,} tools take about {found.tokens:,} tokens of a prompt, those that are found about "
        f"{found.tokens_found:,}: {100 * share:.0f} % less."
    )


def page(found: BaselineComparison, title: str) -> str:
    """Return the page."""
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{escape(base)}</td><td class="number">{escape(own)}</td></tr>'
        for name, base, own in figures(found)
    )
    differing = "".join(
        f"<tr><td>{escape(one.text)}</td><td>{_list(one.tools, one.tools)}</td><td>{_list(base, one.tools)}</td>"
        f"<td>{_list(own, one.tools)}</td></tr>"
        for one, base, own in found.differing()
    )
    heads = "".join(f"<th>{escape(side.name)} finds</th>" for side in (found.baseline, found.ours))
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
<h1>{escape(title)}</h1>
<p>{len(found.requests):,} requests, {found.tools:,} tools. {escape(saved(found))}</p>
<table>
<tr><th></th>{_head(found.baseline)}{_head(found.ours)}</tr>
{rows}
</table>
<h2>Where they differ</h2>
<table>
<tr><th>request</th><th>needs</th>{heads}</tr>
{differing}
</table>
</html>
"""


def _head(side: Side) -> str:
    return f'<th class="number">{escape(side.name)}</th>'


def _list(ids: tuple[str, ...], right: tuple[str, ...]) -> str:
    return "<br>".join(f'<span class="right">{escape(one)}</span>' if one in right else escape(one) for one in ids)
