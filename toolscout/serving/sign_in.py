"""Sign-in with access tokens of an OAuth 2.1 or OpenID Connect service: JWTs that the service signed.

A server is a resource server: it issues nothing, and asks its sign-in services for nothing but their public keys.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolscout.core.permissions import KEY_PREFIX, User
from toolscout.core.targets import is_address
from toolscout.errors import BadRequest, InvalidToken, MissingExtra
from toolscout.serving.claim_rules import ClaimRules
from toolscout.serving.issuer_keys import ALGORITHMS, IssuerKeys

MAX_TOKEN_CHARS = 16 * 1024
LEEWAY_S = 60
"""How far the clocks of an issuer and of this machine may differ."""
_TYPES = (None, "jwt", "at+jwt", "application/at+jwt")
_MAX_KEYS_TRIED = 4
_REQUIRED = ["iss", "aud", "exp", "sub"]
_MALFORMED = "this is no token of a sign-in service that is accepted here; sign in again"


class _Parts(NamedTuple):
    """What a token says before anything of it is believed."""

    issuer: IssuerKeys
    algorithm: str
    kid: str | None
    age: float


class SignIn:
    """Checks tokens and says who their callers are. Safe to use from many threads."""

    def __init__(self, issuers: Sequence[IssuerKeys], audience: str, rules: ClaimRules, resource: str = "") -> None:
        """Accept tokens of these issuers for this audience.

        `resource`: the URL under which clients know this server; by default the audience where it is a URL, else the
        address that a client asks. Raises BadRequest for an empty audience, MissingExtra without PyJWT.
        """
        try:
            import cryptography  # noqa: F401
            import jwt  # noqa: F401
        except ImportError:
            raise MissingExtra("sign-in", "auth") from None
        if not audience.strip() or not issuers:
            raise BadRequest("sign-in needs an issuer and the audience that its tokens for this server name")
        if resource and not is_address(resource):
            raise BadRequest(f"{resource!r:.200} is no address; give the one under which clients know this server")
        self.rules = rules
        self.audience = audience
        self.resource = resource or (audience if is_address(audience) else "")
        self._issuers = {one.issuer: one for one in issuers}

    @property
    def issuers(self) -> list[str]:
        """The URLs of the issuers."""
        return list(self._issuers)

    def warm_up(self) -> None:
        """Read the keys of all issuers; one that does not answer is logged, and asked again when a token comes."""
        for issuer in self._issuers.values():
            issuer.fetch()

    def reads(self, key: str | None) -> bool:
        """Return whether what a caller sent has the form of a token, and not of a key."""
        return key is not None and not key.startswith(KEY_PREFIX) and key.count(".") == 2

    def must_fetch(self, token: str) -> tuple[IssuerKeys, str | None] | None:
        """Return the issuer to ask before this token can be checked, and the key to ask for; None where there is none.

        A token that would be refused with any key gives None, so that nobody is asked because of it.
        """
        try:
            parts = self._parts(token)
        except InvalidToken:
            return None
        return (parts.issuer, parts.kid) if parts.issuer.wants(parts.kid) else None

    def user(self, token: str) -> User:
        """Return whose token this is. Nobody is asked over the network.

        Raises InvalidToken where the token is not valid, SignInUnavailable where its key is not known yet,
        InsufficientScope without the scopes that the rules demand, Forbidden where no rule matches.
        """
        parts = self._parts(token)
        claims = self._verified(token, parts)
        issuer, subject = parts.issuer.issuer, claims["sub"]
        if not subject:
            raise InvalidToken("this token is not accepted (its sub is empty); sign in again")
        self.rules.check_scopes(claims)
        principal = self.rules.principal(issuer, claims)
        return User(principal, issuer, subject, self.rules.user_of(claims), self.rules.tenant_of(claims))

    def document(self, resource: str) -> dict[str, Any]:
        """Return the protected-resource metadata (RFC 9728) for the server at this address."""
        found: dict[str, Any] = {
            "resource": self.resource or resource,
            "resource_name": "toolscout",
            "authorization_servers": self.issuers,
            "bearer_methods_supported": ["header"],
        }
        return found | ({"scopes_supported": list(self.rules.scopes)} if self.rules.scopes else {})

    def _verified(self, token: str, parts: _Parts) -> Mapping[str, Any]:
        import jwt

        problem = "its signature is not of a key that the issuer has"
        for key in parts.issuer.find(parts.kid, parts.algorithm, parts.age)[:_MAX_KEYS_TRIED]:
            try:
                return jwt.decode(
                    token,
                    key,
                    algorithms=[parts.algorithm],
                    audience=self.audience,
                    issuer=parts.issuer.issuer,
                    leeway=LEEWAY_S,
                    options={"require": _REQUIRED, "enforce_minimum_key_length": True},
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.InvalidKeyError:
                problem = "it is signed with a key that is too short"
            except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
                raise InvalidToken(f"this token is not accepted ({_reason(error)}); sign in again") from None
        raise InvalidToken(f"this token is not accepted: {problem}; sign in again")

    def _parts(self, token: str) -> _Parts:
        """Return what a token says about itself; raises InvalidToken where no key could make it valid."""
        if len(token) > MAX_TOKEN_CHARS:
            raise InvalidToken(f"a token may have {MAX_TOKEN_CHARS:,} characters here; ask for one with fewer claims")
        header, claims = (_decoded(part) for part in token.split(".")[:2])
        algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise InvalidToken(f"only tokens signed with {', '.join(ALGORITHMS)} are accepted here")
        if "crit" in header or not isinstance(kid, str | None) or not isinstance(kind, str | None):
            raise InvalidToken(_MALFORMED)
        if (kind and kind.lower()) not in _TYPES:
            raise InvalidToken("this token is no access token; send the access token")
        issuer = claims.get("iss")
        found = self._issuers.get(issuer) if isinstance(issuer, str) else None
        if found is None:
            raise InvalidToken(_MALFORMED)
        audience, now = claims.get("aud"), time.time()
        if self.audience not in (audience if isinstance(audience, list) else [audience]):
            raise InvalidToken("this token is for another server; ask for one for this server")
        expires, issued = claims.get("exp"), claims.get("iat", -1)
        if not isinstance(expires, int | float) or not expires > now - LEEWAY_S:
            raise InvalidToken("this token has expired; sign in again")
        return _Parts(found, algorithm, kid, now - issued if isinstance(issued, int | float) else now)


def _decoded(part: str) -> Mapping[str, Any]:
    """Return the JSON object in a part of a token; InvalidToken where there is none."""
    try:
        found = json.loads(base64.b64decode(part + "=" * (-len(part) % 4), altchars="-_", validate=True))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidToken(_MALFORMED)
    return found


def _reason(error: Exception) -> str:
    """Return why a token is not valid in fixed words, since messages may quote what it holds."""
    import jwt

    reasons: dict[type[Exception], str] = {
        jwt.ExpiredSignatureError: "it has expired",
        jwt.ImmatureSignatureError: "it is not valid yet",
        jwt.InvalidAudienceError: "it is for another server",
        jwt.InvalidIssuerError: "it is of another issuer",
        jwt.MissingRequiredClaimError: f"it lacks one of the claims {', '.join(_REQUIRED)}",
    }
    return next((text for kind, text in reasons.items() if isinstance(error, kind)), "it is malformed")
