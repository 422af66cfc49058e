"""Networks that have something wrong, and the simplest one: they know nothing of istmpi."""

import torch
from torch import nn
from torch.nn import functional


class TwoLayers(nn.Module):
    """The simplest network with a width."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Square(TwoLayers):
    """Takes no narrow width but squares."""

    def __init__(self, features, outputs, hidden=16):
        if int(hidden**0.5) ** 2 != hidden:
            raise ValueError(f"{hidden} is no square")
        super().__init__(features, outputs, hidden)


class Silent(nn.Module):
    """Its hidden units never reach the outputs."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__()
        self.first = nn.Linear(features, 3 * hidden)
        self.last = nn.Linear(features, outputs)

    def forward(self, x):
        return self.last(x) + 0 * self.first(x).sum()


class NoDefault(TwoLayers):
    """An argument that nobody gives."""

    def __init__(self, features, outputs, hidden):
        super().__init__(features, outputs, hidden)


class OtherOutputs(TwoLayers):
    """One output too few."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__(features, outputs - 1, hidden)


class Failing(TwoLayers):
    """Its forward fails."""

    def forward(self, x):
        return self.last(x)


class Odd(nn.Module):
    """One thing that cannot be trained, by the name of it."""

    def __init__(self, features, outputs, what, hidden=8):
        super().__init__()
        self.what = what
        self.first = nn.Linear(features, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.last = nn.Linear(hidden, outputs)
        if what == "scalar":
            self.scale = nn.Parameter(torch.tensor(1.0))
        elif what == "computed":
            self.scale = nn.Parameter(torch.linspace(1, 2, features))
        elif what == "random buffer":
            self.register_buffer("noise", torch.randn(features))
        elif what == "counting":
            self.register_buffer("count", torch.zeros(1))
        elif what == "complex":
            self.scale = nn.Parameter(torch.ones(features, dtype=torch.complex64))
        elif what == "lazy":
            self.last = nn.LazyLinear(outputs)
        elif what == "by hand":
            self.weight = nn.Parameter(torch.randn(hidden, hidden))

    def forward(self, x):
        if self.what == "counting":
            self.count.add_(1)
        x = self.first(x) if self.what == "no call" else torch.relu(self.norm(self.first(x)))
        return self.last(x @ self.weight if self.what == "by hand" else x)


class OwnEnd(BaseException):
    """What no ``except Exception`` catches."""


class Faulty(nn.Module):
    """One thing that goes wrong in its constructor or its forward, by the name of it."""

    def __init__(self, features, outputs, what, hidden=8):
        super().__init__()
        if what == "constructor leaves":
            raise SystemExit(5)
        if what == "constructor's own end":
            raise OwnEnd("over")
        self.what = what
        torch.set_grad_enabled(what != "no gradients" and torch.is_grad_enabled())
        self.first = nn.Linear(features, hidden, device="meta" if what == "meta" else None)
        self.last = nn.Linear(hidden, outputs)
        if what == "inf":
            self.gain = nn.Parameter(torch.full((features,), torch.inf))
        if what == "script":
            self.first = torch.jit.script(self.first)

    def forward(self, x):
        if self.what == "forward leaves":
            raise SystemExit("enough")
        if self.what == "few examples" and len(x) > 3:
            raise RuntimeError("no more than three")
        if self.what == "logarithm":
            x = torch.log(-1 - x.abs())
        if self.what == "training" and self.training:
            raise RuntimeError("only in use")
        outputs = self.last(torch.relu(self.first(x)))
        if self.what == "constant":
            return 0 * outputs
        if self.what == "seldom drops":
            return functional.dropout(outputs, 0.01)
        if self.what in ("nothing", "text"):
            return {"nothing": None, "text": "scores"}[self.what]
        if self.what == "two":
            return outputs, x
        if self.what == "two in training" and self.training:
            return outputs, outputs
        if self.what == "integers":
            return outputs.long()
        return outputs.detach() if self.what == "detached" else outputs


class MakesNumbers(nn.Linear):
    """A class whose objects are others."""

    def __new__(cls, features, outputs):
        return features


class PooledToo(TwoLayers):
    """One width for hidden units and for neighbouring features that are averaged, which have an order."""

    def __init__(self, features, outputs, hidden=8):
        super().__init__(features, outputs, hidden)
        self.hidden, self.other = hidden, nn.Linear(hidden, outputs)

    def forward(self, x):
        return super().forward(x) + self.other(functional.adaptive_avg_pool1d(x[:, None], self.hidden)[:, 0])


class Steps(TwoLayers):
    """Takes even widths alone."""

    def __init__(self, features, outputs, hidden=8):
        if hidden > 7 and hidden % 2:
            raise ValueError(f"{hidden} is odd")
        super().__init__(features, outputs, hidden)


class Fixed(nn.Module):
    """It has no width."""

    def __init__(self, features, outputs):
        super().__init__()
        self.last = nn.Linear(features, outputs)

    def forward(self, x):
        return self.last(x)


NOT_A_NETWORK = 3
