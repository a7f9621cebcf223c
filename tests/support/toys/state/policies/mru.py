"""What was left last goes first, which suits who reads the same long list again and again."""

from edgerun.state.policies.base import Policy


class MostRecentlyUsed(Policy):
    def __init__(self) -> None:
        self.idle: list[int] = []

    def __len__(self) -> int:
        return len(self.idle)

    def use(self, entry: int) -> None:
        self.forget(entry)

    def leave(self, entry: int) -> None:
        self.idle.append(entry)

    def forget(self, entry: int) -> None:
        self.idle = [each for each in self.idle if each != entry]

    def victim(self) -> int | None:
        return self.idle[-1] if self.idle else None


POLICY = MostRecentlyUsed
