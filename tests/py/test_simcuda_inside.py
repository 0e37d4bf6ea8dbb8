"""What an operator's own code reads on a simulated GPU is computed, or written by the
libraries' stand-ins: never what its memory held before."""

from __future__ import annotations

from textwrap import dedent

import pytest
from simulated import missing, run

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

# Fills the allocator's memory with ones in every byte: true, 16843009, a huge size.
STALE = """
def stale():
    small = [torch.full((1 << 17,), 0x0101010101010101, device="cuda") for _ in range(6)]
    large = [torch.full((1 << 19,), 0x0101010101010101, device="cuda") for _ in range(2)]

def over_old_memory(*calls):
    for call in calls:
        stale()
        call()
"""


def test_sparse_tensors_have_their_own_sizes() -> None:
    run(
        STALE
        + dedent("""
        i = torch.tensor([[0, 1, 1, 1], [2, 0, 2, 2]])
        sparse = torch.sparse_coo_tensor(i, torch.ones(4), (2, 3)).cuda()
        dense = torch.eye(3, device="cuda")
        def count(wanted, f):
            def call():
                found = f()._nnz()
                assert found == wanted, (found, wanted)
            return call
        over_old_memory(
            lambda: torch.sparse.mm(sparse, torch.ones(3, 2, device="cuda")),
            lambda: torch.sparse_coo_tensor(i.cuda(), torch.ones(4, device="cuda")),
            count(3, sparse.coalesce),
            count(3, dense.to_sparse),
            count(3, dense.to_sparse_csr),
            count(3, lambda: (sparse + sparse).coalesce()),
            count(4, lambda: torch.sparse.mm(sparse, sparse.t())),
            count(1, lambda: sparse.index_select(1, torch.tensor([0, 1], device="cuda"))),
        )
        again = sparse.coalesce()
        assert again.is_coalesced() and again.values().tolist() == [1.0, 1.0, 2.0]
        assert again.indices().tolist() == [[0, 1, 1], [2, 0, 2]]
        # Their values may be too many to be known: their indices are not.
        wide = torch.sparse_coo_tensor(
            i[:1].cuda(), torch.randn(4, 100_000, device="cuda"), (2, 100_000)
        )
        stale()
        assert wide.coalesce().values().shape == (2, 100_000)

        # An embedding's sparse gradients.
        table = torch.nn.Embedding(50, 8, sparse=True, device="cuda")
        optimizer = torch.optim.SparseAdam(table.parameters())
        stale()
        table(torch.tensor([1, 1, 2], device="cuda")).sum().backward()
        assert table.weight.grad.coalesce()._nnz() == 2
        optimizer.step()
        """)
    )


def test_checks_of_values_see_values() -> None:
    run(
        STALE
        + dedent("""
        def check(holds):
            assert holds
        ones = torch.ones(3, device="cuda")
        many = torch.ones(1000, 300, device="cuda")
        over_old_memory(
            lambda: torch.normal(ones, ones),
            lambda: torch.distributions.Normal(many, many).sample(),
            lambda: torch.multinomial(many, 2),
            lambda: torch.linalg.eig(torch.eye(4, device="cuda")),
            lambda: torch.histc(many, 8),
            lambda: check(torch.allclose(ones, ones + 1e-9)),
            lambda: check(not torch.allclose(ones, ones + 1)),
            lambda: check(torch.allclose(many, many * 1)),
            lambda: torch.histc(torch.empty(1 << 20, device="cuda"), 8),
        )
        """)
    )


def test_factorisations_of_unknown_matrices_go_well() -> None:
    """Random numbers in a matrix's place are hardly ever positive definite."""
    run(
        STALE
        + dedent("""
        a = torch.randn(400, 400, device="cuda")
        L = torch.linalg
        over_old_memory(
            lambda: L.cholesky(a), lambda: L.inv(a), lambda: L.solve(a, a),
            lambda: L.eigh(a), lambda: L.svd(a), lambda: L.qr(a), lambda: L.det(a),
            lambda: L.pinv(a), lambda: L.eig(a), lambda: L.lstsq(a, a),
        )
        assert L.lu_factor(a).pivots.tolist() == list(range(1, 401))
        # A small one is what it is.
        try: L.inv(torch.zeros(3, 3, device="cuda"))
        except L.LinAlgError: pass
        else: raise AssertionError("a matrix of zeros has an inverse")
        """)
    )


def test_libraries_write_every_answer() -> None:
    """Statuses, pivots, numbers and sizes that a library would leave behind."""
    run(
        """
        L, pointer = ctypes.CDLL(None), ctypes.c_void_p
        blas, solver, sparse = pointer(), pointer(), pointer()
        L.cublasCreate_v2(ctypes.byref(blas))
        L.cusolverDnCreate(ctypes.byref(solver))
        L.cusparseCreate(ctypes.byref(sparse))
        ints = ctypes.c_int * 8
        def ask(function, *arguments, at, count=1):
            out = ints(*[99] * 8)
            words = list(map(pointer, arguments))
            words.insert(at, out)
            assert function(*words) == 0
            assert all(out[i] != 99 for i in range(count)), list(out)
            assert all(out[i] == 99 for i in range(count, 8)), list(out)
            return list(out[:count])
        # (handle, m, n, A, lda, work, pivots, info)
        getrf = [solver.value, 4, 3, None, 4, None]
        assert ask(L.cusolverDnSgetrf, *getrf, None, at=7) == [0]
        assert ask(L.cusolverDnSgetrf, *getrf, None, at=6, count=3) == [1, 2, 3]
        assert ask(L.cusolverDnDpotrfBatched, solver.value, 0, 4, None, 4, 3, at=5,
                   count=3) == [0] * 3
        words = [solver.value, *[None] * 20]
        assert ask(L.cusolverDnZgesvdjBatched, *words[:13], None, 2, at=13, count=2) == [0, 0]
        assert ask(L.cusolverDnXgeev, *words[:21], at=21) == [0]
        assert ask(L.cusolverDnXsyevBatched, *words[:13], None, None, 2, at=15,
                   count=2) == [0, 0]
        # (handle, trans, m, n, columns, A, lda, C, ldc, info on the host, info, batch)
        gels = [blas.value, 0, 4, 4, 1, None, 4, None, 4]
        assert ask(L.cublasSgelsBatched, *gels, None, 2, at=9) == [0]
        assert ask(L.cublasSgelsBatched, *gels, None, 2, at=10, count=2) == [0, 0]
        assert ask(L.cublasIsamax_v2, blas.value, 4, None, 1, at=4) == [0]
        assert ask(L.cublasDnrm2_v2, blas.value, 4, None, 1, at=4, count=2) == [0, 0]
        assert ask(L.cusparseXbsrsm2_zeroPivot, sparse.value, None, at=2) == [-1]
        # A size by default is counted as one: 64 columns of the longer side, and some.
        size, counts = ctypes.c_int(), (ctypes.c_uint64 * 6)()
        L.cusolverDnDgeqrf_bufferSize(solver, 9, 5, None, 9, ctypes.byref(size))
        L.ta_simcuda_workspaces(counts)
        assert list(counts[4:]) == [1, 8 * size.value] and size.value == 64 * 9 + 1024
        a, c = pointer(), pointer()
        L.cusparseCreateCsr(ctypes.byref(a), *[ctypes.c_int64(n) for n in (4, 4, 6)])
        L.cusparseCreateCsr(ctypes.byref(c), *[ctypes.c_int64(n) for n in (4, 4, 0)])
        product = [sparse.value, 0, 0, None, a.value, a.value, None, c.value, 0, 0, None]
        buffer = ctypes.create_string_buffer(8)
        for given in (None, ctypes.addressof(buffer)):
            ask(L.cusparseSpGEMM_compute, *product, given, at=11, count=2)
        """,
        values=False,
    )
