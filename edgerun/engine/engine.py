"""Ids in, ids out: one loop for one prompt, many prompts, chat turns and scores."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from collections.abc import Sequence as Sequence_
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.call import are_cancelled, batch_of, logits_of
from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.drafting.drafting import Drafting
from edgerun.engine.drafting.pace import MOST_ROWS
from edgerun.engine.prompts import check_length, check_vocabulary
from edgerun.engine.queue import Queue
from edgerun.engine.readers import Readers
from edgerun.engine.scheduler import Limits, Part
from edgerun.engine.sequence import Ending, Scoring, Sequence, Token
from edgerun.engine.slots import take_back
from edgerun.engine.stats import Stats
from edgerun.errors import Full, InputError, PromptError
from edgerun.machine.devices import USUAL_ROWS
from edgerun.plan.programs import Programs
from edgerun.state import Room, SequenceStore, TakeLogits
from edgerun.state.capacity import largest_call

DEFAULT_CHUNK_ROWS = USUAL_ROWS
DEFAULT_PROMPT_ROWS = 64


class Engine:
    """Runs one model for any number of sequences, and of threads that read them.

    There is no thread of its own: a reader whose token has not come makes a step, which computes
    the next tokens of all sequences, while it holds the lock of the store; who waited for the lock
    meanwhile finds its token there. A sequence whose reader stays away runs a few tokens ahead and
    then pauses. What a sequence gets does not depend on the others: an error of its own, a reader
    that goes away and a Ctrl-C in whichever thread end that thread's sequence and no other.

    Attributes:
        vocab_size: ids are below this.
        eos_ids: ids that end a reply.
        limits: how large a call may be.
        readers: who will come for tokens.
    """

    def __init__(
        self,
        programs: Programs,
        store: SequenceStore,
        vocab_size: int,
        eos_ids: Sequence_[int] = (),
        chunk_rows: int = DEFAULT_CHUNK_ROWS,
        prompt_rows: int = DEFAULT_PROMPT_ROWS,
        drafting: Drafting | None = None,
    ) -> None:
        """Takes the compiled programs of a model, and a store in which nobody else opens slots.

        Args:
            programs: of the model.
            store: for its states.
            vocab_size: ids are below this.
            eos_ids: ids that end a reply.
            chunk_rows: most rows of a call whose logits are wanted.
            prompt_rows: most of them that are a prompt's, if replies run too.
            drafting: guesses what replies go on with. It has no say where programs have other bits
                for several rows.

        Raises:
            InputError: ``chunk_rows`` or ``prompt_rows`` is not positive.
        """
        if min(chunk_rows, prompt_rows) < 1:
            raise InputError(
                f"calls of {chunk_rows} rows, {prompt_rows} of them a prompt's; expected at least 1"
            )
        self._programs: Programs | None = None
        self._store = store
        self._queue = Queue(store)
        self._drafting = drafting
        self._interrupted = False
        self.readers = Readers()
        self._computes_in = 0  # process, while it does: a forked child has no part in that
        self.vocab_size = vocab_size
        self.eos_ids = frozenset(eos_ids)
        self.limits = Limits(chunk_rows, prompt_rows)
        self._use(programs)

    def sequence(
        self, prompt: Sequence_[int], params: SamplingParams, stats: Stats | None = None
    ) -> Sequence:
        """Makes a sequence of a prompt, which nothing is done for before ``add``.

        Args:
            prompt: the whole conversation so far, at least one id.
            params: sampling and limits.
            stats: filled in along the way.

        Raises:
            PromptError: the prompt is empty, holds an id outside the vocabulary, or leaves no room
                for one token.
            SamplingError: a stop id lies outside the vocabulary, or a processor refuses what it is
                asked.
            InputError: the engine was closed.
        """
        self._check_open()
        check_length(prompt, self._store.context)
        self._check_ids(prompt)
        params.check_stops(self.vocab_size)
        ids = [int(id_) for id_ in prompt]
        length = min(self._store.context, len(ids) + (params.max_tokens or self._store.context))
        stops = frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else self.eos_ids)
        limited = length - len(ids) == params.max_tokens
        ending = Ending(length, "length" if limited else "context", stops)
        chooser = Chooser(params, ids, self.vocab_size, stop_ids=stops)
        return Sequence(ids, ending, chooser, stats, params.logprobs)

    def add(self, sequence: Sequence) -> None:
        """Lets a sequence take part in the steps until it has ended or is cancelled; once."""
        page_tokens = self._queue.first_room.page_tokens
        if page_tokens and self._queue.sequences and not sequence.is_added:
            sequence.beginning.keys(page_tokens)  # which all would wait for in a step
        self._store.lock.run(self._queue.add, sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Ends a sequence, whose slot the next step takes back; needs no lock, ever."""
        sequence.cancelled = True

    def forget(self, sequence: Sequence) -> None:
        """Cancels a sequence, or gives up the slot of one that has ended."""
        sequence.cancelled, sequence.is_retained = True, False
        self._store.lock.run(self._take_back, sequence)

    def _take_back(self, sequence: Sequence) -> None:
        """Takes a slot back, unless this thread is in a step: the next one does, or the store."""
        if not self._is_computing:
            take_back(sequence)

    def tokens(self, sequence: Sequence) -> Generator[Token, None, None]:
        """Adds a sequence and yields its tokens; closing the iterator cancels it.

        Raises:
            BackendError: the model computed NaN, or failed.
            InputError: the engine was closed.
        """
        self.add(sequence)
        try:
            while True:
                is_ended = sequence.is_ended  # before looking, for it may end meanwhile
                token = sequence.take()
                if token is not None:
                    yield token
                elif sequence.error is not None:
                    raise sequence.error
                elif is_ended:
                    return
                else:
                    self.wait([sequence])
        finally:
            self.cancel(sequence)

    def logits(
        self, ids: Sequence_[int], take: TakeLogits | None = None
    ) -> Generator[NDArray[np.float32], None, None]:
        """Yields the logits of every row of a text, block by block, each float32 ``[rows, vocab]``.

        Or nothing, and ``take`` gets them: where experts are read, of a text in one call.

        Raises:
            PromptError: an id is outside the vocabulary, or memory cannot hold so many.
            InputError: the engine was closed.
            BackendError: the model failed.
            Full: memory was gone all the same.
        """
        self._check_open()
        self._check_ids(ids)
        return self._logits(Scoring(list(ids), take))

    def _logits(self, scoring: Scoring) -> Generator[NDArray[np.float32], None, None]:
        self.add(scoring)
        try:
            while not scoring.is_ended:
                self.wait([scoring])
                block = self._store.lock.run(scoring.take_block)
                if block is not None:
                    yield block
            if scoring.error is not None:
                raise scoring.error
            if scoring.is_starved:
                raise Full("no memory is left for the keys and values of a text: score less of it")
        finally:
            self.cancel(scoring)

    def wait(self, sequences: Sequence_[Sequence]) -> list[Sequence]:
        """Returns those whose readers need not wait, at least one; makes steps until there is one.

        Raises:
            InputError: the engine was closed.
        """
        while not (ready := self.advance(sequences)):
            pass
        return ready

    def advance(self, sequences: Sequence_[Sequence]) -> list[Sequence]:
        """Like ``wait``, but makes at most one step: there may be none whose reader need not wait.

        Raises:
            InputError: the engine was closed.
        """
        thread = threading.get_ident()
        self.readers.begin(thread, sequences)
        try:
            return self._store.lock.run(self._step_for, sequences)
        finally:
            self.readers.end(thread)

    def _step_for(self, sequences: Sequence_[Sequence]) -> list[Sequence]:
        """Makes a step, if no other thread's came first; those whose readers need not wait."""
        if ready := [sequence for sequence in sequences if sequence.is_ready]:
            return ready
        if self.readers.let_others_read():
            return []
        self.step()
        return [sequence for sequence in sequences if sequence.is_ready]

    def step(self) -> list[Sequence]:
        """One call of the model, for the thread that holds the store's lock.

        Returns:
            sequences for whose readers something came: a token, logits or an error.

        Raises:
            InputError: the engine was closed, or a function that it calls wants a step.
        """
        self.check_ready()
        try:
            self._computes_in = os.getpid()  # before anything that a handler of a signal may meet
            if self._interrupted:
                self._queue.recover()
            self._interrupted = True
            parts = self._queue.parts(self.limits)
            self._draft(parts)
            advanced = self._compute(parts)
            self._interrupted = False
        finally:
            self._computes_in = 0
        return advanced

    def room(self) -> Room:
        """What the store has for sequences to come."""
        return self._store.lock.run(lambda: self._queue.room(retires=not self._is_computing))

    def check_ready(self) -> Programs:
        """Makes sure that a call could be made now; returns its programs.

        For the thread that holds the store's lock.

        Raises:
            InputError: the engine was closed, or a function that it calls asks.
        """
        self._check_idle()
        return self._check_open()

    def replace(self, programs: Programs) -> None:
        """Takes other programs of the same model, from the next call on; closes those it had.

        For the thread that holds the store's lock.

        Raises:
            InputError: see ``check_ready``; the others are not taken.
        """
        before = self.check_ready()
        self._use(programs)
        before.close()

    def close(self) -> None:
        """Releases the programs; calling it twice is allowed, but not in a call."""
        self._check_idle()
        programs, self._programs = self._programs, None
        if programs is not None:
            programs.close()

    def _use(self, programs: Programs) -> None:
        """Takes programs; a prompt is one call of such as go layer by layer."""
        # Memory was set aside for a context's rows between layers, not for those of many prompts.
        store = self._store
        rows = min(largest_call(store.states), store.context) if programs.is_layered else 0
        self._programs, self.limits = programs, replace(self.limits, call_rows=rows)

    def _check_ids(self, ids: Sequence_[int]) -> None:
        """Makes sure that all ids, of which there is one at least, can be computed.

        Raises:
            PromptError: one is outside the vocabulary, or memory cannot hold so many.
        """
        check_vocabulary(ids, self.vocab_size)
        room = self._queue.first_room
        if room.pages_for(0, len(ids)) > room.pages:
            raise PromptError(
                f"the prompt has {len(ids)} tokens and memory has room for "
                f"{room.pages * room.page_tokens}: shorten it, or load the model with a smaller "
                "type of kv_cache"
            )

    def _draft(self, parts: list[Part]) -> None:
        """Lets a reply that is alone in a call be drafted: beside others, rows cost more."""
        programs = self._check_open()
        if self._drafting and len(parts) == 1 and programs.has_rows_alike:
            room = min(self._queue.spare_tokens(parts[0]), self.limits.chunk_rows - parts[0].rows)
            self._drafting.draft(*parts[0], room)
            if parts[0].sequence.drafted:  # more will follow; short prompts alone need none
                programs.expect(MOST_ROWS)

    def _compute(self, parts: list[Part]) -> list[Sequence]:
        """Runs parts in one call; one that fails is repeated part by part, to find whose it is.

        A draft that it had is dropped then: its ids may be what fails.
        """
        if not parts:
            return []
        began = time.perf_counter()
        batch, bounds = batch_of(parts)
        try:
            logits = logits_of(self._check_open(), batch, self._store, self.vocab_size)
        except Exception as error:
            if are_cancelled(parts):
                return [part.sequence for part in parts]
            if len(parts) > 1:
                return [sequence for part in parts for sequence in self._compute([part])]
            if parts[0].sequence.drafted:
                parts[0].sequence.drafted = ()
                return self._compute(parts)
            parts[0].sequence.error = error
            return [parts[0].sequence]
        seconds = time.perf_counter() - began
        if self._drafting and len(parts) == 1 and parts[0].sequence.is_reply:
            self._drafting.pace.add(batch.rows, seconds)
        for part, begin, end in zip(parts, bounds, bounds[1:], strict=False):
            self._commit(part, logits[begin:end], seconds)
        return [part.sequence for part in parts if part.sequence.is_ready]

    def _commit(self, part: Part, logits: NDArray[np.float32], seconds: float) -> None:
        """Takes what a call computed of a sequence."""
        sequence, stats = part.sequence, part.sequence.stats
        if not sequence.is_reply:
            stats.prefill_s += seconds
            stats.read_tokens = sequence.cached + part.rows
        elif len(logits):
            stats.decode_steps += 1
        length, drafted = sequence.cached + part.rows, len(sequence.drafted)
        if len(logits):
            try:
                right = sequence.receive(logits)
            except Exception as error:  # its chooser's, and nobody else's
                sequence.error = error
                return  # before anybody finds what led to it
            if right < drafted and self._drafting and not self._drafting.takes_back:
                return  # what was right is computed again with what follows
            length += right
        assert sequence.lease is not None
        self._store.commit(sequence.lease.slot, length, sequence.ids)
        if length == sequence.prompt_tokens:  # behind which a next turn may go on otherwise
            self._store.checkpoint(sequence.lease.slot)
        sequence.cached = length

    def _check_open(self) -> Programs:
        if self._programs is None:
            raise InputError("this model is closed: load it again")
        return self._programs

    @property
    def _is_computing(self) -> bool:
        """Whether the thread that holds the store's lock, and asks, is in the middle of a step."""
        return self._computes_in == os.getpid()

    def _check_idle(self) -> None:
        """Makes sure that no call is under way: its buffers and sequences are in use."""
        if self._is_computing:
            raise InputError(
                "a function that the model calls while it computes uses the model itself: keep "
                "there what you need, and use the model when the call has returned"
            )
