"""The options of `serve` and `mcp` for sign-in with an OAuth 2.1 or OpenID Connect service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolscout.errors import BadRequest

if TYPE_CHECKING:
    from toolscout.serving.sign_in import SignIn

IssuerOption = Annotated[
    list[str] | None,
    typer.Option(
        envvar="TOOLSCOUT_OIDC_ISSUER",
        metavar="URL",
        help="Accept tokens that this service signed, beside keys; may be repeated.",
    ),
]
AudienceOption = Annotated[
    str,
    typer.Option(envvar="TOOLSCOUT_OIDC_AUDIENCE", metavar="NAME", help="The audience that tokens must name."),
]
ClaimsOption = Annotated[
    Path | None,
    typer.Option(envvar="TOOLSCOUT_OIDC_CLAIMS", metavar="FILE", help="Which principal a token's claims make one."),
]
ResourceOption = Annotated[
    str,
    typer.Option(
        envvar="TOOLSCOUT_OIDC_RESOURCE",
        metavar="URL",
        help="The address under which clients know this server, if it is neither the audience nor what they ask.",
    ),
]


def sign_in_of(issuers: list[str] | None, audience: str, claims: Path | None, resource: str) -> SignIn | None:
    """Return what checks tokens, once the issuers' keys were read; None where no option is given.

    Raises BadRequest where one of the three options that belong together is missing.
    """
    if not issuers and not audience and claims is None and not resource:
        return None
    if not issuers or not audience or claims is None:
        raise BadRequest("sign-in takes all of: --oidc-issuer, --oidc-audience and --oidc-claims")
    from toolscout.serving.claim_rules import read_claim_rules
    from toolscout.serving.issuer_keys import IssuerKeys
    from toolscout.serving.sign_in import SignIn

    keys = [IssuerKeys(issuer) for issuer in dict.fromkeys(issuers)]
    made = SignIn(keys, audience, read_claim_rules(claims, [one.issuer for one in keys]), resource)
    made.warm_up()
    return made
