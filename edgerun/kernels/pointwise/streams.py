"""Kernels of residual streams that lie beside each other in a row (AltUp).

``lanes`` is the number of float32 in a vector; a chunk is a row.
"""

from __future__ import annotations

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import fma, load, load_splat, store


@kernel(
    "altup_predict",
    "rows:i64[1] streams:f32[rows, parts, width; streams_stride] streams_stride"
    " coefs:f32[rows, parts, parts; coefs_stride] coefs_stride"
    " out:f32[rows, parts, width; out_stride] out_stride parts width",
)
def altup_predict(lanes: int) -> Body:
    """Part j of ``out`` is the sum of all parts i of ``streams`` times ``coefs[j, i]``.

    A sum of ``parts`` products, each rounded once.
    """

    def body(a: Arguments, chunk: int) -> None:
        parts, width = a.parts, a.width
        streams = a.streams + chunk * a.streams_stride * 4
        coefs, out = a.coefs + chunk * a.coefs_stride * 4, a.out + chunk * a.out_stride * 4
        whole = width // lanes * lanes
        for _target in range(parts):
            for index in range(0, whole, lanes):
                source = streams + index * 4
                total = load(source, "f32", lanes) * load_splat(coefs, lanes)
                for part in range(1, parts):
                    value = load(source + part * width * 4, "f32", lanes)
                    total = fma(value, load_splat(coefs + part * 4, lanes), total)
                store(out + index * 4, total)
            for index in range(whole, width):
                source = streams + index * 4
                single = load(source, "f32", 1) * load_splat(coefs, 1)
                for part in range(1, parts):
                    element = load(source + part * width * 4, "f32", 1)
                    single = fma(element, load_splat(coefs + part * 4, 1), single)
                store(out + index * 4, single)
            coefs += parts * 4
            out += width * 4

    return body


@kernel(
    "altup_correct",
    "rows:i64[1] activated:f32[rows, width; activated_stride] activated_stride"
    " predictions:f32[rows, parts, width; predictions_stride] predictions_stride"
    " coefs:f32[rows, parts; coefs_stride] coefs_stride scale?:f32[width]"
    " out:f32[rows, parts, width; out_stride] out_stride"
    " first:f32[rows, width; first_stride] first_stride parts width",
)
def altup_correct(lanes: int) -> Body:
    """Part j of ``out`` is that of ``predictions`` plus ``coefs[j]`` times what part 0 changed by.

    It became ``activated``. ``first`` is part 0 of ``out``, times ``scale`` if that is there.
    ``out`` may be ``predictions``. Three roundings an element.
    """

    def body(a: Arguments, chunk: int) -> None:
        parts, width = a.parts, a.width
        activated = a.activated + chunk * a.activated_stride * 4
        predictions = a.predictions + chunk * a.predictions_stride * 4
        coefs, out = a.coefs + chunk * a.coefs_stride * 4, a.out + chunk * a.out_stride * 4
        first = a.first + chunk * a.first_stride * 4
        whole = width // lanes * lanes
        for index in range(0, whole, lanes):
            change = load(activated + index * 4, "f32", lanes)
            change = change - load(predictions + index * 4, "f32", lanes)
            for part in range(parts):
                at = (part * width + index) * 4
                value = load(predictions + at, "f32", lanes)
                store(out + at, fma(change, load_splat(coefs + part * 4, lanes), value))
            value = load(out + index * 4, "f32", lanes)
            if a.scale != 0:
                value = value * load(a.scale + index * 4, "f32", lanes)
            store(first + index * 4, value)
        for index in range(whole, width):
            single = load(activated + index * 4, "f32", 1)
            single = single - load(predictions + index * 4, "f32", 1)
            for part in range(parts):
                at = (part * width + index) * 4
                element = load(predictions + at, "f32", 1)
                store(out + at, fma(single, load_splat(coefs + part * 4, 1), element))
            element = load(out + index * 4, "f32", 1)
            if a.scale != 0:
                element = element * load(a.scale + index * 4, "f32", 1)
            store(first + index * 4, element)

    return body
