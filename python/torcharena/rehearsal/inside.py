"""Operators whose own code reads what its kernels made, for the values mode.

An operator written in C++ may look at values before it goes on: `torch.normal` at the least
deviation, the check after a factorisation at its status, `to_sparse` at how many numbers are
not zero. Below the mode these are contents that no kernel wrote: whatever lay in that memory
before. Such operators are opened: they run with the mode still in force, so that what they
call is computed like what the program calls. Where the reading is no operator's (the count
of distinct indices, in a library of kernels), the result is made here.

Everything here is called by `values.Values` alone, in its thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .values import Values

__all__ = ["KERNELS", "OPENED", "SPARSE", "has_sparse", "run"]

#: Operators that read values which their own code computes.
OPENED = frozenset(
    {
        "_linalg_eigh",
        "_linalg_eigvals",
        "_linalg_svd",
        "_nested_tensor_from_mask",
        "_to_sparse",
        "_to_sparse_bsc",
        "_to_sparse_bsr",
        "_to_sparse_csc",
        "_to_sparse_csr",
        "cholesky_inverse",
        "histc",
        "linalg_eig",
        "linalg_eigvals",
        "linalg_lstsq",
        "linalg_matrix_exp",
        "linalg_pinv",
        "normal",
        "searchsorted",
        "segment_reduce",
        "sparse_coo_tensor",
    }
)
#: Operators to be opened where an argument is sparse, besides those of sparse tensors alone.
SPARSE = frozenset(
    {
        "add",
        "add_",
        "addmm",
        "addmm_",
        "addmv",
        "bmm",
        "index_select",
        "mm",
        "mul",
        "mul_",
        "mv",
        "select",
        "sum",
    }
)
#: Those of them whose dense result a library's kernel makes.
KERNELS = frozenset({"add", "add_", "addmm", "addmm_", "addmv", "bmm", "mm", "mv"})


def has_sparse(args: Any) -> bool:
    """True where one of the arguments is a sparse tensor on the device."""
    for value in args:
        if (
            isinstance(value, torch.Tensor)
            and value.layout is not torch.strided
            and value.is_cuda
        ):
            return True
    return False


def run(mode: Values, func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """The operator, with what its own code reads computed."""
    if has_sparse(args):
        if name == "_coalesce":
            return _coalesce(mode, args[0])
        if name in _COUNTED and all(_is_coo(args[i]) for i in _COUNTED[name]):
            return _count(mode, func, args)
    with mode.again():
        return func.redispatch(_keys(args), *args, **kwargs)


def _keys(args: Any) -> Any:
    """Where the operator's own kernel is: below the mode, above nothing."""
    key = torch._C.DispatchKey
    for value in args:
        if isinstance(value, torch.Tensor) and value.is_cuda:
            if value.layout is torch.sparse_coo:
                return torch._C.DispatchKeySet(key.SparseCUDA)
            if value.layout is not torch.strided:
                return torch._C.DispatchKeySet(key.SparseCsrCUDA)
    return torch._C.DispatchKeySet(key.CUDA)


# --- sparse tensors: how many numbers there are follows from the indices ----------------------
def _is_coo(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo


def _on_cpu(mode: Values, tensor: torch.Tensor) -> torch.Tensor:
    """Its indices, and values that are known; else random ones."""
    indices = mode._convert(tensor._indices())
    values = mode._convert(tensor._values())
    made = torch.sparse_coo_tensor(indices, values, tensor.shape, check_invariants=False)
    return made._coalesced_(tensor.is_coalesced())


def _give(mode: Values, result: torch.Tensor, device: torch.device) -> torch.Tensor:
    made = torch.sparse_coo_tensor(
        mode._give(result._indices(), device),
        mode._give(result._values(), device),
        result.shape,
        check_invariants=False,
    )
    return made._coalesced_(result.is_coalesced())


def _coalesce(mode: Values, tensor: torch.Tensor) -> torch.Tensor:
    """With the buffers that PyTorch's own code takes meanwhile: the flat index of every
    number, their order before and after, and as much again for sorting."""
    indices, values = tensor._indices(), tensor._values()
    count = tensor._nnz()
    device = tensor.device
    flat = torch.empty(count, dtype=torch.int64, device=device)
    order = torch.empty_like(flat)
    starts = torch.empty_like(flat)
    sorting = torch.empty(2 * count, dtype=torch.int64, device=device)
    del sorting
    known = mode.known(values)
    contents = mode._convert(values) if known else torch.zeros(count)
    dense = values.shape[1:]
    shape = tensor.shape if known else tensor.shape[: tensor.sparse_dim()]
    found = torch.sparse_coo_tensor(
        mode._convert(indices), contents, shape, check_invariants=False
    ).coalesce()
    distinct = mode._give(found._indices(), device)
    if known:
        summed = mode._give(found._values(), device)
    else:
        summed = torch.empty((found._nnz(), *dense), dtype=values.dtype, device=device)
    del flat, order, starts
    made = torch.sparse_coo_tensor(distinct, summed, tensor.shape, check_invariants=False)
    return made._coalesced_(True)


#: Whose kernels count the numbers of the result, and which arguments are sparse then.
_COUNTED = {"_sparse_sparse_matmul": (0, 1), "mul": (0, 1), "index_select": (0,)}


def _count(mode: Values, func: Any, args: Any) -> torch.Tensor:
    on_cpu = [_on_cpu(mode, a) if _is_coo(a) else mode._convert(a) for a in args]
    return _give(mode, func(*on_cpu), args[0].device)
