"""Data sets, losses, scores and networks that cannot be used, by name: `DATA` and `NETWORKS` say why."""

import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import default_collate

FILE = __file__
X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    QUANTIZED = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)


def boom(*_, **__):
    raise RuntimeError("boom")


class Silent(Exception):
    """An exception without a text."""

    def __str__(self):
        raise ValueError


def silent(*_):
    raise Silent


class Own(BaseException):
    """An error that no ``except Exception`` catches."""


def fail(*_):
    raise Own("mine")


class Examples(torch.utils.data.Dataset):
    classes = ("no", "yes")

    def __init__(self, item=lambda i: (X[i], int(Y[i])), **attributes):
        self.item = item
        vars(self).update(attributes)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.item(index)


def both(item=lambda i: (X[i], int(Y[i])), **attributes):
    return lambda: (Examples(item, **attributes), Examples(item, **attributes))


def with_test(item, **attributes):
    """A test split that differs from the training split."""
    return lambda: (Examples(), Examples(item, **attributes))


def derived(**methods):
    kind = type("Derived", (Examples,), methods)
    return lambda: (kind(), kind())


def collated(change):
    return both(collate=lambda items: change(default_collate(items)))


def the_disk_is_gone():
    raise OSError("the disk is gone")


NAMES = "Give a list of names in the order of their numbers, or the number of classes."
DATA = {
    # ---- the function
    "missing": (None, "it has no function missing"),
    "failing": (the_disk_is_gone, "fails: OSError: the disk is gone"),
    "list_of_three": (lambda: [1, 2, 3], "it returns a list of 3 (int, int, int) instead of (train, test), (train,"),
    "without_len": (lambda: (iter([1]),) * 2, "Use a loader or an iterable data set in your own loop: istmpi.Distri"),
    "of_no_examples": (lambda: ([], []), "train is empty; it needs at least one example"),
    # ---- the data set's own methods and attributes
    "len_raises": (derived(__len__=boom), "train: __len__ fails: RuntimeError: boom. It is raised in"),
    "len_is_negative": (derived(__len__=lambda self: -1), "train: __len__ fails: ValueError"),
    "len_lies": (derived(__len__=lambda self: 1000), "cannot be read: IndexError"),
    "item_raises": (both(boom), "train example 0 cannot be read: RuntimeError: boom"),
    "item_fails": (both(fail), "train example 0 cannot be read: Own: mine"),
    "attributes_raise": (derived(__getattr__=boom), "train: its attribute collate fails: RuntimeError: boom"),
    # ---- classes
    "classes_set": (both(classes={"no", "yes"}), f"of type set. {NAMES}"),
    "classes_text": (both(classes="ny"), f"of type str. {NAMES}"),
    "classes_bytes": (both(classes=b"ny"), f"of type bytes. {NAMES}"),
    "classes_true": (both(classes=True), f"of type bool. {NAMES}"),
    "classes_negative": (both(classes=-1), f"of type int. {NAMES}"),
    "classes_nested": (both(classes=[["no"], ["yes"]]), f"of type list. {NAMES}"),
    "classes_twice": (both(classes=["no", "no"]), "has the class no twice in its attribute classes"),
    "classes_one": (both(lambda i: (X[i], 0), classes=["no"]), "has one class, no. A network needs at least two"),
    "classes_differ": (
        with_test(lambda i: (X[i], 0), classes=("yes",)),
        "test has other classes than train (the first that differ: no and yes)",
    ),
    # ---- splits that do not fit together
    "another_split": (lambda: {"train": Examples(), "more": Examples()}, "it returns a dict of train, more instead of"),
    "keys_raise": (lambda: type("Dict", (dict,), {"keys": boom})(train=1), "its result fails: RuntimeError: boom"),
    "test_shape": (
        lambda: (Examples(lambda i: (X[i].reshape(2, 3), 0)), Examples(lambda i: (X[i].reshape(3, 2), 0))),
        "test has examples of shape (3, 2), and the first training examples have (2, 3)",
    ),
    "test_bytes": (with_test(lambda i: (X[i].byte(), 0)), "test has examples of uint8, and the first training"),
    "test_dicts": (with_test(lambda i: ({"x": X[i]}, 0)), "test has examples of dict, and the first training"),
    "test_fractions": (with_test(lambda i: (X[i], 0.7)), "test has targets of float, and the first training examples"),
    "test_transposed": (
        lambda: (Examples(lambda i: (X[i], X[i].reshape(2, 3))), Examples(lambda i: (X[i], X[i].reshape(3, 2)))),
        "targets have the shape (3, 2), and those of the first training examples (2, 3)",
    ),
    "flags": (both(lambda i: (X[i], Y[i] > 0), classes=()), "targets of bool; only integers and floats have a default"),
    "pairs": (both(lambda i: {"left": X[i], "label": Y[i]}), "entries left, label, which are passed by name to your"),
    "bare": (both(lambda i: X[i]), "train has examples that are not (inputs, target) or dicts"),
    "label_100": (both(lambda i: (X[i], -100)), "train has class -100; there are 2, numbered from 0"),
    # ---- examples
    "texts": (both(lambda i: ("text", 0)), "train has inputs without tensors. Turn texts, arrays and other objects"),
    "nothing": (both(lambda i: (None, 0)), "train example 0 cannot be put into a batch: TypeError"),
    "empty": (both(lambda i: (X[i][:0], 0)), "train has inputs without values, of shape (16, 0)"),
    "numbers_as_keys": (both(lambda i: ({0: X[i]}, 0)), "train has inputs with the key 0. Keys must be names"),
    "three_parts": (both(lambda i: (X[i], X[i], 0)), "examples that are not (inputs, target) or dicts but 3 parts"),
    "meta": (both(lambda i: (torch.empty(6, device="meta"), 0)), "train has tensors that are on the device meta"),
    "quantized": (both(lambda i: (QUANTIZED[i], 0)), "train has tensors that are quantized. Give plain tensors"),
    "lengths": (both(lambda i: (X[i][: 3 + i % 2], 0)), "train example 1 cannot be batched with example 0"),
    "bytes": (both(lambda i: (X[i].byte(), int(Y[i]))), "mlp: forward fails: RuntimeError"),
    # ---- collate functions
    "collate_number": (both(collate=5), "train has collate = 5; it must be a function of a list of examples"),
    "collate_raises": (both(collate=boom), "train: its collate function fails for examples 0, 1, 2, 3, ...: RuntimeE"),
    "collate_doubles": (
        collated(lambda batch: [torch.cat([part, part]) for part in batch]),
        "train: its collate function makes examples of shape (2, 6) from 1 example;",
    ),
    "collate_drops": (collated(lambda batch: [batch[0], batch[1][1:]]), "makes targets of shape (0,) from 1 example;"),
}
globals().update({name: function for name, (function, _) in DATA.items() if function})
drops = collated(lambda batch: [part[: max(1, len(part) - 1)] for part in batch])


class Net(nn.Module):
    def __init__(self, features=6, outputs=2, hidden=8):
        super().__init__()
        self.a, self.b = nn.Linear(features, hidden), nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

    @staticmethod
    def loss(outputs, batch):
        return functional.cross_entropy(outputs, batch[1])

    @staticmethod
    def score(outputs, batch):
        return (outputs.argmax(1) == batch[1]).float().mean()


class Plain(Net):
    """A network with the default loss and score."""

    loss = score = None


def net(**members):
    """A class with other members of `Net`; functions of (outputs, batch) are static."""
    statics = {name: staticmethod(value) for name, value in members.items() if name in ("loss", "score")}
    return type(
        "Changed", (Net,), {**members, **{name: each for name, each in statics.items() if callable(members[name])}}
    )


def loss_that_is(value):
    return net(loss=lambda outputs, batch: value)


def score_that_is(value):
    return net(score=lambda outputs, batch: value)


def backward_before(outputs, batch):
    loss = Net.loss(outputs, batch)
    loss.backward()
    return loss


FORMS = "it must return one number (the mean over a batch's rows), a pair (sum, count) or a dict of these"
NETWORKS = {
    "Loss5": (net(loss=5), "loss = 5 must be a function of (outputs, batch)"),
    "BuiltIn": (net(loss=max), "loss must take exactly (outputs, batch)"),
    "HigherText": (net(higher_is_better="no"), "higher_is_better = 'no' must be True or False"),
    "NameNothing": (net(score_name=None), "score_name = None must be a text"),
    "LossOfRows": (net(loss=lambda outputs, _: outputs[:, 0]), "loss returns a value of shape ("),
    "LossDetached": (net(loss=lambda outputs, _: outputs.detach().mean()), "loss has no gradient"),
    "LossConstant": (loss_that_is(torch.zeros((), requires_grad=True)), "the loss does not depend on the network"),
    "LossNothing": (loss_that_is(None), f"loss returns a value of type NoneType; {FORMS}"),
    "LossRaises": (net(loss=boom), "loss fails: RuntimeError: boom. It is raised in"),
    "LossBackward": (net(loss=backward_before), "the backward pass fails: RuntimeError"),
    "ScoreHuge": (score_that_is(10**400), "score returns a value of type int"),
    "ScoreOfBad": (score_that_is({"a": "x"}), "score: a returns a value of type str"),
    "ScoreRaises": (net(score=silent), "score fails: Silent. It is raised in"),
    "ForwardRaises": (net(forward=boom), "its forward fails on tensors of (2, 6): RuntimeError: boom"),
    "ForwardRaisesLate": (
        net(forward=lambda self, x: boom() if len(x) > 20 else Net.forward(self, x)),
        "forward fails: RuntimeError: boom. It is raised in",
    ),
    "TrainRaises": (net(train=boom), "train fails: RuntimeError: boom. It is raised in"),
}
globals().update({name: kind for name, (kind, _) in NETWORKS.items()})
fine = both()
