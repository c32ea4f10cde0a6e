"""Terms of a helper, from its federation's file."""

from __future__ import annotations

from rmab.errors import FederationError
from rmab.privacy.masks import vector_size
from rmab.protocol.config import Federation
from rmab.service.helper.store import Terms

__all__ = ["terms_of"]


def terms_of(federation: Federation) -> Terms:
    """Return the terms that a federation's helper keeps to; FederationError without a helper."""
    privacy = federation.privacy
    if privacy is None or not federation.masks:
        raise FederationError(
            "a helper needs a federation whose file has the helper's address under [privacy]"
        )
    return Terms(
        federation=federation.name,
        fingerprint=federation.fingerprint(),
        plays=federation.plays,
        counts=federation.shape.size,
        size=vector_size(federation.shape),
        least=privacy.least,
        groups=privacy.groups,
        budget=privacy.budget,
        survey=federation.survey,
        privacy=privacy.to_table(),
        cost_warning=federation.cost_warning,
    )
