"""Rules that say which principal somebody with a token is, by the token's claims.

```yaml
principals:                                 # the first entry whose claims all match counts
  - principal: ops
    claims: {groups: toolscout-admins}
  - principal: staff
    claims: {email: "*@acme.example", email_verified: true}
tenant: org                                 # optional: the claim that names the tenant
scopes: [tools]                             # optional: scopes that every token must have
user: email                                 # optional: the claim that the audit log names people by; default sub
```
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from toolscout.core.permissions import ANONYMOUS
from toolscout.core.tool import clean_text
from toolscout.errors import BadRequest, Forbidden, InsufficientScope

_KEYS = {"principals", "tenant", "scopes", "user"}
_RULE_KEYS = {"principal", "claims", "issuer"}
_SCOPE = re.compile(r"[!#-\[\]-~]+")  # RFC 6749
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry: `principal` for tokens whose `claims` all match, of one `issuer` or, where it is "", of any."""

    principal: str
    claims: Mapping[str, Any]
    issuer: str = ""

    def matches(self, issuer: str, claims: Mapping[str, Any]) -> bool:
        """Return whether the claims of a token of this issuer match."""
        return self.issuer in ("", issuer) and all(
            _matches(wanted, claim(claims, name)) for name, wanted in self.claims.items()
        )


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """All rules of a file."""

    rules: tuple[Rule, ...]
    tenant: str = ""
    scopes: tuple[str, ...] = ()
    user: str = "sub"

    def principal(self, issuer: str, claims: Mapping[str, Any]) -> str:
        """Return the principal of the first rule that matches; raises Forbidden where none does."""
        for rule in self.rules:
            if rule.matches(issuer, claims):
                return rule.principal
        raise Forbidden("you are signed in, but nothing here is open to you; ask whoever runs this server")

    def tenant_of(self, claims: Mapping[str, Any]) -> str:
        """Return the tenant that the claims name; "" where no claim is configured, Forbidden where it is missing."""
        if not self.tenant:
            return ""
        found = claim(claims, self.tenant)
        if not isinstance(found, str) or not found.strip() or len(found) > _LONGEST_NAME:
            raise Forbidden(f"your token has no claim {self.tenant!r}, which names your tenant here; sign in with it")
        return found

    def user_of(self, claims: Mapping[str, Any]) -> str:
        """Return the name of a person for the audit log; "" where the claim is missing."""
        found = claim(claims, self.user)
        return clean_text(found)[:_LONGEST_NAME] if isinstance(found, str) else ""

    def check_scopes(self, claims: Mapping[str, Any]) -> None:
        """Raise InsufficientScope where a demanded scope is missing."""
        given = claims.get("scope", claims.get("scp", ""))
        held = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
        if any(scope not in held for scope in self.scopes):
            raise InsufficientScope(self.scopes)


def read_claim_rules(path: Path, issuers: Sequence[str]) -> ClaimRules:
    """Return the rules of a YAML or JSON file; BadRequest says what is wrong with it."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise BadRequest(f"{path} cannot be read ({type(error).__name__}); give the file of claims") from None
    except (yaml.YAMLError, RecursionError):
        raise BadRequest(f"{path} is neither YAML nor JSON") from None
    try:
        return parse_claim_rules(document, issuers)
    except BadRequest as error:
        raise BadRequest(f"{path}: {error}") from None


def parse_claim_rules(document: Any, issuers: Sequence[str]) -> ClaimRules:
    """Return the rules of a parsed document; BadRequest says what is wrong. `issuers`: those that are configured.

    Where there are several issuers, each rule names its own, so that none can speak for the people of another.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("principals"), list):
        raise BadRequest("a list 'principals' is needed, each entry with 'principal' and 'claims'")
    _check_keys(document, _KEYS, "it")
    rules = tuple(_rule(entry, number, issuers) for number, entry in enumerate(document["principals"], 1))
    if not rules:
        raise BadRequest("'principals' is empty, so that nobody could sign in")
    scopes, tenant, user = document.get("scopes", []), document.get("tenant", ""), document.get("user", "sub")
    if not isinstance(scopes, list) or not all(isinstance(one, str) and _SCOPE.fullmatch(one) for one in scopes):
        raise BadRequest("'scopes' must be a list of scopes, each a word")
    if not isinstance(tenant, str) or not isinstance(user, str) or not user:
        raise BadRequest("'tenant' and 'user' must be names of claims")
    return ClaimRules(rules, tenant, tuple(scopes), user)


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim; a name with dots may lead into objects, as in realm_access.roles. None where there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _matches(wanted: Any, found: Any) -> bool:
    """Return whether a claim, or one value of a list, matches: texts by pattern, other values if they are equal."""
    return any(
        isinstance(value, str) and fnmatchcase(value, wanted)
        if isinstance(wanted, str)
        else json.dumps(value) == json.dumps(wanted)
        for value in (found if isinstance(found, list) else [found])
    )


def _rule(entry: Any, number: int, issuers: Sequence[str]) -> Rule:
    where = f"entry {number} of 'principals'"
    if not isinstance(entry, Mapping):
        raise BadRequest(f"{where} must be an object with 'principal' and 'claims'")
    _check_keys(entry, _RULE_KEYS, where)
    principal, claims, issuer = entry.get("principal"), entry.get("claims"), entry.get("issuer", "")
    if not isinstance(principal, str) or not clean_text(principal) or principal == ANONYMOUS:
        raise BadRequest(f"{where} needs 'principal', the name of somebody that `toolscout keys add` made")
    if not isinstance(claims, Mapping) or not claims:
        raise BadRequest(f"{where} needs 'claims', an object of claims and the values or patterns that they must match")
    for name, wanted in claims.items():
        if not isinstance(name, str) or not isinstance(wanted, str | bool | int) or wanted == "":
            raise BadRequest(f"{where}: {name!r:.80} must be a claim's name with a text, a number, true or false")
    if issuer not in (*issuers, "") or (len(issuers) > 1 and not issuer):
        raise BadRequest(f"{where} needs 'issuer', one of: {' '.join(issuers)}")
    return Rule(principal, dict(claims), issuer)


def _check_keys(entry: Mapping[Any, Any], known: set[str], where: str) -> None:
    unknown = sorted(str(key) for key in entry if key not in known)
    if unknown:
        raise BadRequest(f"{where} has {unknown[0]!r:.80}, which means nothing; known are: {', '.join(sorted(known))}")
