"""The ternary model: Hugging Face's BitNet architecture, arranged for fast training on a CPU.

The forward pass is the one of `transformers.BitNetForCausalLM` with `AutoBitLinear` in online mode
(BitNet b1.58, arXiv:2402.17764): weights ternary by the mean of their absolute values, one scale a
tensor; activations int8 by each token's largest absolute value; straight-through gradients for
both.

Two arrangements differ, not the numbers: matrices that read the same input are one matrix product,
and the ternary weights are made once per optimiser step (`refresh`), not once per microbatch.
Gradients arrive on the quantised weights; straight-through means that they are the masters'
gradients as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from tools.train_default.batches import PAD
from tools.train_default.experts import Experts, TernaryStack
from tools.train_default.recipe import ModelConfig
from tools.train_default.rounding import round_rows, ternary

QUERIES = 128  # of causal_attention at a time


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class TernaryLinear(nn.Module):
    """One or more ternary matrices [out, in] applied to the same input as a single product."""

    def __init__(self, in_features: int, std: float, **out_features: int) -> None:
        super().__init__()
        pairs = [
            (name, nn.Parameter(torch.randn(out, in_features) * std))
            for name, out in out_features.items()
        ]
        self.masters = nn.ParameterDict(pairs)  # pairs, because it would sort a mapping's names
        self.effective = nn.Parameter(torch.empty(sum(out_features.values()), in_features))

    @torch.no_grad()
    def refresh(self) -> None:
        """Quantise the masters; their gradients become views of the quantised weights' one."""
        self.effective.copy_(torch.cat([ternary(master) for master in self.masters.values()]))
        if self.effective.grad is None:
            self.effective.grad = torch.zeros_like(self.effective)
        self.effective.grad.zero_()
        sizes = [len(master) for master in self.masters.values()]
        for master, grad in zip(
            self.masters.values(), self.effective.grad.split(sizes), strict=True
        ):
            master.grad = grad

    def forward(self, x: Tensor) -> Tensor:
        return linear(round_rows(x), self.effective)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, half-split; x is [batch, heads, tokens, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of every token to itself and those before; compiled, it trains quickly.

    `QUERIES` at a time meet the keys up to their last: a few products of matrices, between which
    the compiler makes the softmax one loop. Beside torch's own attention, forward and backward
    in bfloat16 with 512 tokens take 0.42 of the time.

    Args:
        q: `[batch, heads, tokens, head_dim]`.
        k: `[batch, kv_heads, tokens, head_dim]`; each serves as many heads of `q`, in order.
        v: the same.

    Returns:
        `[batch, heads, tokens, head_dim]`.
    """
    batch, heads, tokens, dim = q.shape
    kv_heads = k.shape[1]
    shared, alone = (batch * kv_heads, -1, dim), (batch, kv_heads, heads // kv_heads, -1, dim)
    q, k, v = (q * dim**-0.5).view(alone), k.reshape(shared), v.reshape(shared)
    parts = []
    for begin in range(0, tokens, QUERIES):
        end = min(begin + QUERIES, tokens)
        scores = q[:, :, :, begin:end].reshape(shared) @ k[:, :end].mT
        scores = scores.float().view(*alone[:3], end - begin, end)
        seen = torch.ones(end - begin, end, dtype=torch.bool, device=q.device).tril(begin)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).to(v.dtype)
        parts.append((weights.view(len(k), -1, end) @ v[:, :end]).view(alone))
    return torch.cat(parts, dim=3).view(batch, heads, tokens, dim)


class Block(nn.Module):
    """A layer; its feed-forward part is one network, or many of which each token takes a few."""

    def __init__(self, config: ModelConfig, experts: bool) -> None:
        super().__init__()
        dim, kv = config.hidden_size, config.num_kv_heads * config.head_dim
        std = 0.5 * dim**-0.5
        out_std = std / (2 * config.num_layers) ** 0.5
        self.config = config
        self.input_layernorm = RMSNorm(dim, config.norm_eps)
        self.attn_in = TernaryLinear(dim, std, q_proj=dim, k_proj=kv, v_proj=kv)
        self.attn_sub_norm = RMSNorm(dim, config.norm_eps)
        self.attn_out = TernaryLinear(dim, out_std, o_proj=dim)
        self.post_attention_layernorm = RMSNorm(dim, config.norm_eps)
        self.experts = Experts(config, std, out_std) if experts else None
        if experts:
            return
        ffn = config.intermediate_size
        self.ffn_in = TernaryLinear(dim, std, gate_proj=ffn, up_proj=ffn)
        self.ffn_sub_norm = RMSNorm(ffn, config.norm_eps)
        self.ffn_out = TernaryLinear(ffn, out_std, down_proj=dim)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        config, (batch, tokens, dim) = self.config, x.shape
        heads = self.attn_in(x).view(batch, tokens, -1, config.head_dim).transpose(1, 2)
        q, k, v = heads.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        mixed = causal_attention(q, k, v)
        return self.attn_out(self.attn_sub_norm(mixed.transpose(1, 2).reshape(batch, tokens, dim)))

    def feed_forward(self, x: Tensor) -> Tensor:
        if self.experts is not None:
            mixture: Tensor = self.experts(x)
            return mixture
        gate, up = self.ffn_in(x).chunk(2, dim=-1)
        return self.ffn_out(self.ffn_sub_norm(relu(gate).square() * up))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.input_layernorm(x), cos, sin)
        return x + self.feed_forward(self.post_attention_layernorm(x))


def soft_loss(logs: Tensor, ids: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy in nats of each row with what a teacher says of it.

    Args:
        logs: log p of the student `[n, vocab]`.
        ids: the teacher's likeliest tokens `[..., k]`, n in all.
        log_p: its log p of them; all others are one token. Where it says nothing, all are -inf.

    Returns:
        the cross-entropy `[n]`, and 1 or 0 `[n]`: whether the teacher says anything.
    """
    own = logs.gather(1, ids.flatten(0, -2).long())
    p = log_p.flatten(0, -2).float().exp()
    others = (1 - own.exp().sum(-1)).clamp(min=1e-6).log()
    likely = p.sum(-1)
    return -(p * own).sum(-1) - (1 - likely).clamp(min=0) * others, (likely > 0).float()


class LanguageModel(nn.Module):
    """Token ids [batch, tokens] to logits [batch, tokens, vocab]; head and embedding are one.

    Args:
        config: sizes.
        layers: called with `x, cos, sin`.
        unlikelihood: weight of tokens that are not to come.

    Attributes:
        products: type in which a training batch is multiplied; all else is in float32.
        soft_weight: share of the teacher in the loss of a batch that has soft targets.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self, config: ModelConfig, layers: Iterable[nn.Module], unlikelihood: float = 1.0
    ) -> None:
        super().__init__()
        self.config, self.unlikelihood = config, unlikelihood
        self.products, self.soft_weight = torch.float32, 1.0
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.05)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        angles = torch.outer(torch.arange(config.max_positions).float(), config.rope_theta**-half)
        self.register_buffer("cos", torch.cat((angles, angles), dim=-1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), dim=-1).sin(), persistent=False)
        self.training_blocks: list[Callable[..., Tensor]] = list(self.layers)

    def hidden(self, ids: Tensor) -> Tensor:
        x, part = self.embed_tokens(ids), slice(ids.shape[1])
        for block in self.layers:
            x = block(x, self.cos[part], self.sin[part])
        return x

    def head(self, x: Tensor) -> Tensor:
        return linear(self.norm(x), self.embed_tokens.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.hidden(ids))

    def head_loss(self, x: Tensor, targets: Tensor, *soft: Tensor) -> Tensor:
        """Sum of the losses in nats of targets [batch, tokens].

        A target that is a token costs -log p; one below PAD, `PAD - 1 - token`, costs -log(1 - p)
        of a token that is not to come, times `unlikelihood`; PAD costs nothing. With `soft`, the
        ids and the log p [batch, tokens, k] that a teacher finds likeliest, the loss of a token is
        in part the cross-entropy with these and the rest as one (``soft_loss``).
        """
        logits, targets = self.head(x).float().flatten(0, 1), targets.flatten()
        unwanted = targets < PAD
        ids = torch.where(unwanted, PAD - 1 - targets, targets).clamp(min=0)
        logs = logits.log_softmax(-1)
        log_p = logs.gather(1, ids[:, None])[:, 0]
        rest = (-torch.expm1(log_p.clamp(max=-1e-6))).log()  # log(1 - p), finite
        losses = -torch.where(unwanted, self.unlikelihood * rest, log_p)
        if soft:
            taught, says = soft_loss(logs, *soft)
            losses = torch.lerp(losses, taught, self.soft_weight * says)
        return losses.masked_fill(targets == PAD, 0.0).sum()

    def loss(self, ids: Tensor, targets: Tensor, *soft: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the loss over a training batch, by the compiled program once there is one.

        Beside it stands how unevenly tokens went to experts, 1 a layer at best (``Experts``).
        """
        with self.autocast():
            x, part = self.embed_tokens(ids), slice(ids.shape[1])
            for block in self.training_blocks:
                x = block(x, self.cos[part], self.sin[part])
            return self.head_loss(x, targets, *soft), self.unevenness(x)

    def autocast(self) -> torch.autocast:
        """In which products of training batches are in `products`."""
        device = self.cos.device.type
        return torch.autocast(device, self.products, enabled=self.products != torch.float32)

    def unevenness(self, x: Tensor) -> Tensor:
        """0, of a model without experts."""
        return x.new_zeros(())

    def compile(self) -> None:
        """Compile a block (one program for all) and the head for training; shapes must stay few."""
        self.training_blocks = [torch.compile(block, dynamic=False) for block in self.layers]
        self.head_loss = torch.compile(self.head_loss, dynamic=False)  # type: ignore[method-assign]


class TernaryLM(LanguageModel):
    """BitNet b1.58, dense or of experts."""

    def __init__(self, config: ModelConfig, unlikelihood: float = 1.0) -> None:
        blocks = (Block(config, config.experts_of(layer) > 0) for layer in range(config.num_layers))
        super().__init__(config, blocks, unlikelihood)
        self.refresh()

    def refresh(self) -> None:
        """Call after every change of the masters, and before gradients are accumulated."""
        for module in self.modules():
            if isinstance(module, TernaryLinear | TernaryStack):
                module.refresh()

    def unevenness(self, x: Tensor) -> Tensor:
        balances = [block.experts.balance for block in self.layers if block.experts is not None]
        return torch.stack(balances or [x.new_zeros(())]).sum()

    def compile(self) -> None:
        """As of any model, but of a layer of experts only what is around the products.

        Which rows go to an expert is known only when it runs.
        """
        super().compile()
        for layer, block in enumerate(self.layers):
            if block.experts is not None:
                block.attention = torch.compile(block.attention, dynamic=False)
                block.experts.gated = torch.compile(block.experts.gated, dynamic=False)
                self.training_blocks[layer] = block

    def masters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trained tensors under their Hugging Face names (without the prefix `model.`).

        Those of all experts of a layer are one tensor, whose name has a `*` in the expert's place.
        """
        for name, parameter in self.named_parameters():
            if not name.endswith(".effective"):
                yield hugging_face_name(name), parameter

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The same with a tensor for each expert's matrix."""
        for name, parameter in self.masters():
            if "*" not in name:
                yield name, parameter.detach()
                continue
            for expert, matrix in enumerate(parameter.detach()):
                yield name.replace("*", str(expert)), matrix


def hugging_face_name(name: str) -> str:
    """`layers.0.attn_in.masters.q_proj` -> `layers.0.self_attn.q_proj.weight`, and so on."""
    if ".experts." in name:
        return name.replace("experts.router", "mlp.gate.weight").replace(
            "experts.inner.masters.", "mlp.experts.*."
        ).replace("experts.outer.masters.", "mlp.experts.*.") + ".weight" * (
            not name.endswith("router")
        )
    for group, parent in (
        ("attn_in", "self_attn"),
        ("attn_out", "self_attn"),
        ("ffn_in", "mlp"),
        ("ffn_out", "mlp"),
    ):
        if f".{group}.masters." in name:
            return name.replace(f"{group}.masters", parent) + ".weight"
    return name.replace("attn_sub_norm", "self_attn.attn_sub_norm").replace(
        "ffn_sub_norm", "mlp.ffn_sub_norm"
    )
