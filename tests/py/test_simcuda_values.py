"""What a rehearsal computes: integers, booleans and small floats are true."""

from __future__ import annotations

import pytest
from simulated import missing, run, said

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def test_integers_and_masks_are_true() -> None:
    run(
        """
        cpu = torch.randint(0, 10, (1000,))
        x = cpu.cuda()
        assert x.sum().item() == cpu.sum().item()
        assert x.unique().tolist() == cpu.unique().tolist()
        assert torch.equal(x[x > 5].cpu(), cpu[cpu > 5])
        assert torch.equal(x.cumsum(0).cpu(), cpu.cumsum(0))
        assert torch.bincount(x).tolist() == torch.bincount(cpu).tolist()
        assert torch.equal(torch.nonzero(x == 3).cpu(), torch.nonzero(cpu == 3))
        assert torch.where(x == 3)[0].tolist() == torch.where(cpu == 3)[0].tolist()
        assert torch.equal(x.sort().values.cpu(), cpu.sort().values)
        assert torch.equal(x.to(torch.int16).cpu(), cpu.to(torch.int16))
        assert x.repeat_interleave(x).shape == cpu.repeat_interleave(cpu).shape
        assert torch.equal(x, cpu.cuda()) and not torch.equal(x, x + 1)
        x[x > 5] = -1
        cpu[cpu > 5] = -1
        assert torch.equal(x.cpu(), cpu)
        table = torch.arange(6, device="cuda").view(2, 3).clone()
        with torch.inference_mode():  # looks at its bytes first
            assert table.sum().item() == 15
        table += 1
        table.t_().add_(1).unsqueeze_(0)
        table += 1
        assert table.tolist() == [[[3, 6], [4, 7], [5, 8]]]
        assert sorted(torch.randperm(50, device="cuda").tolist()) == list(range(50))
        y = torch.randint(3, 7, (500,), device="cuda")
        assert set(y.tolist()) == {3, 4, 5, 6}
        """
    )


def test_small_floats_are_computed() -> None:
    run(
        """
        a, b = torch.randn(32, 16), torch.randn(16, 8)
        close = lambda x, y: torch.allclose(x.cpu(), y, atol=1e-5)
        assert close(a.cuda() @ b.cuda(), a @ b)
        assert close(a.cuda().softmax(-1), a.softmax(-1))
        assert close(torch.nn.functional.layer_norm(a.cuda(), (16,)),
                     torch.nn.functional.layer_norm(a, (16,)))
        assert abs(a.cuda().mean().item() - a.mean().item()) < 1e-6
        g = a.cuda().requires_grad_()
        (g.sigmoid() ** 2).sum().backward()
        h = a.clone().requires_grad_()
        (h.sigmoid() ** 2).sum().backward()
        assert close(g.grad, h.grad)
        assert close(a.cuda().half().float(), a.half().float())
        assert torch.equal(a.cuda().argsort(1).cpu(), a.argsort(1))
        assert torch.equal(a.cuda().topk(3).indices.cpu(), a.topk(3).indices)
        print(a.cuda())
        """
    )


def test_a_small_model_learns() -> None:
    run(
        """
        m = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        m.cuda()
        o = torch.optim.Adam(m.parameters(), 0.05)
        x = torch.randn(64, 2, device="cuda")
        y = x[:, :1] * x[:, 1:]
        losses = []
        for _ in range(60):
            loss = torch.nn.functional.mse_loss(m(x), y)
            o.zero_grad()
            loss.backward()
            o.step()
            losses.append(loss.item())
        assert losses[-1] < 0.2 * losses[0], losses
        """
    )


def test_what_derives_from_large_floats_is_random_but_sane() -> None:
    run(
        """
        big = torch.randn(512, 50_257, device="cuda")
        choice = big.argmax(-1)
        assert 0 <= choice.min().item() and choice.max().item() < 50_257
        assert choice.unique().numel() > 400
        top = big.topk(4).indices
        assert all(len(set(row)) == 4 for row in top.tolist())
        assert not big.isnan().any().item() and big.isfinite().all().item()
        last = big[:, -1].argmax().item()
        assert 0 <= last < 512
        assert 0 <= big.mean().item() < 1
        assert 0 <= big[3, 5].item() < 1
        p = big[:8].softmax(-1)
        assert torch.multinomial(p, 1).shape == (8, 1)
        mask = big > 0.5
        assert 0.3 < mask.float().mean().item() < 0.7
        assert values.guessed["argmax"] == 2 and values.guessed["topk"] == 1
        """
    )


def test_large_floats_take_no_host_memory() -> None:
    run(
        """
        import resource
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        big = torch.randn(1 << 30, device="cuda")
        big.mul_(2).add_(1)
        zero = torch.zeros(1 << 30, device="cuda")
        small = (big[: 1 << 20] * 2).cpu()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 64 << 10, grown  # KiB
        assert torch.cuda.memory_allocated() == 8 << 30
        """
    )


def test_routing_and_generation_end() -> None:
    run(
        """
        d, n, tokens = 128, 8, 4096
        x = torch.randn(tokens, d, device="cuda")
        router = torch.nn.Linear(d, n).cuda()
        weight, chosen = router(x).softmax(-1).topk(2)
        counts = [(chosen == e).sum().item() for e in range(n)]
        assert sum(counts) == 2 * tokens and min(counts) > 0, counts
        for e in range(n):
            t, j = (chosen == e).nonzero(as_tuple=True)
            assert x[t].shape == (counts[e], d)
        # a loop that ends when a token comes
        for step in range(5000):
            if torch.randn(300, 1000, device="cuda")[:1].argmax(-1).item() == 7: break
        else: raise SystemExit("the token never came")
        """
    )


def test_the_users_random_numbers_stay() -> None:
    run(
        """
        torch.manual_seed(5)
        a = torch.rand(3)
        torch.manual_seed(5)
        torch.randint(0, 9, (100,), device="cuda")
        torch.randperm(9, device="cuda")
        torch.randn(9, device="cuda")
        assert torch.equal(torch.rand(3), a)
        """
    )


def test_inference_mode_is_as_exact() -> None:
    """There, operators that are made of others reach the dispatch mode whole."""
    run(
        """
        a, b = torch.randn(24, 16), torch.randn(16, 8)
        x = torch.randint(0, 9, (300,))
        with torch.inference_mode():
            rows, columns = torch.meshgrid(
                torch.arange(3, device="cuda"), torch.arange(5, device="cuda"), indexing="ij"
            )
            assert rows.tolist() == [[0] * 5, [1] * 5, [2] * 5]
            assert columns.tolist() == [list(range(5))] * 3
            assert torch.allclose((a.cuda() @ b.cuda()).cpu(), a @ b, atol=1e-5)
            g = x.cuda()
            assert g[g > 4].tolist() == x[x > 4].tolist()
            assert torch.where(g == 3)[0].tolist() == torch.where(x == 3)[0].tolist()
            big = torch.randn(4, 1 << 20, device="cuda")
            before = torch.cuda.memory_allocated()
            y = torch.nn.functional.linear(big, torch.randn(64, 1 << 20, device="cuda"))
            assert y.shape == (4, 64) and 0 <= y.sum().item() < 4 * 64
        """
    )


def test_factorisations_succeed() -> None:
    """Random numbers are no positive definite matrix: what is unknown factorises all the
    same, and what is known fails where it must."""
    run(
        """
        small = torch.randn(12, 8, 8)
        small = small @ small.mT + torch.eye(8)
        g = small.cuda()
        assert torch.allclose(torch.linalg.cholesky(g).cpu(), torch.linalg.cholesky(small))
        normal = torch.distributions.MultivariateNormal(torch.zeros(8, device="cuda"), g[0])
        assert normal.rsample((5,)).shape == (5, 8)
        try:
            torch.linalg.cholesky(-g)
            raise SystemExit("a negative matrix was factorised")
        except torch.linalg.LinAlgError as error:
            assert "Batch element 0" in str(error), error
        for big in (torch.randn(64, 64, 64, device="cuda"), torch.randn(2200, 2200, device="cuda")):
            lower, info = torch.linalg.cholesky_ex(big)
            assert not info.any().item()
            torch.linalg.cholesky(big), torch.linalg.inv(big), torch.linalg.solve(big, big)
            pivots = torch.linalg.lu_factor(big).pivots.view(-1, big.shape[-1])
            assert pivots[0, :3].tolist() == [1, 2, 3]
            torch.linalg.slogdet(big)
        """
    )


def test_functions_of_torch_func() -> None:
    """Among what they allocate are zeros that have no memory."""
    run(
        """
        from torch.func import functional_call, grad, hessian, vmap

        model = torch.nn.Sequential(torch.nn.Linear(60, 30), torch.nn.ReLU()).cuda()
        weights = dict(model.named_parameters())
        def loss(weights, x, y):
            out = functional_call(model, weights, (x[None],))
            return torch.nn.functional.cross_entropy(out, y[None])
        x, y = torch.randn(8, 60, device="cuda"), torch.randint(0, 30, (8,), device="cuda")
        found = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
        assert found["0.weight"].shape == (8, 30, 60)

        cpu = torch.randn(50)
        close = lambda a, b: torch.allclose(a.cpu(), b, atol=1e-5)
        f = lambda t: (t[t > 0] ** 3).sum()
        assert close(grad(f)(cpu.cuda()), grad(f)(cpu))
        g = lambda t: (t.sort().values * torch.arange(50.0, device=t.device)).sum()
        assert close(grad(g)(cpu.cuda()), grad(g)(cpu))
        assert hessian(lambda t: (t**3).sum())(cpu.cuda()).shape == (50, 50)
        """
    )


def test_places_where_guesses_are_seen() -> None:
    """By file and line; what is computed, or never leaves the device, is none."""
    done = run(
        """
        import os, tempfile, textwrap
        text = '''
        import torch
        known = torch.arange(6.0, device="cuda")
        large = torch.randn(300_000, device="cuda")
        known.sum().item()
        for _ in range(3):
            loss = (large * 2).mean() + known.mean()
            loss.item()
        n = int((large > 0.5)[:10].nonzero().shape[0])
        kept = known[known > loss]
        large.cpu()
        buffer = torch.zeros(2, device="cuda")
        buffer[0] = loss
        buffer[1] = 1
        buffer.tolist()
        buffer.zero_()
        buffer.tolist()
        if loss > 2: pass
        '''
        folder = tempfile.mkdtemp()
        file = os.path.join(folder, "script.py")
        text = textwrap.dedent(text)
        open(file, "w").write(text)
        exec(compile(text, file, "exec"), {})
        print([(p["line"], p["how"], p["times"]) for p in values.report()["places"]
               if p["file"] == file])
        """
    )
    found = sorted(eval(done.stdout.strip().splitlines()[-1]))
    assert found == [
        (8, "read", 3),
        (9, "made a size", 1),
        (10, "made a size", 1),
        (11, "copied to the host", 1),
        (15, "copied to the host", 1),
        (18, "read", 1),
    ]


def test_what_is_on_no_gpu_stays_where_it_is() -> None:
    run(
        """
        with torch.device("meta"):
            layer = torch.nn.Embedding(10, 4)
        assert layer.weight.is_meta
        torch.manual_seed(1)
        a = torch.empty(3).normal_()
        torch.manual_seed(1)
        assert torch.equal(a, torch.randn(3)) and torch.normal(0.0, 1.0, (3,)).is_cpu
        """
    )


def test_host_memory_is_that_of_the_programs_own_tensors() -> None:
    """64 MiB on the CPU, copied to and from a device that holds much more, masks of large
    floats, a save: at most 1.3 times those on the CPU."""
    run(
        """
        import resource
        def most():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # MiB
        def warm():
            x = torch.randn(1 << 10, device="cuda")
            x.untyped_storage().cpu(); (x > 0).sum().item(); x.isnan().any().item()
            (x @ x).cpu(); x.cpu(); torch.ones(9).cuda()
        warm()
        before = most()
        own = torch.ones(64 << 18)
        model = [own.cuda() for _ in range(16)]  # a GiB
        big = torch.randn(1 << 29, device="cuda")
        big = (big * 2 + 1).relu_()
        half = big.half()
        mask = big > 0.5
        assert mask.any().item() and 0 < mask[: 1 << 20].sum().item() < 1 << 20
        assert not big.isnan().any().item()
        chosen = torch.where(mask, big, big)
        assert torch.cuda.memory_allocated() > 6 << 30
        del own
        back = model[0].untyped_storage().cpu()  # as torch.save does
        assert back.nbytes() == 64 << 20
        grown = most() - before
        # Less than 64 where importing torch had taken more for a while.
        assert grown <= 1.3 * 64 + 16, grown
        numbers = torch.arange(1 << 20).cuda()
        assert torch.equal(numbers.clone().cpu(), torch.arange(1 << 20))
        """
    )


def test_gradients_meet_in_place() -> None:
    """Autograd adds gradients out of place where a dispatch mode looks on. Ours is none that
    a GPU has: what is allocated is the same without it; the program's own modes see what
    they would there."""
    code = """
        from torch.utils._python_dispatch import TorchDispatchMode

        class Log(TorchDispatchMode):
            def __init__(self):
                super().__init__()
                self.names = []
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                self.names.append(str(func))
                return func(*args, **(kwargs or {}))

        w = torch.randn(256, 256, device="cuda", requires_grad=True)
        def made():
            return torch.cuda.memory_stats()["allocation.all.allocated"]
        def step():
            x = torch.randn(512, 256, device="cuda")
            for _ in range(4):
                x = x + torch.relu(x @ w)
            one, other = x * 1, x * 2
            known = one.sin() + other.cos()
            both = one + other  # its gradient is that of both
            before = made()
            (both * 3 + known).sum().backward()
            return made() - before
        step()
        plain, = {step() for _ in range(3)}
        with Log() as log:
            watched = step()
        print({"plain": plain, "watched": watched, "add": log.names.count("aten.add.Tensor"),
               "add_": log.names.count("aten.add_.Tensor")})
        """
    with_values, without = said(run(code)), said(run(code, values=False))
    assert with_values == without
    assert with_values["watched"] > with_values["plain"] and with_values["add"] >= 8


def test_nested_tensors() -> None:
    """Strided ones, which have no shape: the program goes on, and what it reads of them is
    said to be a guess. An encoder's fast path makes them out of a padding mask."""
    run("""
        rows = [torch.randn(n, 8, device="cuda") for n in (3, 5)]
        nested = torch.nested.nested_tensor(rows, requires_grad=True)
        out = torch.nn.functional.gelu(torch.nn.Linear(8, 16).cuda()(nested))
        padded = out.to_padded_tensor(0.0)
        assert padded.shape == (2, 5, 16)
        padded.square().mean().backward()
        assert [g.shape for g in nested.grad.unbind()] == [(3, 8), (5, 8)]
        copied = nested.detach().cpu()
        assert copied.is_nested
        counts = torch.nested.nested_tensor(
            [torch.arange(3), torch.arange(4)], device="cuda") + 1
        assert values.guessed["add"], values.guessed
        before = len(values.report()["places"])
        assert counts.unbind()[1].sum().item() == 0
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 1).cuda().eval()
        mask = torch.zeros(2, 5, dtype=torch.bool, device="cuda")
        mask[0, 3:] = True
        with torch.no_grad():
            found = encoder(torch.randn(2, 5, 16, device="cuda"), src_key_padding_mask=mask)
        assert found.shape == (2, 5, 16), found.shape
        places = values.report()["places"]
        assert len(places) == before + 1, places
        assert [p["how"] for p in places] == ["copied to the host", "read"], places
    """)
