"""What calls of a few rows take, as measured, and so how long a draft should be."""

from __future__ import annotations

from collections import deque

MOST_ROWS = 16  # of a program for few
REMEMBERED, FEWEST_MEASURED = 4, 2
ROW_SHARE = 0.1  # of one row's time that another row takes, until it is measured
SAME = 0.02  # of a time: by less than this it has not changed
GAIN = 1.05  # that a draft must promise: what it costs besides was not measured


class Pace:
    """Times of calls of one reply, by their rows.

    Other programs make calls slower, never faster, so the least of the last few counts; and two at
    least, for the first call of a kind may compile something.
    """

    def __init__(self) -> None:
        self._times: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in range(MOST_ROWS + 1)]
        self._least: dict[int, float] = {}  # of those measured often enough, by rows
        self._seconds: list[float] = []  # of calls of 0 to 16 rows; empty where it is out of date

    def add(self, rows: int, seconds: float) -> None:
        """Counts a call, unless it has more rows than a draft may have."""
        if rows > MOST_ROWS:
            return
        times = self._times[rows]
        times.append(seconds)
        least = min(times)
        before = self._least.get(rows, 0.0)
        if len(times) >= FEWEST_MEASURED and abs(least - before) > SAME * before:
            self._least[rows], self._seconds = least, []

    def best(
        self, drafted: int, likelihood: float, rows: int = 1, *, takes_back: bool = True
    ) -> int:
        """Of how many ids a draft should be, of at most ``drafted``: 0 if none pays.

        Args:
            drafted: ids that there are, so many that calls have 16 rows at most.
            likelihood: of each of them to be right if all before it are.
            rows: of the call without any.
            takes_back: whether what was right counts where something was wrong; else its rows are
                computed again, with the next call.
        """
        if 1 not in self._least:
            return 0
        times = self._seconds = self._seconds or self._all()
        best, count, ids, likely = times[rows] / GAIN, 0, 1.0, 1.0
        for number in range(1, drafted + 1):
            likely *= likelihood
            ids += likely
            again = 0.0 if takes_back else (1 - likely) * (times[rows + number] - times[1])
            took = (times[rows + number] + again) / ids  # seconds an id
            if took < best:
                best, count = took, number
        return count

    def _all(self) -> list[float]:
        """Seconds of calls of 0 to 16 rows, those that were not measured between the others."""
        measured = sorted(self._least.items())
        row, seconds = ROW_SHARE * measured[0][1], [0.0]
        for (rows, took), following in zip(measured, [*measured[1:], None], strict=True):
            end, last = following or (MOST_ROWS + 1, took + (MOST_ROWS + 1 - rows) * row)
            step = (last - took) / (end - rows)
            seconds += [took + step * more for more in range(end - rows)]
        return seconds
