"""Makes the other half of a pair: a checkpoint trained further on text of another kind.

python -m tools.delta.finetune MODEL --text TEXT --out FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from tools.torch_llama.layer import paths, source_layer
from tools.torch_llama.model import Model
from tools.torch_llama.plain import check
from tools.torch_llama.save import save_checkpoint
from tools.torch_llama.text import read_windows


def main() -> None:
    """Reads the command line, trains the projections, and writes a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--windows", type=int, default=1200)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with open_checkpoint(args.model) as checkpoint:
        source, _ = interpret(checkpoint)
        spec = source.spec
        check(spec)
        ids = torch.from_numpy(
            read_windows(checkpoint, args.text, args.windows, args.tokens).fitted
        )
        model = Model(source, args.tokens)
        layers = [source_layer(source, at, torch.float32) for at in range(spec.num_layers)]
        names = [paths(spec, at) for at in range(spec.num_layers)]
        learning = [
            layer[name].requires_grad_()
            for layer, own in zip(layers, names, strict=True)
            for name in own
        ]
        adam = torch.optim.AdamW(learning, weight_decay=0.0)
        for step in range(args.steps):
            few = ids[torch.arange(step * args.batch, (step + 1) * args.batch) % len(ids)]
            logits = model.logits(few, layers, model.final_norm)[:, :-1]
            loss = cross_entropy(logits.flatten(0, 1), few[:, 1:].flatten())
            loss.backward()
            adam.param_groups[0]["lr"] = (
                args.rate * min(1, (step + 1) / 10) * (1 - step / args.steps)
            )
            adam.step()
            adam.zero_grad()
            if step % 25 == 0 or step == args.steps - 1:
                print(f"step {step}: {loss.item():.3f} nats a token", flush=True)
        changed = {
            path: layers[at][name].detach().numpy()
            for at, own in enumerate(names)
            for name, path in own.items()
        }
        save_checkpoint(checkpoint, source, changed, args.out)


if __name__ == "__main__":
    main()
