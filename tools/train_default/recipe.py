"""What shapes a model and a run of training; read without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tomllib


@dataclass(frozen=True)
class ModelConfig:
    """Sizes; with ``experts``, layers from ``dense_layers`` on have so many networks."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 512
    num_layers: int = 5
    num_heads: int = 4
    num_kv_heads: int = 2
    max_positions: int = 512
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    experts: int = 0
    top_k: int = 2
    expert_size: int = 256
    dense_layers: int = 0  # at the beginning, in a model with experts

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def experts_of(self, layer: int) -> int:
        """Networks of a layer; 0 where every token goes through the same."""
        return self.experts if layer >= self.dense_layers else 0


@dataclass(frozen=True)
class Recipe:
    """Everything that shapes a run, except where its files are and when it ends."""

    seed: int = 1
    batch_tokens: int = 4096
    micro_tokens: int = 1024
    context: tuple[int, int] = (256, 512)  # before and during the decay
    decay_from: float = 0.52  # share of the time after which the rate falls
    weight_decay_until: float = 0.5
    warmup_steps: int = 40
    muon_lr: float = 0.02
    muon_momentum: float = 0.95
    muon_weight_decay: float = 0.05
    adam_lr: float = 3e-3
    adam_betas: tuple[float, float] = (0.9, 0.98)
    expert_lr: float = 1e-3  # of the matrices of experts, by AdamW
    balance: float = 0.01  # weight of the loss that spreads tokens over experts
    whole: bool = False  # no document is cut
    calm: bool = False  # none is read in which a message says six words in a row twice
    products: str = "float32"  # in which a batch is multiplied: or "bfloat16"
    soft_weight: float = 0.0  # of what a teacher says (--targets) in the loss of a token
    own_rows: int = 0  # of the model's own replies in a step (own/)
    own_from: float = 0.0  # share of the run after which they are read
    own_good: bool = True  # whether good ones among them are learned like text
    own_taught: bool = False  # whether a teacher (--teacher) says what should have been said
    text_taught: bool = False  # whether that teacher reads text as well, in the place of --targets
    own_subject: float = 1.0  # times as likely, as the teacher says, is a subject not named yet
    # Above 0 own replies are learned as a sampler, DRY of this multiplier, has them, and the
    # teacher is the model as it was (own/sampler.py).
    dry: float = 0.0
    own_weight: float = 1.0  # of a token of them
    # Weight of a token that is not to come; with a teacher, of what it says in such a one's place.
    unlikelihood: float = 1.0
    own_replies: int = 64  # made at a time
    own_steps: int = 50  # after which they are made anew
    repeat: int = 4  # so many tokens in a row that came before are a repetition; with dry allowed
    mix: dict[str, tuple[float, float]] = field(
        default_factory=lambda: {
            "real": (0.42, 0.40),
            "teacher": (0.22, 0.06),
            "chat": (0.34, 0.0),
            "fine": (0.0, 0.52),
            "books": (0.02, 0.02),
        }
    )
    model: ModelConfig = ModelConfig()

    def __post_init__(self) -> None:
        rows = self.micro_tokens // self.context[1]
        if self.own_rows and (rows == 0 or self.own_rows % rows):
            raise ValueError(f"own_rows is {self.own_rows}, no multiple of a microbatch's {rows}")
        if self.own_taught and not self.own_rows:
            raise ValueError("own_taught needs own_rows, of which there are none")
        if self.text_taught and not self.own_taught:
            raise ValueError("text_taught needs own_taught, whose --teacher reads the text")
        if self.dry and not self.own_taught:
            raise ValueError("dry needs own_taught: --teacher is the model as it was")
        if self.own_taught and not self.soft_weight:
            raise ValueError(
                "own_taught needs a soft_weight above 0, the share of what the teacher says in the "
                "loss: at 0 neither it nor unlikelihood would count"
            )

    @staticmethod
    def read(path: Path) -> Recipe:
        """A TOML file of the fields that differ from the defaults."""
        fields = tomllib.loads(path.read_text())
        model = ModelConfig(**fields.pop("model", {}))
        return Recipe(**fields, model=model)
