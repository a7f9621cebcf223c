"""Guesses that the last token comes again."""

from edgerun.engine.drafting.base import Draft, Drafter


class Echo(Drafter):
    def draft(self, ids: list[int], most: int) -> Draft | None:
        return Draft([ids[-1]] * most, evidence=0, likelihood=0.99)


DRAFTER = Echo
