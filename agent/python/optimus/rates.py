"""Which learning rate a job trains with, for the fit of its loss: see :class:`RateWatch`."""

from __future__ import annotations

from typing import Any, Optional, Tuple

# A rate that has held for this many steps is one of a schedule in steps. One that moves
# with every step (a warm-up, a cosine) is never told: the loss shows it well enough.
LASTING_STEPS = 20


class RateWatch:
    """Tells a learning rate once, when it has lasted."""

    def __init__(self) -> None:
        self._rate: Optional[float] = None
        self._since = 0
        self._told: Optional[float] = None

    def note(self, step: int, rate: Optional[float]) -> Optional[Tuple[int, float]]:
        """After a step with ``rate`` (None where it is not known).

        Returns the first step with the rate, and the rate, where that is news.
        """
        if rate is None:
            return None
        if rate != self._rate:
            self._rate, self._since = rate, step
        if rate == self._told or step - self._since + 1 < LASTING_STEPS:
            return None
        self._told = rate
        return self._since, rate


def rate_of(optimizer: Any) -> Optional[float]:
    """The rate that was set on an optimizer.

    None where it has none, or follows a schedule of its own: that one runs on the servers.
    """
    if getattr(optimizer, "lr_scheduler", None) is not None:
        return None
    try:
        return float(optimizer.lr)
    except (AttributeError, TypeError, ValueError):
        return None
