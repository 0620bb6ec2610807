"""Configurations of kinds: what of one may be shown, and which addresses none may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from app.alerts.delivery import DeliveryError
from app.errors import Fault
from app.inputs.faults import field_faults
from app.services.alerts.deliveries.deliver import guard

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pydantic import TypeAdapter

    from app.errors import PacelineError
    from app.settings import Settings

PORTS: Final = {"http": 80, "https": 443}
# A user waits for the answer.
LOOK_UP_S: Final = 3.0


def checked(
    of: TypeAdapter[Any],
    secret: Collection[str],
    config: Mapping[str, Any],
    refusal: type[PacelineError],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what may be shown of a configuration, and its secrets.

    Parameters
    ----------
    of : TypeAdapter
        What the kind takes.
    secret : collection of str
        Names of its secrets.
    refusal : type of PacelineError
        What is raised where it is not valid.
    """
    try:
        valid = of.validate_python(dict(config), extra="forbid")
    except ValidationError as error:
        faults = field_faults(error.errors(include_input=False, include_url=False), "config")
        raise refusal("The configuration is not valid.", faults=faults) from None
    document: dict[str, Any] = of.dump_python(valid, mode="json")
    given = {name: value for name, value in document.items() if value not in (None, [])}
    secrets = {name: value for name, value in given.items() if name in secret}
    return {name: value for name, value in given.items() if name not in secrets}, secrets


def refuse_private(
    settings: Settings, config: Mapping[str, Any], refusal: type[PacelineError]
) -> None:
    """Refuse addresses that nothing would be sent to, while the user looks at the form.

    A name that cannot be looked up now passes: it is looked up, and checked, at each attempt.

    Parameters
    ----------
    refusal : type of PacelineError
        What is raised then.
    """
    known = guard(settings)
    faults = []
    for name, value in config.items():
        place = _place(value)
        if place is None:
            continue
        try:
            known.addresses(*place, LOOK_UP_S)
        except DeliveryError as error:
            if error.permanent:
                faults.append(Fault("address_refused", error.sentence, column=f"config.{name}"))
    if faults:
        raise refusal("The address is refused.", faults=tuple(faults))


def _place(value: object) -> tuple[str, int] | None:
    """Return host and port of a value that is an address; whether it is well formed others say."""
    if not isinstance(value, str):
        return None
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        return None
    if url.scheme not in PORTS or url.hostname is None:
        return None
    return url.hostname, port or PORTS[url.scheme]
