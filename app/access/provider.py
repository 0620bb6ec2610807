"""Sign-in at an OpenID Connect provider: authorization code with PKCE, state and nonce.

A pending sign-in is a row with the digest of the browser's cookie, and is used once. Authlib and
joserfc build the requests and check the ID token.
"""

from __future__ import annotations

import hmac
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

import httpx
import structlog
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, KeySetSerialization
from pydantic import BaseModel, ValidationError
from sqlalchemy import delete, select

from app.access.models import PendingSignIn
from app.access.sign_ins import SignedIn, sign_in_from_provider
from app.access.tokens import RANDOM_BYTES, digest
from app.errors import SignInError
from app.platform.container import Container
from app.platform.identity import MAX_NAME_CHARACTERS, GroupRole, clipped, roles_of
from app.platform.settings import Settings

# Time limit of a pending sign-in at the provider.
PENDING_LASTS: Final = timedelta(minutes=10)
# Largest number of pending sign-ins, which anyone can begin without authentication. Above it the
# oldest ones are deleted, so that abandoned sign-ins lock no one out.
MOST_PENDING: Final = 10_000
TIMEOUT_S: Final = 10.0
# Time for which the provider's endpoints are cached.
DISCOVERY_LASTS_S: Final = 600.0
# Accepted signature algorithms, all asymmetric: only the provider has the private key.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
LEEWAY_S: Final = 60

_log = structlog.get_logger(__name__)


class _Discovery(BaseModel):
    """The fields of ``/.well-known/openid-configuration`` that sign-ins need."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


@dataclass(frozen=True, slots=True)
class Begun:
    """A pending sign-in: cookie for the browser, and the provider's address for the redirect."""

    cookie: str
    url: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A successful sign-in, and the path of the page on which it began."""

    signed_in: SignedIn
    next_path: str


class Provider:
    """The OpenID Connect provider of the settings.

    Parameters
    ----------
    container : Container
    """

    def __init__(self, container: Container) -> None:
        self._container = container.everywhere()
        self._settings: Settings = container.settings
        self._discovered: tuple[float, _Discovery] | None = None

    def begin(self, next_path: str, redirect_uri: str) -> Begun:
        """Store a pending sign-in and return the address of the provider.

        Raises
        ------
        SignInError
            The provider does not answer as OpenID Connect requires.
        """
        discovery = self._discovery()
        cookie, state, nonce, verifier = (secrets.token_urlsafe(RANDOM_BYTES) for _ in range(4))
        with self._container.uow() as tx:
            tx.session.execute(delete(PendingSignIn).where(PendingSignIn.expires_at < tx.now))
            too_old = (
                select(PendingSignIn.sha256)
                .order_by(PendingSignIn.expires_at.desc())
                .offset(MOST_PENDING - 1)
            )
            tx.session.execute(delete(PendingSignIn).where(PendingSignIn.sha256.in_(too_old)))
            tx.session.add(
                PendingSignIn(
                    sha256=digest(cookie),
                    state=state,
                    nonce=nonce,
                    code_verifier=verifier,
                    next_path=next_path,
                    expires_at=tx.now + PENDING_LASTS,
                )
            )
        url = prepare_grant_uri(
            discovery.authorization_endpoint,
            client_id=self._settings.oidc_client_id,
            response_type="code",
            redirect_uri=redirect_uri,
            scope=self._settings.oidc_scopes,
            state=state,
            nonce=nonce,
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
        )
        return Begun(cookie, url)

    def finish(self, cookie: str, state: str, code: str, redirect_uri: str) -> Finished:
        """Complete the sign-in of a user whom the provider has redirected back.

        Raises
        ------
        SignInError
            Another browser began the sign-in, it took too long, or the provider's answer is
            invalid.
        """
        with self._container.uow() as tx:
            row = tx.session.execute(
                delete(PendingSignIn)
                .where(PendingSignIn.sha256 == digest(cookie), PendingSignIn.expires_at > tx.now)
                .returning(PendingSignIn)
            ).scalar_one_or_none()
        if row is None or not hmac.compare_digest(row.state.encode(), state.encode()):
            raise SignInError("This sign-in is over or began in another browser; begin once more.")
        claims = self._claims(code, row.code_verifier, row.nonce, redirect_uri)
        groups = claims.get(self._settings.oidc_groups_claim) or ()
        group_roles = [GroupRole.parse(text) for text in self._settings.oidc_roles]
        roles = roles_of([groups] if isinstance(groups, str) else groups, group_roles)
        name = next(
            (claims[key] for key in ("preferred_username", "email", "name") if claims.get(key)),
            claims["sub"],
        )
        name = clipped(str(name), MAX_NAME_CHARACTERS)
        if not roles:
            raise SignInError(f"{name} has no role here: none of their groups has one.")
        signed_in = sign_in_from_provider(
            self._container, issuer=claims["iss"], subject=claims["sub"], name=name, roles=roles
        )
        return Finished(signed_in, row.next_path)

    def _claims(
        self, code: str, code_verifier: str, nonce: str, redirect_uri: str
    ) -> dict[str, Any]:
        """Exchange the code for an ID token and return its validated claims."""
        discovery = self._discovery()
        secret = self._settings.oidc_client_secret
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": code_verifier,
            "client_id": self._settings.oidc_client_id,
        }
        # The client's secret is sent by HTTP basic authentication, which every provider accepts.
        auth = None
        if secret is not None:
            auth = httpx.BasicAuth(self._settings.oidc_client_id, secret.get_secret_value())
        answer = self._ask("POST", discovery.token_endpoint, data=fields, auth=auth)
        keys = cast("KeySetSerialization", self._ask("GET", discovery.jwks_uri))
        try:
            token = jwt.decode(
                answer["id_token"], KeySet.import_key_set(keys), algorithms=list(ALGORITHMS)
            )
            claims = CodeIDToken(
                token.claims,
                token.header,
                {"iss": {"values": [discovery.issuer]}},
                {"nonce": nonce, "client_id": self._settings.oidc_client_id},
            )
            claims.validate(leeway=LEEWAY_S)
        except (JoseError, KeyError, ValueError) as error:
            _log.warning("sign-in refused", error=f"{type(error).__name__}: {error}")
            raise SignInError("The provider's answer is not one to us.") from error
        audience = token.claims.get("aud", [])
        clients = [audience] if isinstance(audience, str) else list(audience)
        if self._settings.oidc_client_id not in clients:
            raise SignInError("The provider's answer is for another client.")
        return dict(token.claims)

    def _discovery(self) -> _Discovery:
        if self._discovered is not None and self._discovered[0] > time.monotonic():
            return self._discovered[1]
        issuer = (self._settings.oidc_issuer or "").rstrip("/")
        document = self._ask("GET", f"{issuer}/.well-known/openid-configuration")
        try:
            discovery = _Discovery.model_validate(document)
        except ValidationError as error:
            raise SignInError(f"{issuer} does not say how to sign in.") from error
        if discovery.issuer.rstrip("/") != issuer:
            raise SignInError(f"{issuer} says that it is {discovery.issuer}.")
        self._discovered = time.monotonic() + DISCOVERY_LASTS_S, discovery
        return discovery

    def _ask(self, method: str, url: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - of httpx
        try:
            with httpx.Client(timeout=TIMEOUT_S) as client:
                answer = client.request(method, url, **options)
            answer.raise_for_status()
            document = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            _log.warning("provider does not answer", url=url, error=str(error))
            raise SignInError("The provider does not answer; try again in a while.") from error
        if not isinstance(document, dict):
            raise SignInError("The provider did not answer as OpenID Connect requires.")
        return document
