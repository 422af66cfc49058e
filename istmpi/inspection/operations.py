"""Says of one operation of PyTorch what it multiplies, and what it adds up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import torch

from istmpi.network.scaling import Provenance, find_summed, tensors_in

NORMALISATIONS = {
    "native_batch_norm",
    "_native_batch_norm_legit",
    "native_layer_norm",
    "native_group_norm",
    "_fused_rms_norm",
}
ADDITIONS = {
    "add",
    "add_",
    "sub",
    "sub_",
    "rsub",
    "lerp",
    "lerp_",
    "addcmul",
    "addcmul_",
    "addmm",
    "baddbmm",
}
"""Operations that add something to their first tensor."""
MATRIX = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "vdot": 0,
    "_grouped_mm": 0,
    "addmm": 1,
    "baddbmm": 1,
    "addmv": 1,
}
"""The argument number of a product's first factor, over whose last axis the product sums."""
VECTORS = {"mv", "dot", "vdot", "addmv"}
"""Products with a vector: they count as sums, but not as operators."""
KEEPING = {
    "mul",
    "mul_",
    "div",
    "div_",
    "clone",
    "_to_copy",
    "where",
    "masked_fill",
    "native_dropout",
    "copy_",
}
"""Operations whose result still counts as weights if their operand is the weights of a softmax."""
MOVING = {"clone", "_to_copy", "cat", "stack", "copy_"}


@dataclass(frozen=True)
class Product:
    """A product of two tensors; the second is the weight, if there is one."""

    x: torch.Tensor
    weight: torch.Tensor
    dimension: int
    """The axis of the weight that makes the columns."""
    rows: int
    inner: int
    """The number of values that each result adds up; 0 for an embedding, which adds up none."""
    columns: int


@dataclass(frozen=True)
class Summands:
    """The operands of a sum, and the number of values that each result adds up."""

    operands: Sequence[Any]
    inner: int


def find_products(
    name: str, args: Sequence[Any], made: Sequence[torch.Tensor], provenance: Provenance
) -> Iterator[Product]:
    """Yield the products of an operation. ``made``: its results."""
    # Sums over the neighbours of a node are counted in tables that are written by hand.
    if any(tensor.layout != torch.strided for tensor in tensors_in([*args])):
        return
    if name in MATRIX and name not in VECTORS:
        a, b = args[MATRIX[name] :][:2]
        yield _matrix_product(a, b, provenance)
    elif name == "convolution":
        yield _convolution(args, made[0])
    elif name == "_scaled_dot_product_flash_attention_for_cpu":
        # The scores are never all in memory: their product counts as one that makes as much as it
        # reads.
        query = args[0]
        for other in args[1:3]:
            yield Product(
                x=query,
                weight=other,
                dimension=0,
                rows=prod(query.shape[:-1]),
                inner=args[1].shape[-2],
                columns=query.shape[-1],
            )
    elif name in ("embedding", "_embedding_bag"):
        columns = args[0].shape[1]
        yield Product(
            x=args[1],
            weight=args[0],
            dimension=1,
            rows=made[0].numel() // columns,
            inner=0,
            columns=columns,
        )


def _matrix_product(a: torch.Tensor, b: torch.Tensor, provenance: Provenance) -> Product:
    """Return the product of ``a`` ``[..., rows, inner]`` and ``b`` ``[..., inner, columns]``."""
    matrices = prod(a.shape[:-2])
    rows, inner = a.shape[-2:]
    columns = b.shape[-1]
    # Only the first factor is a parameter: the transposed product has it as the weight.
    if a in provenance and b not in provenance:
        return Product(
            x=b,
            weight=a,
            dimension=a.ndim - 2,
            rows=matrices * columns,
            inner=inner,
            columns=rows,
        )
    return Product(
        x=a,
        weight=b,
        dimension=b.ndim - 1,
        rows=matrices * rows,
        inner=inner,
        columns=columns,
    )


def _convolution(args: Sequence[Any], output: torch.Tensor) -> Product:
    """Return a convolution as a product of a matrix with the weight. ``args``: PyTorch's."""
    x = args[0]
    weight = args[1]
    is_transposed = args[6]
    kernel = prod(weight.shape[2:])
    # A transposed convolution multiplies each place of its input, others each place of the output.
    moved_over = x if is_transposed else output
    places = len(x) * prod(moved_over.shape[2:])
    if is_transposed:
        inputs, outputs = weight.shape[:2]
        return Product(
            x=x, weight=weight, dimension=1, rows=places, inner=inputs, columns=outputs * kernel
        )
    outputs, inputs = weight.shape[:2]
    return Product(
        x=x, weight=weight, dimension=0, rows=places, inner=inputs * kernel, columns=outputs
    )


def find_sum(name: str, args: Sequence[Any]) -> Summands | None:
    """Return what an operation adds up; None if it takes no sum."""
    if name in MATRIX:
        operands = args[MATRIX[name] :][:2]
        return Summands(operands, operands[0].shape[-1])
    if name == "convolution":
        weight = args[1]
        is_transposed = args[6]
        # PyTorch lists them behind stride, padding, dilation, transposed and output padding.
        groups = args[8]
        inner = weight.shape[0] // groups if is_transposed else weight.shape[1]
        return Summands(args[:2], inner)
    if name == "_trilinear":
        return _trilinear_sum(args)
    if name.startswith("_scaled_dot_product") or name in ("_cdist_forward", "_euclidean_dist"):
        return Summands(args[:2], args[0].shape[-1])
    if name in ("sum", "nansum", "logsumexp", "prod", "mean", "cumsum"):
        _, inner = find_summed(args[0], _argument(args, 1))
        return Summands(args[:1], inner)
    # Norms of order 0 and of infinite order add nothing up.
    if name in ("linalg_vector_norm", "norm") and _argument(args, 1) not in (0, inf, -inf):
        _, inner = find_summed(args[0], _argument(args, 2))
        return Summands(args[:1], inner)
    if name == "_weight_norm_interface":
        direction = args[0]
        axis = _argument(args, 2) or 0
        return Summands(args[:2], direction.numel() // direction.shape[axis])
    return None


def _argument(args: Sequence[Any], number: int) -> Any:
    """Return an argument of an operation; None if it was left out."""
    return args[number] if len(args) > number else None


def _trilinear_sum(args: Sequence[Any]) -> Summands:
    """Return what ``_trilinear`` adds up. Its arguments: three factors, the axes that each lacks,
    the summed axes."""
    factors = args[:3]
    missing_axes = args[3:6]
    shape = [1] * (factors[0].ndim + len(missing_axes[0]))
    for factor, missing in zip(factors, missing_axes):
        sizes = iter(factor.shape)
        for axis in range(len(shape)):
            if axis not in missing:
                shape[axis] = max(shape[axis], next(sizes))
    return Summands(factors, prod(shape[axis] for axis in args[6]))
