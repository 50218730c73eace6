"""Masks secrets in what a server behind the gateway answers."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import BaseModel

from toolscout.core.masking import Secrets

_Result = TypeVar("_Result")


def masked(result: _Result, secrets: Secrets) -> _Result:
    """Return a result of the MCP SDK without these secrets: in its texts, structured content and metadata."""
    if not isinstance(result, BaseModel):
        return result
    record = result.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if not secrets.occur_in(json.dumps(record, ensure_ascii=False)):
        return result
    return type(result).model_validate(secrets.mask_json(record))
