"""The tools of the examples: plain Python functions. Yours may come from MCP servers and OpenAPI documents as well."""

from __future__ import annotations

from typing import Literal


def find_invoice(customer: str, year: int = 2026) -> str:
    """Find the invoices that were sent to a customer in a year."""
    return f"invoice 1017 to {customer}, {year}: 480.00 EUR, unpaid"


def send_reminder(invoice: str, tone: Literal["kind", "firm"] = "kind") -> str:
    """Send a customer a payment reminder for an unpaid invoice."""
    return f"a {tone} reminder for invoice {invoice} is on its way"


def book_room(room: str, day: str, hours: int = 1) -> str:
    """Book a meeting room for some hours of a day."""
    return f"{room} is yours on {day} for {hours} h"


def list_rooms(seats: int) -> str:
    """List the meeting rooms that have enough seats."""
    return "Blue (8 seats), Attic (14 seats)"


def add_appointment(title: str, day: str, people: list[str] | None = None) -> str:
    """Add an appointment to the calendar and invite people to it."""
    return f"{title} on {day} with {', '.join(people or ['nobody else'])}"


def request_holiday(first_day: str, last_day: str) -> str:
    """Hand in a request for days of holiday."""
    return f"holiday from {first_day} to {last_day} awaits approval"


def report_sick(days: int) -> str:
    """Report that you are ill and for how many days."""
    return f"get well soon, see you in {days} days"


def order_supplies(item: str, amount: int) -> str:
    """Order paper, pens, coffee and other supplies for the office."""
    return f"{amount} x {item} ordered"


def track_parcel(number: str) -> str:
    """Tell where a parcel is and when it will be delivered."""
    return f"parcel {number} arrives tomorrow"


def reset_password(user: str) -> str:
    """Reset the password of a user's account and mail a new one."""
    return f"{user} has mail"


def print_document(path: str, copies: int = 1) -> str:
    """Print a file on the printer in the corridor."""
    return f"{copies} x {path} printed"


def translate_letter(text: str, language: str) -> str:
    """Translate a letter into another language."""
    return f"[{language}] {text}"
