"""The argument block of a kernel, as Numba sees it: an address whose words are read by name."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core.datamodel import models
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, lower_getattr_generic, register_model

from edgerun.kernels.lang.ir import I64, load_from, offset

WORD_BYTES = 8


class ArgumentBlock(types.Type):  # type: ignore[misc]
    """The address of int64 words with names; ``block.name`` reads one.

    A name that the block does not have is a typing error when the kernel is compiled.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        super().__init__(name=f"ArgumentBlock({' '.join(names)})")


@register_model(ArgumentBlock)
class _Address(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, I64)


@infer_getattr
class _Words(AttributeTemplate):  # type: ignore[misc]
    key = ArgumentBlock

    def generic_resolve(self, block: ArgumentBlock, name: str) -> Any:
        return types.int64 if name in block.names else None


@lower_getattr_generic(ArgumentBlock)
def _read(context, builder, block, address, name):  # type: ignore[no-untyped-def]
    return load_from(builder, offset(builder, address, WORD_BYTES * block.names.index(name)), I64)
