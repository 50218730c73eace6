"""Tools that an agent might have: plain functions, from which every framework makes its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolscout.calling.dispatch import CallOptions, OriginCaller

CALLER = OriginCaller(CallOptions(allow=(f"{__name__}:*",)))
"""Runs these functions, and nothing else that a catalogue may name."""


def get_weather(city: str) -> str:
    """Tells the weather forecast for a city: temperature, wind and rain."""
    return f"sunny in {city}"


def send_mail(to: str, subject: str) -> str:
    """Sends an e-mail message to somebody."""
    return f"sent to {to}: {subject}"


def create_issue(repository: str, title: str) -> str:
    """Opens a new issue in a source code repository."""
    return f"{repository}#1 {title}"


def list_issues(repository: str) -> str:
    """Lists the open issues of a source code repository."""
    return f"{repository}#1"


def convert_currency(amount: float, source: str, target: str) -> str:
    """Converts an amount of money from one currency into another at today's exchange rate."""
    return f"{amount * 2} {target}, was {source}"


def translate_text(text: str, language: str) -> str:
    """Translates a text into another language."""
    return f"{text} in {language}"


def book_flight(origin: str, destination: str) -> str:
    """Books a seat on a plane between two airports."""
    return f"{origin}-{destination}"


def play_music(song: str) -> str:
    """Plays a song on the loudspeakers."""
    return song


def set_alarm(time: str) -> str:
    """Sets an alarm clock that rings at a time of day."""
    return time


def add_event(title: str, day: str) -> str:
    """Adds an appointment to the calendar."""
    return f"{title} on {day}"


def resize_image(path: str, width: int) -> str:
    """Makes an image file smaller or larger."""
    return f"{path} {width}"


def stock_price(symbol: str) -> str:
    """Tells what a share costs on the stock exchange now."""
    return f"{symbol} 42"


def feed_lion(meat: str, hungry: bool = True) -> str:
    """Gives the lion in the zoo its dinner of fresh meat."""
    if meat == "salad":
        raise ValueError("lions do not eat salad")
    return f"the lion ate {meat}"


FUNCTIONS: list[Callable[..., Any]] = [
    get_weather,
    send_mail,
    create_issue,
    list_issues,
    convert_currency,
    translate_text,
    book_flight,
    play_music,
    set_alarm,
    add_event,
    resize_image,
    stock_price,
    feed_lion,
]
NAMES = [function.__name__ for function in FUNCTIONS]
LION = "Please give the lion its dinner of fresh meat"
NOTHING = "unclog a kitchen sink"
