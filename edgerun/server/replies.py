"""Replies under way: how many there may be, and who waits for what comes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from edgerun.errors import BackendError, InputError
from edgerun.llm.pump import Piece, Pump
from edgerun.llm.replies.completion import Completion, Part
from edgerun.llm.replies.stream import TextStream
from edgerun.server.encoding.lanes import Lanes
from edgerun.server.encoding.shapes import Shape
from edgerun.server.problems import Problem, problem_with, stopping

if TYPE_CHECKING:
    from edgerun.llm.llm import LLM
    from edgerun.server.metrics import Metrics

T = TypeVar("T")

MOST_FORM_BYTES = 8 << 20  # of texts of forms; in memory a short one may be 30 MB
LONGEST_RETRY_S = 60


class Came(NamedTuple):
    """What came of a reply.

    Attributes:
        choice: which reply of those that were asked for together.
        part: what is new.
        tokens: how many ids it has by now.
        is_last: whether nothing more will come.
    """

    choice: int
    part: Part
    tokens: int
    is_last: bool


class Group:
    """Replies that were asked for together, read by one coroutine.

    Attributes:
        completions: as far as they came.
        running: how many of them have not ended.
        shape: the form that they follow.
    """

    def __init__(
        self, streams: list[TextStream], sent: Mapping[str, str], shape: Shape | None
    ) -> None:
        """Takes streams that a pump reads, the fields of arguments that were sent, and a form."""
        self._streams, self._sent, self.shape = streams, sent, shape
        self._choices = {stream: index for index, stream in enumerate(streams)}
        self._came: asyncio.Queue[Came] = asyncio.Queue()
        self.completions: list[Completion] = [stream.completion for stream in streams]
        self.running = len(streams)
        self.is_stopped = False

    async def pieces(self) -> AsyncIterator[Came]:
        """What comes, of all of them, until the last is whole.

        Raises:
            Problem: a reply failed, or the server was stopped.
        """
        left = len(self._streams)
        while left:
            came = await self._came.get()
            completion = self.completions[came.choice]
            if came.is_last:
                left -= 1
                if completion.error is not None:
                    failure = problem_with(completion.error, self._sent)
                    raise failure from completion.error
                if completion.finish_reason == "cancelled":
                    raise stopping() if self.is_stopped else BackendError("the reply was cancelled")
            yield came

    def put(self, piece: Piece) -> None:
        """Takes what the pump read."""
        choice = self._choices[piece.stream]
        self._came.put_nowait(Came(choice, piece.part, piece.tokens, piece.is_last))


class Replies:
    """All replies of a server; for the thread of its event loop.

    Attributes:
        under_way: replies that run or wait.
        most: how many there may be.
    """

    def __init__(self, llm: LLM, queue: int, metrics: Metrics) -> None:
        """Starts to serve a model, in a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._pump = Pump(llm, self._deliver)
        self._lanes: Lanes[Any] = Lanes()
        self._groups: dict[TextStream, Group] = {}
        self._metrics = metrics
        self._at_a_time = llm.model.options.max_sessions
        self._mean_s = 1.0
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._form_bytes = 0
        self.under_way = 0
        self.most = self._at_a_time + queue

    @property
    def is_stopped(self) -> bool:
        """Whether no more are taken, and those under way were told to end."""
        return self._stopped.done()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for what a reply needs, which may be long in coming, as long as there may be one.

        Raises:
            Problem: the server was stopped meanwhile.
            Exception: what the work failed of.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._stopped), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise stopping()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def open(
        self,
        make: Callable[[], list[TextStream]],
        count: int,
        sent: Mapping[str, str],
        shape: Shape | None = None,
    ) -> AsyncIterator[Group]:
        """Has replies run as long as the block lasts.

        Args:
            make: encodes prompts, in another thread.
            count: how many streams it makes.
            sent: the fields of the arguments that were sent.
            shape: the form that they follow.

        Raises:
            Problem: there are too many replies under way, or too many forms, the server is being
                stopped, or a prompt or an option is unusable.
        """
        self._admit(count, shape)
        try:
            streams = await self._lanes.run(make, self._check_running, shape)
            self._pump.add(streams)
        except BaseException as error:
            self._leave(count, shape)
            if isinstance(error, InputError):
                raise problem_with(error, sent) from error
            raise
        group = Group(streams, sent, shape)
        self._groups.update(dict.fromkeys(streams, group))  # before their pieces can come here
        try:
            yield group
        finally:
            for stream in streams:
                self._pump.cancel(stream)

    def stop(self) -> None:
        """Ends all replies, whose callers are told so, and takes no more."""
        for stream, group in self._groups.items():
            group.is_stopped = True
            self._pump.cancel(stream)
        if not self.is_stopped:
            self._stopped.set_result(None)

    async def close(self) -> None:
        """Ends the threads, once all callers are gone."""
        self.stop()
        await self._loop.run_in_executor(None, self._pump.close)
        self._lanes.close()

    async def counted(self, count: Callable[[], int]) -> int:
        """Has a thread count the tokens of a prompt, which takes a place among replies meanwhile.

        Raises:
            Problem: there are too many replies under way, or the server was stopped meanwhile.
            Exception: what encoding failed of.
        """
        self._admit(1, None)
        try:
            return await self._lanes.count(count, self._check_running)
        finally:
            self._leave(1, None)

    def _check_running(self) -> None:
        if self.is_stopped:
            raise stopping()

    def _admit(self, count: int, shape: Shape | None) -> None:
        self._check_running()
        if count > self.most:
            raise Problem(
                400,
                f"{count} replies are asked for at once; at most {self.most} fit here",
                "too_many_replies",
            )
        if self.under_way + count > self.most:
            self._refuse(f"{self.under_way} replies run or wait, and at most {self.most} may")
        form_bytes = 0 if shape is None else shape.size_bytes
        if self._form_bytes + form_bytes > MOST_FORM_BYTES:
            self._refuse(
                f"replies that run or wait follow schemas and grammars of {self._form_bytes} bytes,"
                f" {form_bytes} more are asked for, and there may be {MOST_FORM_BYTES}"
            )
        self._form_bytes += form_bytes
        self.under_way += count
        self._metrics.under_way.set(self.under_way)

    def _refuse(self, reason: str) -> NoReturn:
        self._metrics.refused.inc()
        wait = ceil(self._mean_s * max(1, self.under_way / self._at_a_time) / 2)
        raise Problem(
            429,
            f"{reason}: try again later",
            "too_many_replies",
            headers={"Retry-After": str(min(max(1, wait), LONGEST_RETRY_S))},
        )

    def _leave(self, count: int, shape: Shape | None) -> None:
        self._form_bytes -= 0 if shape is None else shape.size_bytes
        self.under_way -= count
        self._metrics.under_way.set(self.under_way)

    def _deliver(self, pieces: list[Piece]) -> None:
        """In the pump's thread."""
        self._loop.call_soon_threadsafe(self._dispatch, pieces)

    def _dispatch(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            group = self._groups[piece.stream]
            group.put(piece)
            if piece.is_last:
                del self._groups[piece.stream]
                group.running -= 1
                self._leave(1, None if group.running else group.shape)
                self._count(piece.stream.completion)

    def _count(self, completion: Completion) -> None:
        self._metrics.count(completion)
        seconds = completion.stats.first_token_s + completion.stats.decode_s
        self._mean_s += 0.1 * (seconds - self._mean_s)
