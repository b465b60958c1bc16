"""Which of several instances a caller gets."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence

from agent_env.hub.records import Instance

_REMEMBERED = 10_000


class Chooser:
    """Spreads callers over instances and keeps each caller where it is.

    Two random candidates and the less loaded of them: nearly as even as always taking the least loaded one, without
    sending everybody to the same instance between two reports of its load (Mitzenmacher 2001, "The Power of Two
    Choices in Randomized Load Balancing").
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._before: OrderedDict[str, str] = OrderedDict()

    def choose(self, instances: Sequence[Instance], key: str | None = None) -> Instance | None:
        """Picks an instance, None from none; a key gets the instance it had, as long as that one is up."""
        if key is not None:
            before = self._before.get(key)
            for instance in instances:
                if instance.id == before and instance.up:
                    self._remember(key, instance)
                    return instance
        chosen = self._pick(instances)
        if key is not None and chosen is not None:
            self._remember(key, chosen)
        return chosen

    def _pick(self, instances: Sequence[Instance]) -> Instance | None:
        up = [instance for instance in instances if instance.up]
        candidates = [instance for instance in up if not instance.full] or up
        candidates = candidates or [instance for instance in instances if instance.state == "suspect"]
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        return min(self._rng.sample(candidates, 2), key=_load)

    def _remember(self, key: str, instance: Instance) -> None:
        self._before[key] = instance.id
        self._before.move_to_end(key)
        if len(self._before) > _REMEMBERED:
            self._before.popitem(last=False)


def _load(instance: Instance) -> float:
    return instance.load / instance.capacity if instance.capacity else float(instance.load)
