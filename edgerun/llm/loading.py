"""From a path to a model ready to run: the seam between the API and what lies below."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from edgerun import env
from edgerun.backends.base import Backend, Progress
from edgerun.engine.chooser.processor import processor_types
from edgerun.engine.engine import DEFAULT_CHUNK_ROWS, DEFAULT_PROMPT_ROWS
from edgerun.errors import BundleError, InputError
from edgerun.formats.stack import ExpertStack
from edgerun.kernels.host.cores import worker_threads
from edgerun.kernels.host.memory import available_memory
from edgerun.kernels.isa import selected_isa
from edgerun.llm.compiling import EXACT, FAST, compile_bundle
from edgerun.model.bundle import Bundle, open_bundle
from edgerun.model.chat.template import ChatTemplate, template_source
from edgerun.model.config import eos_ids, read_json_object, sampling_defaults
from edgerun.model.text.sandboxed_library import SandboxedLibrary
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.plan.programs import Programs
from edgerun.plan.states import states_of
from edgerun.plan.workload import Workload, affordable_rows, workload
from edgerun.state import State
from edgerun.state.capacity import (
    affordable_context,
    check_context,
    largest_call,
    sequence_bytes,
)
from edgerun.state.codecs import codec_named
from edgerun.state.memory import Memory
from edgerun.state.policies.registry import policy_named
from edgerun.values import as_int, shown

if TYPE_CHECKING:
    from edgerun.plan.expert_memory import ExpertBudget

logger = logging.getLogger(__name__)

MAX_CONTEXT = 1 << 24
MAX_SESSIONS = 1024
MIN_CONTEXT = 512
LIMITS = {
    "threads": env.MAX_THREADS,
    "context": MAX_CONTEXT,
    "max_sessions": MAX_SESSIONS,
    "chunk_rows": MAX_CONTEXT,
    "prompt_rows": MAX_CONTEXT,
}
STREAMED_CHUNK_ROWS = 1024
CACHE_SHARE = 0.5  # of the free memory, for one full context
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"


class LoadKeywords(TypedDict, total=False):
    """``LoadOptions`` as keyword arguments, for type checkers."""

    backend: str | None
    device: str | None
    place: str | None
    require: str | None
    threads: int | None
    context: int | None
    kv_cache: str
    eviction: str
    max_sessions: int
    chunk_rows: int
    prompt_rows: int
    verify: bool
    pack: str | None
    prefill: str
    expert_memory: int | str | None
    gpu_memory: int | str | None
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
        eviction: which of the beginnings that are kept for later goes first, ``"lru"``, the one
            unused for longest, or ``"lfu"``, one that was seldom used.
        max_sessions: sequences that can be cached at a time.
        chunk_rows: most tokens of one call; fewer where values are wide or layers see a window;
            more, unless another is chosen, where calls read experts or tiles multiply.
        prompt_rows: most prompt tokens of a call that replies under way wait for.
        verify: check the digests of the weight files too.
        pack: how ternary weights lie in memory, ``"two_bits"``, or ``"trits"``, which are
            a fifth smaller and slower; None for what the bundle asks for. Results are the same.
        prefill: how calls of over 16 rows multiply, ``"exact"``, or ``"fast"``, by weights of their
            own, int8 with a scale for 128: a byte of memory a weight more, nearly the same results.
        expert_memory: how much of it experts may take, in bytes or as a text: ``"4G"``, ``"512M"``,
            ``"25%"`` of all; others are read from the disk as they are needed. None for as much as
            is free, where they do not all have room.
        gpu_memory: how much of a GPU's memory experts may take, ``"6G"``; None for what is free
            there, less a margin. Only for devices that share layers of experts.
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
    eviction: str = "lru"
    max_sessions: int = 4
    chunk_rows: int = DEFAULT_CHUNK_ROWS
    prompt_rows: int = DEFAULT_PROMPT_ROWS
    verify: bool = False
    pack: str | None = None
    prefill: str = EXACT
    expert_memory: int | str | None = None
    gpu_memory: int | str | None = None
    progress: Progress = field(default=lambda text: logger.info(text))

    def __post_init__(self) -> None:
        """Checks every value; NumPy's numbers become Python's."""
        codec_named(self.kv_cache)
        policy_named(self.eviction)
        if self.pack is not None:
            _check_choice("pack", self.pack, env.PACKS)
        _check_choice("prefill", self.prefill, (EXACT, FAST))
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
        if self.expert_memory is not None or self.gpu_memory is not None:
            self._check_memory()
        for name, high in LIMITS.items():
            value = _whole(name, getattr(self, name), high)
            object.__setattr__(self, name, value)
        worker_threads(self.threads)  # refuses more than there are cores
        if not isinstance(self.verify, bool):
            raise InputError(f"verify is {shown(self.verify)}; expected True or False")
        if not callable(self.progress):
            raise InputError(f"progress is {shown(self.progress)}; expected a function of a text")

    def _check_memory(self) -> None:
        from edgerun.plan.expert_memory import MemoryAmount, gpu_memory_bytes  # for few

        if self.expert_memory is not None:
            MemoryAmount.read(self.expert_memory)
        if self.gpu_memory is not None:
            object.__setattr__(self, "gpu_memory", gpu_memory_bytes(self.gpu_memory))

    @property
    def worker_threads(self) -> int:
        """Threads to use: asked for here, in the environment, or one per usable core."""
        return worker_threads(self.threads)


@dataclass(slots=True)
class Model:
    """All that is needed to generate text.

    Attributes:
        path: the bundle.
        tokenizer: text to ids and back.
        template: chat template.
        programs: what runs batches.
        states: what the model's layers remember.
        context: tokens a sequence may have.
        vocab_size: width of the logits.
        eos_ids: ids that end a reply.
        sampling_defaults: what the model recommends.
        chunk_rows: most tokens of one call.
        weight_bytes: bytes of weights that a decode step reads.
        threads: worker threads.
        backends: those in use.
        everyone: those, and back-ends that stand in for them.
        workload: how much there is to multiply.
        owned: closes the back-ends; to be done after the programs are closed.
        bundle: from which it was made.
        options: with which.
        experts: memory that they share, where not all of them have room.
    """

    path: Path
    tokenizer: Tokenizer
    template: ChatTemplate
    programs: Programs
    states: tuple[State, ...]
    context: int
    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    chunk_rows: int = DEFAULT_CHUNK_ROWS
    weight_bytes: int = 0
    threads: int = 1
    backends: tuple[Backend, ...] = ()
    everyone: tuple[Backend, ...] = ()
    workload: Workload = field(default_factory=Workload)
    owned: ExitStack = field(default_factory=ExitStack)
    bundle: Bundle | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    experts: ExpertBudget | None = None

    @property
    def digest(self) -> str:
        """Identifies the bundle's content; see ``Bundle.digest``."""
        return self.bundle.digest if self.bundle else ""


def resolve(path: str | Path | None) -> Path:
    """Returns the folder of a bundle; None is the model that comes with edgerun.

    Raises:
        BundleError: no model comes with this installation.
    """
    if path is not None:
        return Path(path)
    folder = own_model()
    if folder is None:
        raise BundleError(
            "no default model comes with this installation: name a bundle, "
            "for example one made with `edgerun export`"
        )
    return folder


def own_model() -> Path | None:
    """The folder of the model that comes with edgerun, if one does."""
    package = Path(__file__).parents[1]
    candidates = (package / "_default_model", package.parent / "models" / "default" / "bundle")
    return next((candidate for candidate in candidates if candidate.is_dir()), None)


def is_own_model(path: Path) -> bool:
    """Whether a folder is the model that comes with edgerun."""
    own = own_model()
    return own is not None and path.resolve() == own.resolve()


def prepare(path: str | Path | None, options: LoadOptions) -> Model:
    """Opens a bundle, plans it and compiles it.

    Raises:
        BundleError: the bundle is missing, broken or altered.
        UnsupportedError: no back-end runs it.
        BackendError: a back-end failed to compile it.
    """
    if path is not None:
        SandboxedLibrary.prepare()
    return prepare_bundle(open_bundle(resolve(path), verify=options.verify), options)


def prepare_bundle(bundle: Bundle, options: LoadOptions) -> Model:
    """Plans and compiles a bundle; see ``prepare``."""
    config = bundle.config
    texts = {name: _read_json(bundle, name) for name in (TOKENIZER_CONFIG, GENERATION_CONFIG)}
    tokenizer = read_tokenizer(bundle, texts[TOKENIZER_CONFIG])
    template = ChatTemplate(
        _template_source(bundle, texts[TOKENIZER_CONFIG]), tokenizer.special_token_variables()
    )
    states = states_of(bundle.graph, config, options.kv_cache)
    context = _context(options.context, config.context_length, states)
    experts = experts_of(bundle, options, states, context)
    most_rows = min(affordable_rows(bundle.graph), largest_call(states))
    rows = min(call_rows(options, experts), context, most_rows)
    end_ids = dict.fromkeys((*config.eos_token_ids, *eos_ids(texts[GENERATION_CONFIG])))
    compiled = compile_bundle(bundle, options, states, rows, experts=experts)
    return Model(
        path=bundle.path,
        tokenizer=tokenizer,
        template=template,
        programs=compiled.programs,
        states=states,
        context=context,
        vocab_size=config.vocab_size,
        eos_ids=tuple(dict.fromkeys((*end_ids, *tokenizer.eos_ids))),
        sampling_defaults=sampling_defaults(
            texts[GENERATION_CONFIG],
            [entry.name for processor in processor_types() for entry in processor.options()],
        ),
        chunk_rows=rows,
        weight_bytes=compiled.weight_bytes,
        threads=options.worker_threads,
        backends=compiled.backends,
        everyone=compiled.everyone,
        workload=workload(bundle.graph),
        owned=compiled.owned,
        bundle=bundle,
        options=options,
        experts=experts,
    )


def experts_of(
    bundle: Bundle, options: LoadOptions, states: tuple[State, ...] = (), context: int = 1
) -> ExpertBudget | None:
    """The memory for experts where not all have room; see ``experts.expert_budget``."""
    stacks = (isinstance(each, ExpertStack) for each in bundle.graph.constants.values())
    if options.expert_memory is None and not any(stacks):
        return None
    from edgerun.llm.experts import expert_budget  # for few, and every start counts

    return expert_budget(bundle, options, sequence_bytes(states, context) if states else 0)


def read_tokenizer(bundle: Bundle, config: Mapping[str, Any]) -> Tokenizer:
    """Reads a bundle's tokenizer, in this process only if the bundle comes with edgerun.

    Raises:
        BundleError: it is broken, or has more tokens than the model.
    """
    is_own = is_own_model(bundle.path)
    tokenizer = Tokenizer.from_json(bundle.read_text("tokenizer.json"), config, is_own=is_own)
    if tokenizer.vocab_size > bundle.config.vocab_size:
        raise BundleError(
            f"the tokenizer of {bundle.path} has {tokenizer.vocab_size} tokens and the model "
            f"{bundle.config.vocab_size}: they do not belong together"
        )
    return tokenizer


def _read_json(bundle: Bundle, name: str) -> dict[str, Any]:
    return read_json_object(name, bundle.read_text(name) if bundle.has(name) else None)


def _template_source(bundle: Bundle, tokenizer_config: Mapping[str, Any]) -> str | None:
    file = bundle.read_text(CHAT_TEMPLATE) if bundle.has(CHAT_TEMPLATE) else None
    return template_source(tokenizer_config, file)


def call_rows(options: LoadOptions, experts: ExpertBudget | None) -> int:
    """Most tokens of a call; many where each reads experts, or tiles multiply, unless chosen."""
    best = selected_isa().chunk_rows if experts is None else STREAMED_CHUNK_ROWS
    return best if options.chunk_rows == DEFAULT_CHUNK_ROWS else options.chunk_rows


def _context(requested: int | None, trained: int, states: tuple[State, ...]) -> int:
    """Tokens a sequence may have.

    Raises:
        InputError: more than the model was trained for, or than memory has room for.
    """
    if requested is not None and requested > trained:
        raise InputError(
            f"context is {requested}; this model was made for at most {trained} tokens"
        )
    memory = Memory(available_memory)
    context = requested or affordable_context(states, trained, int(memory.look() * CACHE_SHARE))
    if requested is None and context < trained:
        context = min(trained, max(MIN_CONTEXT, context))
        logger.warning(
            "the context is limited to %d of %d tokens by the free memory; choose one with "
            "the context option",
            context,
            trained,
        )
    check_context(states, context, memory)
    return context


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
