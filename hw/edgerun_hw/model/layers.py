"""What layers that are queued whole cost a token, with the rates of a profile.

Terms are those of the native host (``backend/native/chain``): norms, gates, residual sums and
rounding are commands, and the processor hands over once a layer.
"""

from __future__ import annotations

from edgerun_hw.model.cycles import matrix_work
from edgerun_hw.model.profile import Profile
from edgerun_hw.model.tokens import ModelShape, Term
from edgerun_hw.model.unit import each_step
from edgerun_hw.overlay.command import GLUE_LANES
from edgerun_hw.overlay.cut import cut_matrix
from edgerun_hw.overlay.geometry import Geometry, capabilities_of

# Of a command that waits for those before it, in the model of a KV260's DDR: cycles beside the
# passes; of the first pass for a group, whose row comes over the data port, alone or with a second.
# Checked against the simulator (``tests/hw/model/test_layers.py``).
BESIDE, ALONE, TWO_ROWS = 210, 2.4, 3.0
# Of how many commands one is computed again (``chain/words.py``), and commands of a layer.
CHECK_EVERY, COMMANDS = 64, 8
# Bytes that a glue command moves for an element: float32 in, the norm's weights, codes out; the
# same with a gate's second row; with a sum's second row, and the sum.
ALONE_BYTES, GATE_BYTES, SUM_BYTES = 9, 13, 17
# Of what the rule in ``read_ahead`` gives, the simulator has this much
# (``tests/hw/model/test_layers.py``).
READ_AHEAD_SHARE = 0.9


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


def read_ahead(shape: ModelShape, geometry: Geometry, clock_mhz: float, gb_per_s: float) -> float:
    """Seconds of a layer in which glue runs and weights come that would have been waited for.

    The matrix behind a glue command catches up as far as memory is slower than its lookups, weight
    ports have room, and memory is not busy with the glue's own rows.

    Args:
        shape: of the model.
        geometry: of the overlay.
        clock_mhz: of the overlay.
        gb_per_s: at which memory gives weights.
    """
    can, hertz, rate = capabilities_of(geometry), clock_mhz * 1e6, gb_per_s * 1e9
    hidden = shape.hidden
    # Glue, and the matrix behind it.
    pairs = [
        (shape.heads * shape.head_dim, False, ALONE_BYTES, "o"),
        (hidden, True, SUM_BYTES, "gate/up"),
        (shape.intermediate, True, GATE_BYTES, "down"),
        (hidden, True, SUM_BYTES, "qkv"),
    ]
    held, total = geometry.read_ahead * geometry.weight_bytes_per_cycle / rate, 0.0
    for length, second, nbytes, step in pairs:
        matrix = shape.steps()[step]
        work = matrix_work(cut_matrix(matrix, 1, matrix[1], can), can, 1, scaled=True)
        late = max(0.0, work.nbytes / rate - work.cycles / hertz)
        free = glue_cycles(length, norm=True, second=second) / hertz - length * nbytes / rate
        total += min(held, late, max(0.0, free))
    return total * READ_AHEAD_SHARE


def layer_terms(
    shape: ModelShape, geometry: Geometry, profile: Profile, clock_mhz: float
) -> list[Term]:
    """Terms of what lies between the matrices of a decoded token, and of handing them over.

    Args:
        shape: of the model; its layers have norms before all matrices.
        geometry: of the overlay.
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
    rate = profile["body_gb_per_s"]
    ahead = read_ahead(shape, geometry, clock_mhz, rate)
    kib = geometry.read_ahead * geometry.weight_bytes_per_cycle >> 10
    meanwhile = Term(
        "weights that came meanwhile",
        -shape.layers * ahead,
        basis=f"{shape.layers} times {ahead * 1e6:.1f} us: up to {kib} KiB are read ahead",
    )
    again = shape.layers * COMMANDS / CHECK_EVERY
    elements = round(again * sum(rows) / COMMANDS)
    # A layer, and the queries, keys and values of the first one, and the head.
    steps = shape.layers + 2
    ends = 2 * shape.hidden
    within = shape.layers * shape.hidden
    return [
        fabric,
        meanwhile,
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
