"""What layers that are queued whole cost a token, with the rates of a profile.

Terms are those of the native host (``backend/native/chain``): norms, gates, residual sums and
rounding are commands, and the processor hands over once a layer.
"""

from __future__ import annotations

from edgerun_hw.model.profile import Profile
from edgerun_hw.model.tokens import ModelShape, Term
from edgerun_hw.model.unit import each_step
from edgerun_hw.overlay.command import GLUE_LANES

# Of a command that waits for those before it, in the model of a KV260's DDR: cycles beside the
# passes; of the first pass for a group, whose row comes over the data port, alone or with a second.
# Checked against the simulator (``tests/hw/model/test_layers.py``).
BESIDE, ALONE, TWO_ROWS = 210, 2.4, 3.0
# Of how many commands one is computed again (``chain/code.py``), and commands of a layer.
CHECK_EVERY, COMMANDS = 64, 8


def glue_cycles(length: int, *, norm: bool, second: bool) -> int:
    """Cycles of a glue command.

    Args:
        length: elements of the row.
        norm: whether there is one.
        second: whether a gate or a sum reads another row.
    """
    groups = -(-length // GLUE_LANES)
    passes = (TWO_ROWS if second else ALONE) + 1 + norm
    return round(groups * passes) + BESIDE


def layer_terms(shape: ModelShape, profile: Profile, clock_mhz: float) -> list[Term]:
    """Terms of what lies between the matrices of a decoded token, and of handing them over.

    Args:
        shape: of the model; its layers have norms before all matrices.
        profile: of the board.
        clock_mhz: of the overlay.
    """
    rows = [shape.heads * shape.head_dim, shape.hidden, shape.hidden, shape.intermediate]
    cycles = sum(
        glue_cycles(length, norm=True, second=number > 0) for number, length in enumerate(rows)
    )
    fabric = Term(
        "norms, sums, gate (fabric)",
        shape.layers * cycles / (clock_mhz * 1e6),
        shape.layers * cycles,
        basis=f"{shape.layers} times {cycles} cycles of four commands",
    )
    again = shape.layers * COMMANDS / CHECK_EVERY
    elements = round(again * sum(rows) / COMMANDS)
    # A layer, and the queries, keys and values of the first one, and the head.
    steps = shape.layers + 2
    ends = 2 * shape.hidden
    within = shape.layers * shape.hidden
    return [
        fabric,
        _elements("norms at both ends", ends, profile, "norm_ns_per_element"),
        _elements("scales and rotary of q, k, v", within, profile, "rotary_ns_per_element"),
        each_step("launches", steps, profile, "launch_us"),
        each_step("activations in", steps, profile, "activations_us_per_step"),
        each_step("results out", steps, profile, "results_us_per_step"),
        _elements("commands again", elements, profile, "again_ns_per_element"),
        each_step("launches of those", round(2 * again), profile, "launch_us"),
    ]


def _elements(name: str, count: int, profile: Profile, figure: str) -> Term:
    seconds = count * profile[figure] * 1e-9
    return Term(name, seconds, basis=f"{count} elements at {profile.quote(figure)}")
