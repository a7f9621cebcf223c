"""Uses what a package added, in a process of its own, and prints what came of it as JSON.

    python -m tests.support.extending CHECKPOINT FOLDER

``tests/test_extending.py`` runs it with the package on the path.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import edgerun
from edgerun.backends import CompileOptions, Shape
from edgerun.backends.registry import backend_names, make_backend
from edgerun.cli.main import main
from edgerun.engine.engine import Engine
from edgerun.formats import PackedWeight
from edgerun.llm.llm import LLM
from edgerun.model.bundle import open_bundle
from edgerun.offload.cache import ExpertCache, Step
from edgerun.offload.policies.registry import policies
from edgerun.ops.registry import OPS
from edgerun.state import Batch, SequenceStore, same_attention
from edgerun.state.capacity import sequence_bytes
from edgerun.state.memory import Memory
from edgerun.state.paged import PAGE_TOKENS
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.quantize import block_layout, quantise_rows
from tests.conformance.examples import CASES
from tests.model.chat.tools.replies import use_form
from tests.support.altered import AlteredBundle
from tools.ci import sampling_options

PROMPT = [1, 5, 9, 2, 7]
WIDTH = 64
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}


def printed(*arguments: str) -> str:
    """What a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(arguments)
    return out.getvalue()


def refusal(call: Callable[[], Any]) -> str:
    """What an error says."""
    try:
        call()
    except edgerun.EdgerunError as error:
        return str(error)
    return ""


def logits(llm: LLM, ids: list[int]) -> np.ndarray:
    return np.concatenate([block.copy() for block in llm.logits(ids)])


def architecture(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Exports the toy's checkpoint without rounding, and runs it on what was recorded."""
    bundle = folder / "float"
    result = export(checkpoint, bundle, ExportOptions(weights="fp32", verify=True))
    with np.load(checkpoint / "golden.npz") as data:
        ids, expected = data["ids"].tolist(), data["logits"]
    with edgerun.load(bundle, kv_cache="fp32") as llm:
        error = np.abs(logits(llm, ids) - expected).max() / np.ptp(expected)
    return {"error": float(error), "name": result.manifest["model"]["architecture"]}


def weights(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Exports with the toy's format and method; compares codes with those of a plain division."""
    result = export(checkpoint, folder / "packed", ExportOptions(weights="int4s", method="absmax"))
    layout = block_layout("int4s")
    rows = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    packed = quantise_rows(rows, "int4s", 64, "absmax")
    expected = np.rint(rows / np.abs(rows).max(axis=1, keepdims=True) * 7)
    stored = [
        layout.integers(constant)
        for constant in open_bundle(folder / "packed").graph.constants.values()
        if isinstance(constant, PackedWeight) and constant.format == "int4s"
    ]
    return {
        "recipe": result.manifest["recipe"],
        "equal": bool((layout.integers(packed) == expected).all()),
        "matrices": len(stored),
        "range": [min(int(each.min()) for each in stored), max(int(each.max()) for each in stored)],
        "help": printed("export", "--help"),
    }


def transform(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Exports with the toy's transform; values are turned round, logits are what they were."""
    options = ExportOptions(weights="fp32", transforms=("flip",))
    recipe = export(checkpoint, folder / "flipped", options).manifest["recipe"]
    values = {}
    for name in ("float", "flipped"):
        with edgerun.load(folder / name, kv_cache="fp32") as llm:
            values[name] = logits(llm, PROMPT)
    error = np.abs(values["flipped"] - values["float"]).max() / np.ptp(values["float"])
    return {"transforms": recipe["transforms"], "error": float(error)}


def backend(folder: Path) -> dict[str, Any]:
    """Runs the toy's back-end together with the CPU's."""
    report: dict[str, Any] = {"names": backend_names()}
    values = {}
    for name in ("normer", "reference"):
        with edgerun.load(folder / "packed", backend=name, kv_cache="fp32") as llm:
            values[name] = logits(llm, PROMPT)
            report[name] = [each.name for each in llm.model.backends]
            report[f"{name} ids"] = llm.generate(PROMPT, temperature=0, max_tokens=8).ids
    error = np.abs(values["normer"] - values["reference"]).max() / np.ptp(values["reference"])
    return {**report, "error": float(error)}


def sampler(folder: Path) -> dict[str, Any]:
    """Generates with the toy's processor."""
    with edgerun.load(folder / "packed", backend="cpu") as llm:

        def generate(**options: Any) -> list[int]:
            return llm.generate(PROMPT, max_tokens=8, ignore_eos=True, **options).ids

        return {
            "greedy": generate(temperature=0),
            "narrow": generate(temperature=1, seed=1, top_n_sigma=1e-6),
            "wide": generate(temperature=1, seed=1, top_n_sigma=50),
            "off": generate(temperature=1, seed=1),
            "refusal": refusal(lambda: generate(top_n_sigma=101)),
            "misspelt": refusal(lambda: generate(top_n_sigmas=1)),
            "help": printed("run", "--help"),
            "table": sampling_options.table(),
            "keywords": sampling_options.keywords(),
        }


def conformance(op: str) -> list[str]:
    """Runs the examples of an op on the CPU; names those that differ from the definition."""
    cases = [case for case in CASES if case.op == op]
    assert cases, f"{op} has no examples"
    backend = make_backend("cpu", given={"threads": 1})
    wrong = []
    for case in cases:
        graph, spec = case.graph(), case.spec()
        executable = backend.compile(graph, Shape.of(case.rows), CompileOptions(spec))
        cache = case.cache(spec)
        outputs = executable(case.batch(cache), cache, case.values())
        for name, expected in case.expected().items():
            bound = OPS[op].tolerance * float(np.abs(expected).max())
            wrong += [f"{case}"] * (not np.abs(outputs[name] - expected).max() <= bound)
    backend.close()
    return wrong


def op(folder: Path) -> dict[str, Any]:
    """Doubles what a model's head reads, and asks for an attribute that no pass reads."""
    bundle = AlteredBundle(folder / "float", folder / "doubled")
    nodes = bundle.model.graph.node
    place = next(index for index, node in enumerate(nodes) if "logits" in node.output)
    bundle.model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    twice = helper.make_node("Mul", [nodes[place].input[0], "two"], ["twice"], "twice")
    nodes[place].input[0] = "twice"
    nodes.insert(place, twice)
    path = bundle.save()
    values = {}
    for name, source in {"cpu": path, "reference": path, "plain": folder / "float"}.items():
        backend = "reference" if name == "reference" else "cpu"
        with edgerun.load(source, backend=backend, kv_cache="fp32") as llm:
            values[name] = logits(llm, PROMPT)
    ops = [node.op for node in open_bundle(path).graph.nodes]
    nodes[place].attribute.append(helper.make_attribute("mystery", 1))
    refused = bundle.save()
    return {
        "ops": ops.count("double"),
        "wrong": conformance("double"),
        "error": float(np.abs(values["cpu"] - values["reference"]).max()),
        "ratio": float(np.abs(values["cpu"] / values["plain"] - 2).max()),
        "refusal": refusal(lambda: edgerun.load(refused, backend="cpu")),
    }


def recurrent(folder: Path) -> dict[str, Any]:
    """Lets a layer with a state of fixed size stand before the others of a model."""
    bundle = AlteredBundle(folder / "float", folder / "recurrent")
    nodes = bundle.model.graph.node
    first = next(node for node in nodes if "layers.0/input_layernorm" in node.name)
    source, place = first.input[0], list(nodes).index(first)
    inputs, outputs = [source, "past_decay.0.sum"], ["decayed", "present_decay.0.sum"]
    node = helper.make_node(
        "Decay", inputs, outputs, "decay", domain="toys", width=WIDTH, rate=0.75
    )
    first.input[0] = "decayed"
    nodes.insert(place, node)
    sum_ = helper.make_tensor_value_info(inputs[1], TensorProto.FLOAT, ["batch", WIDTH])
    bundle.model.graph.input.append(sum_)
    path = bundle.save()
    report = {"formula": formula(), **generated(path, folder / "float")}
    sum_.name = "past_decay.9.sum"
    bundle.model.graph.input.append(sum_)
    report["unread"] = refusal(lambda: open_bundle(bundle.save()))
    bundle.model.graph.input.pop()
    again = helper.make_node("Decay", ["decayed", inputs[1]], ["again"], width=WIDTH, rate=0.5)
    again.domain, again.name = "toys", "again"
    nodes.insert(place + 1, again)
    nodes[place + 2].input[0] = "again"
    return report | {"twice": refusal(lambda: open_bundle(bundle.save()))}


def formula() -> float:
    """Error of the toy's definition, in two calls, against a sum with powers."""
    x = np.random.default_rng(0).standard_normal((9, WIDTH)).astype(np.float32)
    attributes = {"layer": 0, "width": WIDTH, "rate": 0.75}
    store = SequenceStore([OPS["decay"].state(attributes)], 16)
    slot, parts = store.open(), []
    for start, stop in ((0, 4), (4, 9)):
        batch = Batch.of([0] * (stop - start), start, slot)
        store.reserve(slot, stop)
        parts += OPS["decay"].evaluate([x[start:stop]], attributes, batch, store)
        store.commit(slot, stop)
    powers = np.tril(0.75 ** np.subtract.outer(np.arange(9), np.arange(9)))
    return float(np.abs(np.concatenate(parts) - powers @ x).max())


def generated(path: Path, plain: Path) -> dict[str, Any]:
    """Ids of two prompts, in all ways in which they can be computed."""
    prompts = [[1 + place % 200 for place in range(length)] for length in (40, 50)]
    options: dict[str, Any] = {"backend": "reference", "kv_cache": "fp32", "context": 128}
    with edgerun.load(plain, **options) as llm:
        without = logits(llm, prompts[0])
    chunks = []
    for rows in (256, 7, 1):
        with edgerun.load(path, chunk_rows=rows, **options) as llm:
            chunks.append(logits(llm, prompts[0]))
    with edgerun.load(path, max_sessions=3, **options) as llm:
        alone = [llm.generate(prompt, **GREEDY).ids for prompt in prompts]
        streams = [llm.stream(prompt, **GREEDY) for prompt in prompts]
        together = [stream.result().ids for stream in streams]
        preempted, calls = squeezed(llm, prompts, pages=3)
        _, enough = squeezed(llm, prompts, pages=9)
        return {
            "states": [type(state).__name__ for state in llm.model.states],
            "effect": float(np.abs(chunks[0] - without).max()),
            "chunks": [float(np.abs(other - chunks[0]).max()) for other in chunks[1:]],
            "alone": alone,
            "together": together,
            "preempted": preempted,
            "calls": calls,
            "calls with memory": enough,
            **next_turn(llm, prompts[0]),
        }


def squeezed(llm: LLM, prompts: list[list[int]], pages: int) -> tuple[list[list[int]], int]:
    """Ids of prompts that run at once where memory has few pages, and how many calls it took."""
    free = sequence_bytes(llm.model.states, 64) * pages
    written = [0]
    store = SequenceStore(
        llm.model.states, 128, 2, memory=Memory(lambda: free - written[0], spare_bytes=0)
    )
    engine = Engine(llm.model.programs, store, llm.model.vocab_size)
    params = llm.params(**GREEDY)
    sequences = [engine.sequence(prompt, params) for prompt in prompts]
    for sequence in sequences:
        engine.add(sequence)
    calls = 0
    while not all(sequence.is_ended for sequence in sequences):
        written[0] = sum(pool._grown * pool.page_bytes for pool in store._pools)
        store.lock.run(engine.step)
        calls += 1
        for sequence in sequences:
            while sequence.take():
                pass
    return [sequence.ids[sequence.prompt_tokens :] for sequence in sequences], calls


def next_turn(llm: LLM, prompt: list[int]) -> dict[str, Any]:
    """A prompt that goes on otherwise than the reply that its slot holds."""
    params = llm.params(**GREEDY)
    engine = Engine(llm.model.programs, SequenceStore(llm.model.states, 128), llm.model.vocab_size)
    turn = engine.sequence(prompt, params)
    turn.is_retained = True
    list(engine.tokens(turn))
    following = engine.sequence([*prompt, 250, 251, 252], params)
    following.previous = turn
    ids = [token.id for token in engine.tokens(following)]
    return {
        "prompt": len(prompt),
        "reused": following.stats.reused_tokens,
        "next turn": ids,
        "next turn alone": llm.generate([*prompt, 250, 251, 252], **GREEDY).ids,
    }


def activation(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Exports a model with the toy's activation, verified with onnxruntime, and runs it."""
    other, bundle = folder / "checkpoint-gelu", folder / "gelu"
    shutil.copytree(checkpoint, other)
    config = json.loads((other / "config.json").read_text("utf-8"))
    config["hidden_act"] = "gelu_pytorch_tanh"
    (other / "config.json").write_text(json.dumps(config), "utf-8")
    export(other, bundle, ExportOptions(weights="fp32", verify=True))
    values = {}
    for name in ("cpu", "reference"):
        with edgerun.load(bundle, backend=name, kv_cache="fp32") as llm:
            values[name] = logits(llm, PROMPT)
    nodes = open_bundle(bundle).graph.nodes
    return {
        "names": [node.attrs["activation"] for node in nodes if node.op == "gate"],
        "wrong": conformance("gate"),
        "error": float(np.abs(values["cpu"] - values["reference"]).max()),
    }


def codec(folder: Path) -> dict[str, Any]:
    """Keeps keys and values with the toy's codec; the CPU has no kernels for it and says so."""
    report: dict[str, Any] = {}
    values = {}
    for name in ("fp32", "bf16"):
        with edgerun.load(folder / "float", backend="reference", kv_cache=name) as llm:
            values[name] = logits(llm, PROMPT)
            report[name] = llm.generate(PROMPT, temperature=0, max_tokens=8).ids
    error = np.abs(values["bf16"] - values["fp32"]).max() / np.ptp(values["fp32"])
    return {
        **report,
        "error": float(error),
        "refusal": refusal(
            lambda: edgerun.load(folder / "float", backend="cpu", kv_cache="bf16").generate(PROMPT)
        ),
    }


def drafter(folder: Path) -> dict[str, Any]:
    """Replies with the toy's drafts, and without."""
    report: dict[str, Any] = {"refusal": refusal(lambda: edgerun.load(folder / "float", draft="x"))}
    for name in ("none", "echo"):
        with edgerun.load(folder / "float", draft=name) as llm:
            reply = llm.generate(PROMPT, **GREEDY)
            report[name] = reply.ids, reply.stats.drafted_tokens
    return report


def policy(folder: Path) -> dict[str, Any]:
    """Fills a cache with three beginnings where there is room for two; which are still there?"""

    def remembered(eviction: str) -> list[bool]:
        store = SequenceStore(same_attention(1, 1, 8), 2 * PAGE_TOKENS, 3, eviction=eviction)
        prompts = [[number] * (PAGE_TOKENS + 1) for number in range(3)]
        for ids in prompts:
            slot = store.open()
            store.reserve(slot, PAGE_TOKENS)
            store.commit(slot, PAGE_TOKENS, ids)
            store.close(slot)
        return [store.match(ids)[1] > 0 for ids in prompts[:2]]

    refused = refusal(lambda: edgerun.load(folder / "float", eviction="fifo"))
    return {"lru": remembered("lru"), "mru": remembered("mru"), "refusal": refused}


def experts() -> dict[str, list[int]]:
    """Who leaves a cache with room for two when a third expert comes."""
    left = {}
    for name in ("lru", "mru"):
        cache = ExpertCache(2, policies()[name]())
        steps = [cache.access(Step(0, (expert,), (1.0,))).evicted for expert in (1, 2, 3)]
        left[name] = [expert for step in steps for _, expert in step]
    return left


def use(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Uses everything once."""
    return {
        "architecture": architecture(checkpoint, folder),
        "weights": weights(checkpoint, folder),
        "transform": transform(checkpoint, folder),
        "backend": backend(folder),
        "sampler": sampler(folder),
        "codec": codec(folder),
        "op": op(folder),
        "recurrent": recurrent(folder),
        "activation": activation(checkpoint, folder),
        "policy": policy(folder),
        "drafter": drafter(folder),
        "experts": experts(),
        "calls": use_form("arrow"),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(use(Path(sys.argv[1]), Path(sys.argv[2]))))
