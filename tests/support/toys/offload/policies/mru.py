"""The expert that was used last leaves first."""

from edgerun.offload.policies.base import Entry, Rank
from edgerun.offload.policies.lru import LeastRecentlyUsed


class MostRecentlyUsed(LeastRecentlyUsed):
    def rank(self, entry: Entry) -> Rank:
        return (-super().rank(entry)[0],)


POLICY = MostRecentlyUsed
