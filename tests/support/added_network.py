"""A network whose forms add something to the outputs, or seem to."""

import torch
from torch import nn
from torch.nn import functional

LAST = "last.bias"
FORMS = {
    "bias": (lambda net, z, x: z, {LAST}),
    "active": (lambda net, z, x: z, {LAST}),
    "convolution": (lambda net, z, x: z, {LAST}),
    "two axes": (lambda net, z, x: z.view(x.shape[0], -1, 1), {LAST}),
    "added": (lambda net, z, x: z * net.gain + net.offset + 3 * net.prior + net.frozen, {"offset", "prior", "frozen"}),
    "gain": (lambda net, z, x: z * net.gain, set()),
    "bend": (lambda net, z, x: torch.relu(z + 5), set()),
    "skip": (lambda net, z, x: z + net.skip(x), {LAST}),
    "written": (lambda net, z, x: z + 0 * net.prior.mul_(1.0) + net.frozen, {LAST, "frozen"}),
    "integers": (lambda net, z, x: z + net.shown(x), {LAST}),
    "dropout": (lambda net, z, x: functional.dropout(z, 0.5, net.training), None),
    "dict": (lambda net, z, x: {"logits": z}, None),
    "one number": (lambda net, z, x: z.sum(), None),
}
"""What follows two layers, and the names of what is only added (None: not for that test), by form."""


class Added(nn.Module):
    def __init__(self, features, outputs, form="bias", hidden=9):
        super().__init__()
        assert form != "written" or hidden % 3 == 0, "units come in threes"
        kernel = [1] * (form == "convolution")
        last = nn.Conv1d if kernel else nn.Linear
        self.form = form
        self.first = (nn.Embedding if form == "integers" else last)(features, hidden, *kernel)
        self.last = last(hidden, outputs, *kernel)
        self.skip = nn.Linear(features, outputs, bias=False)
        self.shown = nn.Embedding(features, outputs)
        self.gain = nn.Parameter(torch.ones(outputs))
        self.offset = nn.Parameter(torch.full((1, outputs), 2.0))
        self.frozen = nn.Parameter(torch.ones(outputs), requires_grad=False)
        self.register_buffer("prior", torch.arange(float(outputs)))
        nn.init.ones_(self.last.bias)
        if form == "active":
            nn.init.constant_(self.first.bias, 99.0)

    def forward(self, x):
        x = {"convolution": x.unsqueeze(-1), "integers": x.flatten()}.get(self.form, x)
        return FORMS[self.form][0](self, self.last(torch.relu(self.first(x))), x)
