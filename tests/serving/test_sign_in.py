"""Tokens of sign-in services: which are accepted, whose they are, and when an issuer is asked."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.serving.issuer import AUDIENCE, Issuer, issuing, jwk_of, new_key
from toolscout.errors import BadRequest, Forbidden, InsufficientScope, InvalidToken, SignInUnavailable
from toolscout.serving.claim_rules import parse_claim_rules
from toolscout.serving.issuer_keys import FRESH_S, PAUSE_S, IssuerKeys
from toolscout.serving.sign_in import MAX_TOKEN_CHARS, SignIn

RULES = {
    "principals": [
        {"principal": "ops", "claims": {"groups": "admins"}},
        {"principal": "team", "claims": {"groups": "team-*"}},
        {"principal": "staff", "claims": {"email": "*@acme.example", "email_verified": True}},
    ],
}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Checked:
    """A sign-in with one issuer, and what a server does with a token."""

    def __init__(self, issuer: Issuer, rules: dict[str, Any] = RULES) -> None:
        self.issuer, self.clock = issuer, Clock()
        self.keys = IssuerKeys(issuer.url, self.clock)
        self.sign_in = SignIn([self.keys], AUDIENCE, parse_claim_rules(rules, [issuer.url]))

    def principal(self, token: str) -> str:
        assert self.sign_in.reads(token)
        if missing := self.sign_in.must_fetch(token):
            missing[0].fetch(missing[1])
        return self.sign_in.user(token).principal

    def member(self, kid: str = "k1", **more: Any) -> str:
        return self.issuer.token(kid, **{"groups": ["team-a"], **more})


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as running:
        yield running


@pytest.fixture
def checked(issuer: Issuer) -> Checked:
    return Checked(issuer)


def part(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unsigned(token: str, header: dict[str, Any]) -> str:
    return f"{part(header)}.{token.split('.')[1]}."


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA"])
@pytest.mark.parametrize("kind", ["at+jwt", "JWT", None, "application/at+jwt"])
def test_a_valid_token_is_accepted(checked: Checked, algorithm: str, kind: str | None) -> None:
    checked.issuer.keys["k1"] = (new_key(algorithm), algorithm)
    assert checked.principal(checked.member(header={"typ": kind})) == "team"
    assert checked.principal(checked.member(aud=["other", AUDIENCE])) == "team"
    assert len(checked.issuer.asked) == 2


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"iss": "https://elsewhere.example"}, "no token of a sign-in service"),
        ({"iss": None}, "no token of a sign-in service"),
        ({"aud": "other"}, "another server"),
        ({"aud": None}, "another server"),
        ({"aud": [AUDIENCE + "x"]}, "another server"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "expired"),
        ({"exp": int(time.time()) - 61}, "expired"),
        ({"nbf": int(time.time()) + 86_400}, "not valid yet"),
        ({"iat": int(time.time()) + 86_400, "nbf": None}, "not valid yet"),
        ({"sub": None}, "lacks"),
        ({"sub": ""}, "sub"),
    ],
)
def test_claims_that_are_wrong(checked: Checked, claims: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidToken, match=problem) as raised:
        checked.principal(checked.member(**claims))
    assert "team-a" not in str(raised.value)


def test_clocks_may_differ_by_a_minute(checked: Checked) -> None:
    now = int(time.time())
    assert checked.principal(checked.member(exp=now - 40)) == "team"
    assert checked.principal(checked.member(nbf=now + 40)) == "team"


@pytest.mark.parametrize(
    "header", [{"typ": "logout+jwt"}, {"typ": "dpop+jwt"}, {"crit": ["exp"]}, {"crit": ["b64"], "b64": True}]
)
def test_headers_that_are_not_accepted(checked: Checked, header: dict[str, Any]) -> None:
    with pytest.raises(InvalidToken):
        checked.principal(checked.member(header=header))


def test_algorithms_are_pinned(checked: Checked) -> None:
    key, _ = checked.issuer.keys["k1"]
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    token = checked.member()
    assert checked.principal(token) == "team"
    for header in ({"alg": "none"}, {"alg": "None", "kid": "k1"}, {"kid": "k1"}, {"alg": ["RS256"]}, {"alg": "RS256"}):
        with pytest.raises(InvalidToken):
            checked.principal(unsigned(token, header))
    # The public key taken for a shared secret: PyJWT itself would refuse to sign so.
    import hashlib
    import hmac

    signed = f"{part({'alg': 'HS256', 'kid': 'k1', 'typ': 'JWT'})}.{token.split('.')[1]}"
    mac = hmac.new(pem, signed.encode(), hashlib.sha256).digest()
    with pytest.raises(InvalidToken, match="only tokens signed with"):
        checked.principal(f"{signed}.{part(mac)}")
    for algorithm in ("RS384", "RS512"):
        checked.issuer.keys["k1"] = (key, algorithm)
        with pytest.raises(InvalidToken, match="only tokens signed with"):
            checked.principal(checked.member())


def test_a_key_serves_its_own_algorithm_alone(checked: Checked) -> None:
    key, _ = checked.issuer.keys["k1"]
    checked.issuer.jwks = [jwk_of(key, "RS256", "k1")]
    checked.issuer.keys["k1"] = (key, "PS256")
    with pytest.raises(InvalidToken):
        checked.principal(checked.member())


@pytest.mark.parametrize(
    "change",
    [{"use": "enc"}, {"key_ops": ["encrypt"]}, {"kty": "oct", "k": part(b"x" * 32)}, {"n": "AQAB"}, {"kid": 5}],
)
def test_keys_for_something_else_are_not_used(checked: Checked, change: dict[str, Any]) -> None:
    other = jwk_of(new_key(), "RS256", "other")
    checked.issuer.jwks = [jwk_of(checked.issuer.keys["k1"][0], "RS256", "k1") | change, other]
    with pytest.raises(InvalidToken):
        checked.principal(checked.member(iat=int(time.time()) - 30))


def test_a_short_rsa_key_and_another_curve_are_not_used(checked: Checked) -> None:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    checked.issuer.keys["k1"] = (short, "RS256")
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        token = checked.member()
    with pytest.raises(InvalidToken, match="too short"):
        checked.principal(token)
    p384 = jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key(), as_dict=True)
    checked.issuer.jwks = [p384 | {"kid": "k2"}, jwk_of(new_key(), "RS256", "k3")]
    checked.issuer.keys["k2"] = (new_key("ES256"), "ES256")
    checked.clock.now += PAUSE_S
    with pytest.raises(InvalidToken):
        checked.principal(checked.member("k2", iat=int(time.time()) - 30))


def test_a_signature_of_another_key(checked: Checked) -> None:
    real = checked.issuer.keys["k1"]
    checked.principal(checked.member())
    checked.issuer.keys["k1"] = (new_key(), "RS256")
    with pytest.raises(InvalidToken, match="signature"):
        checked.principal(checked.member())
    checked.issuer.keys["k1"] = real
    head, body, signature = checked.member().split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    with pytest.raises(InvalidToken, match="signature"):
        checked.principal(f"{head}.{part(claims | {'groups': ['admins']})}.{signature}")


def test_a_token_brings_no_key(checked: Checked) -> None:
    """Whoever writes a token may put keys and addresses of keys in its header: they mean nothing."""
    mine = new_key()
    theirs = checked.issuer.keys["k1"]
    checked.principal(checked.member())
    checked.issuer.keys["k1"] = (mine, "RS256")
    extra = {"jwk": jwk_of(mine, "RS256", "k1"), "jku": f"{checked.issuer.url}/evil", "x5u": f"{checked.issuer.url}/e"}
    asked = len(checked.issuer.asked)
    with pytest.raises(InvalidToken):
        checked.principal(checked.member(header=extra))
    assert len(checked.issuer.asked) == asked
    checked.issuer.keys["k1"] = theirs


def test_two_keys_and_none_named(checked: Checked) -> None:
    checked.issuer.keys["k2"] = (new_key(), "RS256")
    assert checked.principal(checked.member("k1")) == checked.principal(checked.member("k2")) == "team"
    assert checked.principal(checked.member("k2", header={"kid": None})) == "team"
    # Both under one name, as some issuers have it while they rotate.
    checked.issuer.jwks = [jwk_of(key, "RS256", "same") for key, _ in checked.issuer.keys.values()]
    checked.clock.now += FRESH_S + 1
    for kid in ("k1", "k2"):
        assert checked.principal(checked.member(kid, header={"kid": "same"})) == "team"


def test_malformed_tokens(checked: Checked) -> None:
    good = checked.member()
    head, body, signature = good.split(".")
    deep, odd = part(b"[" * 9_000), part(b'{"exp": NaN}')
    for token in (
        "..", "a.b.c", f"{head}..{signature}", f"{deep}.{body}.{signature}", f"{head}.{deep}.{signature}",
        f"{part([1])}.{body}.{signature}", f"{head}.{part('x')}.{signature}", f"{head}.{body}.*", f"{head}.{body}.",
        f"{head}é.{body}.{signature}", f"{part(b'{')}.{body}.x", f"{head}.{odd}.x",
        f"{head}.{part({'iss': ['x']})}.x",
        f"{head}.{part({'iss': checked.issuer.url, 'aud': AUDIENCE, 'exp': 10**400})}.x",
    ):  # fmt: skip
        with pytest.raises(InvalidToken):
            checked.principal(token)


def test_a_huge_token_is_not_read(checked: Checked) -> None:
    token = checked.member(padding="x" * MAX_TOKEN_CHARS)
    with pytest.raises(InvalidToken, match="16,384 characters"):
        checked.principal(token)
    assert checked.issuer.asked == []


def test_a_rotated_key_is_found_and_the_old_one_forgotten(checked: Checked) -> None:
    old = checked.member()
    assert checked.principal(old) == "team"
    checked.issuer.keys = {"k2": (new_key("ES256"), "ES256")}
    checked.clock.now += PAUSE_S
    assert checked.principal(checked.member("k2")) == "team"
    assert len(checked.issuer.asked) == 4
    with pytest.raises(InvalidToken):
        checked.principal(old)


def test_a_key_that_is_newer_than_what_is_known_is_waited_for(checked: Checked) -> None:
    checked.principal(checked.member())
    checked.issuer.keys["k2"] = (new_key(), "RS256")
    checked.clock.now += 4
    fresh = checked.member("k2", iat=int(time.time()))
    with pytest.raises(SignInUnavailable) as raised:
        checked.principal(fresh)
    assert raised.value.retry_after == 6
    checked.clock.now += raised.value.retry_after
    assert checked.principal(fresh) == "team"


def test_a_flood_of_unknown_keys_does_not_reach_the_issuer(checked: Checked) -> None:
    checked.principal(checked.member())
    asked = len(checked.issuer.asked)
    foreign = new_key()
    for number in range(200):
        checked.clock.now += 0.1
        checked.issuer.keys[f"x{number}"] = (foreign, "RS256")
        token = checked.member(f"x{number}", iat=int(time.time()) - 3600)
        del checked.issuer.keys[f"x{number}"]
        with pytest.raises(InvalidToken):
            checked.principal(token)
    assert len(checked.issuer.asked) - asked <= 4  # two documents every ten seconds
    before = len(checked.issuer.asked)
    for claims in ({"exp": 1}, {"aud": "other"}, {"iss": "https://elsewhere.example"}):
        checked.clock.now += PAUSE_S
        with pytest.raises(InvalidToken):
            checked.principal(unsigned(checked.member(**claims), {"alg": "RS256", "kid": "unknown"}))
    assert len(checked.issuer.asked) == before  # a token that no key could save asks nobody


def test_while_the_issuer_is_down(checked: Checked, caplog: pytest.LogCaptureFixture) -> None:
    checked.issuer.down = True
    token = checked.member()
    with caplog.at_level(logging.WARNING), pytest.raises(SignInUnavailable) as raised:
        checked.principal(token)
    assert raised.value.retry_after == 10
    assert "answered 503" in caplog.text
    assert token not in caplog.text + str(raised.value)
    checked.issuer.down = False
    checked.clock.now += PAUSE_S
    assert checked.principal(token) == "team"
    checked.issuer.down = True
    checked.clock.now += 3 * FRESH_S
    assert checked.principal(token) == "team"  # its key is known
    checked.issuer.keys["k2"] = (new_key(), "RS256")
    with pytest.raises(SignInUnavailable):
        checked.principal(checked.member("k2", iat=int(time.time()) - 300))


def test_keys_are_read_again_after_an_hour(checked: Checked) -> None:
    token = checked.member()
    checked.principal(token)
    checked.clock.now += FRESH_S - 1
    checked.principal(token)
    assert len(checked.issuer.asked) == 2
    checked.clock.now += 2
    checked.principal(token)
    assert len(checked.issuer.asked) == 4


@pytest.mark.parametrize("path", ["", "/realms/acme", "/tenant/"])
def test_metadata_is_found_in_both_places(path: str) -> None:
    with issuing(path) as issuer:
        assert Checked(issuer).principal(issuer.token(groups="team-x")) == "team"
        assert len(issuer.asked) == 2
        issuer.well_known = f"/.well-known/oauth-authorization-server{path.rstrip('/')}"
        assert Checked(issuer).principal(issuer.token(groups="team-x")) == "team"


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://elsewhere.example"},
        {"jwks_uri": None},
        {"jwks_uri": "http://10.1.2.3/jwks"},
        {"jwks_uri": "https://10.1.2.3/jwks"},
        {"jwks_uri": "http://127.0.0.1:9/jwks"},
        {"jwks_uri": "file:///etc/passwd"},
    ],
)
def test_metadata_that_leads_elsewhere(issuer: Issuer, metadata: dict[str, Any]) -> None:
    issuer.metadata = metadata
    with pytest.raises(SignInUnavailable):
        Checked(issuer).principal(issuer.token(groups="team-x"))


@pytest.mark.parametrize(
    "answer", [(302, "http://127.0.0.1:9/"), (200, b"x" * (2 << 20)), (200, b"[" * 100_000), (200, []), (200, {})]
)
def test_documents_that_are_not_read(issuer: Issuer, answer: tuple[int, Any]) -> None:
    issuer.answers["/jwks"] = answer
    with pytest.raises(SignInUnavailable):
        Checked(issuer).principal(issuer.token(groups="team-x"))


@pytest.mark.parametrize(
    "issuer", ["http://login.example", "login.example", "https://", "https://a@b.example", "https://a.example/?x=1", ""]
)
def test_issuers_that_could_be_changed_on_the_way(issuer: str) -> None:
    with pytest.raises(BadRequest, match="issuer"):
        IssuerKeys(issuer)


@pytest.mark.parametrize(
    ("claims", "principal"),
    [
        ({"groups": ["admins", "team-a"]}, "ops"),
        ({"groups": ["team-a", "other"]}, "team"),
        ({"groups": "team-b"}, "team"),
        ({"email": "a@acme.example", "email_verified": True}, "staff"),
        ({"email": "a@acme.example", "email_verified": False}, None),
        ({"email": "a@acme.example", "email_verified": 1}, None),
        ({"email": "a@acme.example"}, None),
        ({"email": "a@acme.example.evil", "email_verified": True}, None),
        ({"groups": ["ADMINS", "xteam-a"]}, None),
        ({"groups": {"admins": True}}, None),
        ({"groups": [["admins"], None, 5]}, None),
        ({}, None),
    ],
)
def test_the_first_rule_that_matches_counts(checked: Checked, claims: dict[str, Any], principal: str | None) -> None:
    token = checked.issuer.token(**claims)
    if principal:
        assert checked.principal(token) == principal
    else:
        with pytest.raises(Forbidden, match="nothing here is open to you"):
            checked.principal(token)


def test_nested_claims_tenant_scopes_and_names(issuer: Issuer) -> None:
    rules = {
        "principals": [{"principal": "x", "claims": {"realm_access.roles": "tools", "https://acme/level": 3}}],
        "tenant": "org",
        "scopes": ["tools"],
        "user": "email",
    }
    checked = Checked(issuer, rules)
    claims: dict[str, Any] = {"realm_access": {"roles": ["a", "tools"]}, "https://acme/level": 3, "org": "acme"}
    claims |= {"scope": "openid tools", "email": "alice@acme.example\n"}
    checked.principal(issuer.token(**claims))
    user = checked.sign_in.user(issuer.token(**claims))
    assert (user.principal, user.tenant, user.shown, user.subject) == ("x", "acme", "alice@acme.example", "alice")
    assert checked.sign_in.user(issuer.token(**claims | {"scope": None, "scp": ["tools"]})).principal == "x"
    with pytest.raises(InsufficientScope):
        checked.principal(issuer.token(**claims | {"scope": "openid"}))
    with pytest.raises(Forbidden, match="tenant"):
        checked.principal(issuer.token(**claims | {"org": None}))


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "a list 'principals'"),
        ({"principals": []}, "nobody could sign in"),
        ({"principals": [{"principal": "x"}]}, "needs 'claims'"),
        ({"principals": [{"principal": "x", "claims": {}}]}, "needs 'claims'"),
        ({"principals": [{"principal": "x", "claims": {"a": ["b"]}}]}, "'a' must be"),
        ({"principals": [{"principal": "x", "claims": {"a": ""}}]}, "'a' must be"),
        ({"principals": [{"principal": "anonymous", "claims": {"a": "b"}}]}, "needs 'principal'"),
        ({"principals": [{"principal": "x", "claim": {"a": "b"}}]}, "'claim', which means nothing"),
        ({"principals": [{"principal": "x", "claims": {"a": "b"}, "issuer": "https://c"}]}, "'issuer', one of"),
        ({"principals": RULES["principals"], "scopes": ['a"b']}, "'scopes'"),
        ({"principals": RULES["principals"], "tenants": "x"}, "'tenants', which means nothing"),
    ],
)
def test_rules_that_are_wrong(document: Any, problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        parse_claim_rules(document, ["https://a.example"])


def test_no_issuer_speaks_for_the_people_of_another() -> None:
    with issuing() as one, issuing() as two:
        urls = [one.url, two.url]
        entry: dict[str, Any] = {"principal": "ops", "claims": {"groups": "admins"}}
        with pytest.raises(BadRequest, match="needs 'issuer'"):
            parse_claim_rules({"principals": [entry]}, urls)
        rules = parse_claim_rules({"principals": [entry | {"issuer": one.url}]}, urls)
        keys = [IssuerKeys(url) for url in urls]
        sign_in = SignIn(keys, AUDIENCE, rules)
        sign_in.warm_up()
        assert sign_in.user(one.token(groups="admins")).principal == "ops"
        with pytest.raises(Forbidden):
            sign_in.user(two.token(groups="admins"))
        with pytest.raises(InvalidToken):
            sign_in.user(two.token(groups="admins", iss=one.url))  # signed by the wrong one
