"""Keys that are made of two rows."""

from __future__ import annotations

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.word import float_at, set_float


@kernel(
    "latent_keys",
    "rows:i64[1] latent:f32[rows, size; latent_stride] latent_stride"
    " turned:f32[rows, width; turned_stride] turned_stride"
    " out:f32[rows, size + 2 * copied; out_stride] out_stride size width copied",
)
def latent_keys() -> Body:
    """A latent row, then the first ``copied`` elements of each half of another; chunk = row."""

    def body(a: Arguments, chunk: int) -> None:
        latent = a.latent + chunk * a.latent_stride * 4
        turned = a.turned + chunk * a.turned_stride * 4
        out = a.out + chunk * a.out_stride * 4
        for index in range(a.size):
            set_float(out, index, float_at(latent, index))
        for index in range(a.copied):
            set_float(out, a.size + index, float_at(turned, index))
            set_float(out, a.size + a.copied + index, float_at(turned, a.width // 2 + index))

    return body
