"""Gradients of a step's microbatches by single-threaded processes that share the weights.

Two threads inside one operation wait for each other at its end, thousands of times a step; on a
machine with other work that costs a third of the speed. Here a process takes the next microbatch
when it is done with its last, and they meet once a step.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Iterable
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor

from tools.train_default.batches import PAD
from tools.train_default.model import LanguageModel

# Ids and targets, NumPy arrays [rows, tokens], and what a teacher says of them [rows, tokens, k] or
# nothing; see LanguageModel.head_loss.
Batch = tuple[Any, ...]
PATIENCE = 5.0  # seconds without news, after which it is seen to whether the others live


def leaves(model: LanguageModel) -> list[torch.nn.Parameter]:
    """The parameters that gradients arrive on: not the masters of ternary matrices."""
    return [p for name, p in model.named_parameters() if ".masters." not in name]


def next_task(tasks: Any) -> Any:
    """The next microbatch, or None at the end, or where nobody is left who could send any."""
    while True:
        try:
            return tasks.get(timeout=PATIENCE)
        except queue.Empty:
            parent = multiprocessing.parent_process()
            if parent is None or not parent.is_alive():
                return None


def _work(
    model: LanguageModel,
    grads: list[Tensor],
    scale: float,
    balance: float,
    tasks: Any,
    results: Any,
) -> None:
    os.setpgid(0, 0)  # a signal to the group, as of Ctrl-C, is for who ends with a checkpoint
    torch.set_num_threads(1)
    for parameter, grad in zip(leaves(model), grads, strict=True):
        parameter.grad = grad
    model.compile()
    while (task := next_task(tasks)) is not None:
        batch, weight = task
        ids, targets, *soft = map(torch.from_numpy, batch)
        loss, uneven = model.loss(ids.clamp(min=0), targets, *soft)
        count = int((targets != PAD).sum())
        ((loss + balance * count * uneven) * (scale * weight)).backward()
        results.put((loss.item(), count, uneven.item()))


class Workers:
    """Gradients of the summed loss, and of how unevenly experts are used, a token each.

    Args:
        model: whose memory the processes share.
        count: of processes.
        scale: multiplies every microbatch's summed loss before its gradient is taken.
        balance: weight of how unevenly experts are used.
    """

    def __init__(self, model: LanguageModel, count: int, scale: float, balance: float) -> None:
        context = mp.get_context("spawn")
        model.share_memory()
        self.leaves = leaves(model)
        self.tasks, self.results = context.Queue(), context.Queue()
        self.grads = [
            [torch.zeros_like(p).share_memory_() for p in self.leaves] for _ in range(count)
        ]
        self.processes = []
        for grads in self.grads:
            arguments = (model, grads, scale, balance, self.tasks, self.results)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            self.processes.append(process)

    def accumulate(self, batches: Iterable[Batch], weight: float = 1.0) -> tuple[float, int, float]:
        """Add the gradients of all batches to `.grad`, multiplied by `weight`.

        Returns:
            summed loss, scored tokens, and how unevenly experts were used, on average.

        Raises:
            ChildProcessError: a process ended, and its microbatch is lost.
        """
        count = 0
        for batch in batches:
            self.tasks.put((batch, weight))
            count += 1
        results = [self._result() for _ in range(count)]
        for grads in self.grads:
            for parameter, grad in zip(self.leaves, grads, strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad += grad
                grad.zero_()
        losses, tokens, uneven = zip(*results, strict=True)
        return sum(losses), sum(tokens), sum(uneven) / len(uneven)

    def _result(self) -> tuple[float, int, float]:
        while True:
            try:
                result: tuple[float, int, float] = self.results.get(timeout=PATIENCE)
            except queue.Empty:
                ended = [each.exitcode for each in self.processes if not each.is_alive()]
                if ended:
                    raise ChildProcessError(
                        f"a process of the training ended with code {ended[0]} (-9 is what Linux "
                        "does where memory is short); the same command goes on from the last "
                        "checkpoint"
                    ) from None
            else:
                return result

    def stop(self) -> None:
        for _ in self.processes:
            self.tasks.put(None)
        for process in self.processes:
            process.join()
