"""A small catalogue whose tools go together in every way, and models that write by rule."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from toolscout.core.tool import Tool
from toolscout.data.beir_files import Qrels
from toolscout.data.dataset import Dataset
from toolscout.llm.base import Conversation
from toolscout.llm.scripted import Scripted, ScriptedReply


def tool(namespace: str, name: str, about: str, takes: str = "", gives: str = "") -> Tool:
    schemas = [
        {"type": "object", "properties": {key: {"type": "string"} for key in one.split()}} for one in (takes, gives)
    ]
    return Tool(namespace, name, about, input_schema=schemas[0], output_schema=schemas[1] if gives else None)


TOOLS = [
    tool("geo", "locate_city", "finds where a city is", "city", "latitude longitude"),
    tool("geo", "list_regions", "lists all regions of a country", "country"),
    tool("Skywatcher", "get_forecast", "tells rain and sun of the next days", "latitude longitude days"),
    tool("stays", "find_rooms", "finds beds for the night", "city guests"),
    tool("stays", "cancel_stay", "gives a booking back", "booking"),
    tool("news", "headlines", "shows what happened today", "topic"),
]
IDS = {one.name: one.id for one in TOOLS}
WORDS = {
    "locate city": "I wonder on which shore Porto lies",
    "list regions": "which parts does Portugal have",
    "get forecast": "will I need an umbrella on Sunday",
    "find rooms": "a bed for two in Porto please",
    "cancel stay": "my trip is off so undo it",
    "headlines": "what did I miss since breakfast",
}
_NAME = re.compile(r'^\d+\. "([^"]*)" of "', re.MULTILINE)


def wordings(conversation: Conversation) -> str:
    """What someone would say who needs the tools of the prompt."""
    return " and ".join(WORDS[name] for name in _NAME.findall(conversation[-1].content))


def writer(say: Callable[[Conversation], str] = wordings, numbered: bool = True) -> Scripted:
    """A model that says what `say` makes of the conversation, as often as it is asked; each time with other words."""
    count = itertools.count(1)

    def said(conversation: Conversation) -> str:
        return say(conversation) + (f", that is wish {(n := next(count))} from me {n}" if numbered else "")

    return Scripted([ScriptedReply(said, when="")], name="shopkeeper")


def asked() -> Dataset:
    """Three tools have requests to train on, one of the others has one in dev and test."""
    texts = {"a": "where in the world is Porto exactly", "b": "is it dry in Porto on Monday and where is it"}
    texts |= {"c": "find me a bed in Faro", "d": "undo my booking, nobody travels", "e": "undo it all again please"}
    city = IDS["locate_city"]
    gold: Qrels = {"a": (city,), "b": (city, IDS["get_forecast"]), "c": (IDS["find_rooms"],)}
    dev, test = ({key: (IDS["cancel_stay"],)} for key in "de")
    qrels: dict[str, Qrels] = {"unseen_tool.train": gold, "unseen_tool.dev": {**dev}, "unseen_tool.test": {**test}}
    return Dataset("shop", TOOLS, texts, qrels)
