"""Where incidents and deliveries stand: the names of states, and the sets that code asks for.

Sets are tuples, as SQL's IN takes.
"""

from __future__ import annotations

from enum import StrEnum, nonmember


class IncidentState(StrEnum):
    """Where an incident stands."""

    PENDING = "pending"
    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"
    SILENCED = "silenced"
    RESOLVED = "resolved"

    # Channels were notified of it, and it is not over.
    TOLD = nonmember((FIRING, ACKNOWLEDGED, SILENCED))


class DeliveryState(StrEnum):
    """Where a delivery stands."""

    WAITING = "waiting"
    SENDING = "sending"
    DELIVERED = "delivered"
    FAILED = "failed"  # given up
    SUPERSEDED = "superseded"  # there is something newer to say, or nothing any more

    UNDERWAY = nonmember((WAITING, SENDING))
    OVER = nonmember((DELIVERED, FAILED, SUPERSEDED))
    # May be sent by hand.
    REPLAYABLE = nonmember((FAILED, WAITING))
