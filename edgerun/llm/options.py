"""How to load a model: options, each checked when they are given."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from edgerun import env
from edgerun.backends.base import Progress
from edgerun.engine.drafting.registry import drafter_choices
from edgerun.engine.engine import DEFAULT_CHUNK_ROWS, DEFAULT_PROMPT_ROWS
from edgerun.errors import InputError
from edgerun.kernels.host.cores import worker_threads
from edgerun.llm.compiling import ALWAYS, AUTO, EXACT, FAST, NEVER
from edgerun.model.chat.switches import check_switches
from edgerun.state.codecs import codec_named
from edgerun.state.policies.registry import policy_named
from edgerun.values import Notice, as_int, shown

logger = logging.getLogger(__name__)

MAX_CONTEXT = 1 << 24
MAX_SESSIONS = 1024
LIMITS = {
    "threads": env.MAX_THREADS,
    "context": MAX_CONTEXT,
    "max_sessions": MAX_SESSIONS,
    "chunk_rows": MAX_CONTEXT,
    "prompt_rows": MAX_CONTEXT,
}


def log_progress(text: str) -> None:
    """Where ``progress`` goes unless somebody asks for it: to the log, notices as warnings."""
    logger.log(logging.WARNING if isinstance(text, Notice) else logging.INFO, "%s", text)


class LoadKeywords(TypedDict, total=False):
    """``LoadOptions`` as keyword arguments, for type checkers."""

    backend: str | None
    device: str | None
    place: str | None
    require: str | None
    threads: int | None
    context: int | None
    kv_cache: str
    latent: str
    eviction: str
    max_sessions: int
    chunk_rows: int
    prompt_rows: int
    verify: bool
    pack: str | None
    prefill: str
    attention: str
    expert_memory: int | str | None
    gpu_memory: int | str | None
    expert_trace: str | os.PathLike[str] | None
    share: str
    draft: str
    think: bool | None
    template_values: Mapping[str, Any]
    progress: Progress


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a model.

    Attributes:
        backend: name of the one back-end to use, with others for what it leaves to them; None
            lets the plan choose.
        device: which device the back-end is to use; None for its own choice.
        place: back-ends for parts, ``"prefill=openvino:NPU,decode=cpu"``; None: the plan chooses.
        require: the back-end, with its device, whose failure is an error; None if the CPU may go
            on.
        threads: worker threads; None for one per usable core.
        context: tokens a sequence may have; None for what the model was made for.
        kv_cache: storage of keys and values, ``"fp32"``, ``"fp16"`` or ``"int8"``;
            ``"int4"`` on the back-end ``"reference"``.
        latent: where keys and values of all heads are made of one narrow row a token, as in
            DeepSeek's models, whether that row is cached and attended to: ``"auto"``, by the
            processor, with kv_cache ``"fp16"`` or ``"fp32"`` and exact attention, or ``"never"``.
        eviction: which of the beginnings that are kept for later goes first, ``"lru"``, the one
            unused for longest, or ``"lfu"``, one that was seldom used.
        max_sessions: sequences that can be cached at a time.
        chunk_rows: most tokens of one call; fewer where values are wide or layers see a window;
            more, unless another is chosen, where calls read experts. There a prompt is one call,
            and so many go through a layer at a time.
        prompt_rows: most prompt tokens of a call that replies under way wait for; unless another is
            chosen, all where calls read experts.
        verify: check the digests of the weight files too.
        pack: how ternary weights lie in memory, ``"two_bits"``, or ``"trits"``, which are
            a fifth smaller and slower; None for what the bundle asks for. Results are the same.
        prefill: how calls of over 16 rows multiply, ``"exact"``, or ``"fast"``, by weights of their
            own, int8 with a scale for 128: a byte of memory a weight more, nearly the same results.
        attention: how calls of over 16 rows attend, ``"exact"``, or ``"fast"``, in bfloat16 on
            processors with AMX or AVX512_BF16, with nearly the same results.
        expert_memory: how much of it experts may take, in bytes or as a text: ``"4G"``, ``"512M"``,
            ``"25%"`` of all; others are read from the disk as they are needed. None for as much as
            is free, where they do not all have room.
        gpu_memory: how much of a GPU's memory experts may take, ``"6G"``; None for what is free
            there, less a margin. Only for devices that share layers of experts.
        expert_trace: file of ``edgerun trace``: a device that shares layers of experts begins with
            those that it names most often. None: with as many of each layer.
        share: when a device that was named shares layers of experts, ``"auto"``, where that is
            expected, and then seen, to be faster than the processor alone, or ``"always"``.
        draft: what guesses how a reply goes on, so that several tokens are computed at a time where
            that is seen to be faster: ``"lookup"``, by what the text has said before, or
            ``"none"``; ``"auto"`` is lookup where its back-ends allow it and prompts are computed
            as replies are, not "fast" or elsewhere. No text depends on it.
        think: whether replies of chats begin with thinking, where the chat template has a switch
            for that; None for what it does by itself.
        template_values: what else the chat template is told, ``{"reasoning_effort": "high"}``.
        progress: called with a line of text before slow work.

    Raises:
        InputError: a value is unusable.
    """

    backend: str | None = None
    device: str | None = None
    place: str | None = None
    require: str | None = None
    threads: int | None = None
    context: int | None = None
    kv_cache: str = "fp16"
    latent: str = AUTO
    eviction: str = "lru"
    max_sessions: int = 4
    chunk_rows: int = DEFAULT_CHUNK_ROWS
    prompt_rows: int = DEFAULT_PROMPT_ROWS
    verify: bool = False
    pack: str | None = None
    prefill: str = EXACT
    attention: str = EXACT
    expert_memory: int | str | None = None
    gpu_memory: int | str | None = None
    expert_trace: str | os.PathLike[str] | None = None
    share: str = AUTO
    draft: str = AUTO
    think: bool | None = None
    template_values: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress = field(default=log_progress)

    def __post_init__(self) -> None:
        """Checks every value; NumPy's numbers become Python's."""
        codec_named(self.kv_cache)
        policy_named(self.eviction)
        if self.pack is not None:
            _check_choice("pack", self.pack, env.PACKS)
        _check_choice("prefill", self.prefill, (EXACT, FAST))
        _check_choice("share", self.share, (AUTO, ALWAYS))
        _check_choice("latent", self.latent, (AUTO, NEVER))
        _check_choice("attention", self.attention, (EXACT, FAST))
        _check_choice("draft", self.draft, drafter_choices(self.draft))
        for name in ("backend", "device", "place", "require"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise InputError(f"{name} is {shown(value)}; expected a name, or None")
        if self.place is not None:
            from edgerun.plan.places import Places  # for few, and every start counts

            Places.read(self.place)
            if self.backend or self.device:
                raise InputError(
                    f"place is {shown(self.place)} and a back-end or device is named for "
                    "everything: leave one out"
                )
        self._check_experts()
        for name, high in LIMITS.items():
            value = _whole(name, getattr(self, name), high)
            object.__setattr__(self, name, value)
        worker_threads(self.threads)  # refuses more than there are cores
        if not isinstance(self.verify, bool):
            raise InputError(f"verify is {shown(self.verify)}; expected True or False")
        if not isinstance(self.think, bool | None):
            raise InputError(f"think is {shown(self.think)}; expected True, False or None")
        object.__setattr__(self, "template_values", check_switches(self.template_values))
        if not callable(self.progress):
            raise InputError(f"progress is {shown(self.progress)}; expected a function of a text")

    def _check_experts(self) -> None:
        trace = self.expert_trace
        path = os.fspath(trace) if isinstance(trace, str | os.PathLike) else None
        if trace is not None and not (isinstance(path, str) and path not in ("", ".")):
            raise InputError(f"expert_trace is {shown(trace)}; expected a file's path")
        if self.expert_memory is None and self.gpu_memory is None:
            return
        from edgerun.plan.expert_memory import MemoryAmount, gpu_memory_bytes  # for few

        if self.expert_memory is not None:
            MemoryAmount.read(self.expert_memory)
        if self.gpu_memory is not None:
            object.__setattr__(self, "gpu_memory", gpu_memory_bytes(self.gpu_memory))

    @property
    def named_backend(self) -> str | None:
        """The back-end that runs everything: named here, or by the environment if nothing is."""
        from edgerun.backends.registry import named_backend

        return named_backend(self.backend, self.device or self.place)

    @property
    def worker_threads(self) -> int:
        """Threads to use: asked for here, in the environment, or one per usable core."""
        return worker_threads(self.threads)


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} is {shown(value)}; expected one of {', '.join(choices)}")


def _whole(name: str, value: object, high: int) -> int | None:
    if value is None and name in ("threads", "context"):
        return None
    number = as_int(value)
    if number is None or not 1 <= number <= high:
        raise InputError(f"{name} is {shown(value)}; expected a whole number from 1 to {high}")
    return number
