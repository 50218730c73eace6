"""Decides which hosts a model folder may send requests to, and over which connections an API key is sent."""

from __future__ import annotations

import ipaddress
import os
import re
from urllib.parse import urlsplit

HOSTS_VARIABLE = "TOOLSCOUT_LLM_HOSTS"


def host_of(url: str) -> str:
    """The host of an endpoint in the form of $TOOLSCOUT_LLM_HOSTS: with the port, unless that is 443."""
    parts = urlsplit(url)
    name = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    name = f"[{name}]" if ":" in name else name
    return name if port == 443 else f"{name}:{port}"


def is_named(url: str) -> bool:
    """Whether the user has named the host of this endpoint in $TOOLSCOUT_LLM_HOSTS."""
    return host_of(url) in map(_named, re.split(r"[\s,]+", os.environ.get(HOSTS_VARIABLE, "")))


def not_named(url: str) -> str:
    """Why an endpoint that only a model folder names is not asked; "" where the user has named its host too."""
    if is_named(url):
        return ""
    return (
        f"the model folder has requests sent to {host_of(url)}, which nobody here allowed; if you trust "
        f"that host with requests and with your key, put {host_of(url)} into {HOSTS_VARIABLE}"
    )


def _named(entry: str) -> str:
    try:
        return host_of(entry if "://" in entry else f"https://{entry}")
    except ValueError:  # an invalid port or address: it matches no host
        return ""


def is_loopback(url: str) -> bool:
    """Whether a URL is of this machine: localhost, 127.0.0.0/8 or ::1."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def key_in_the_open(url: str, variable: str) -> str:
    """Why the key in an environment variable is not sent to this endpoint; "" where it is, or where there is none."""
    if not os.environ.get(variable, "").strip() or urlsplit(url).scheme == "https" or is_loopback(url):
        return ""
    return (
        f"the key in {variable} is not sent over plain http, where anyone on the way can read it; name the endpoint "
        f"with https:// instead of {url}, or unset {variable} if that server needs no key"
    )
