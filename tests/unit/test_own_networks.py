"""What is found out about networks of users: which axes go with which widths, proved; and what is refused."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import networks
import pytest
import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.inspection.examine import inspect
from istmpi.inspection.inference import infer
from istmpi.inspection.orders import Band, Growth
from istmpi.inspection.proof import Trial
from istmpi.network.arguments import user_network
from tests.networks import joined_nets

FILE = Path(networks.__file__)
SEVEN = "--shape", "7", "--outputs", "10", "--set"
IMAGE, SEQUENCE, FLAT = (3, 16, 16), (10, 6), (7,)


def network(name, shape):
    return user_network(f"{FILE}:{name}", shape, 10, {})


@cache
def inferred(name, shape):
    return infer(network(name, shape))


@pytest.mark.parametrize("name, shape", [("Convolutional", IMAGE), ("Attention", SEQUENCE), ("Interleaved", FLAT)])
def test_every_wrong_axis_is_caught(name, shape):
    """Of what is proved, each axis is read otherwise where it can be, or left out: the outputs change."""
    own = network(name, shape)
    moving = {
        of.width.name: {place: Growth(run.outer * run.inner) for place, (run,) in of.axes.items()}
        for of in inferred(name, shape).findings
        if of.axes
    }
    proved = [finding for finding in inferred(name, shape).findings if finding.proved]
    assert len(proved) >= 2
    for finding in proved:
        trial = Trial(own, finding.width, moving)
        assert trial.broken_by(finding.axes) == ""
        for place, (run,) in finding.axes.items():
            ratio = run.outer * run.inner
            for other in [Band(a, ratio // a) for a in range(1, ratio + 1) if ratio % a == 0]:
                if other != run:
                    assert trial.broken_by({**finding.axes, place: (other,)}), (finding.width.name, place, other)
            if len(finding.axes) > 1:
                left = {key: reading for key, reading in finding.axes.items() if key != place}
                assert trial.broken_by(left), (finding.width.name, place)


@pytest.mark.parametrize(
    "name, shape, width, problem",
    [
        ("Multihead", SEQUENCE, "heads", "no parameter's shape depends on it"),
        ("Square", FLAT, "hidden", f"its double is refused ({FILE}:Square: its constructor fails with hidden = 32: V"),
        ("Silent", FLAT, "hidden", "the outputs do not show the order of its units in any parameter: they"),
    ],
)
def test_what_cannot_be_dealt_has_a_reason(name, shape, width, problem):
    reasons = {finding.width.name: finding.problem for finding in inferred(name, shape).findings}
    assert reasons[width].startswith(problem)


def test_of_many_ways_to_read_the_axes_of_a_width_that_is_alone_one_is_enough(monkeypatch):
    """Any order of the channels is right here: 8 * 5 * 8 readings, each of which takes a pass for each axis."""
    tried, broken_by = [], Trial.broken_by
    monkeypatch.setattr(Trial, "broken_by", lambda self, reading: tried.append(reading) or broken_by(self, reading))
    found = inferred("Expanding", (3, 8, 8))
    assert [*found.lengths] == ["expand"] and len(tried) == 1
    assert str(found.parameters["layers.3.weight"]) == "(expand 24) 1 3 3"
    assert str(found.parameters["layers.5.weight"]) == "24 (expand 24) 1 1"


def test_the_command_tells(answer):
    words = "model", f"{FILE}:Convolutional", "--shape", "3x16x16", "--outputs", "10", "--set", "model.hidden=32"
    out = answer(*words)
    assert "hidden (channels2 16)" in out and "64 x (9 channels1) x channels2" in out
    facts = json.loads(answer(*words, "--json", "--ranks", "2,64"))
    assert facts["settings"] == {"channels": [16, 32], "hidden": 32}
    assert facts["held"]["64"] is None and facts["held"]["2"] < facts["elements"]
    assert facts["flops_of_held"]["64"] is None and facts["flops_of_held"]["2"] < facts["flops"]
    dense = next(operator for operator in facts["operators"] if operator["module"] == "dense")
    assert dense["shape"] == "1 (16 channels2) hidden" and dense["parameter"] == "dense.weight" and dense["axis"] == 0
    assert dense["flops"] == 2 * 32 * 512 and dense["backward_flops"] == 2 * dense["flops"]
    assert facts["flops"] == sum(one["flops"] + one["backward_flops"] for one in facts["operators"])


def test_the_network_of_an_own_loop_takes_the_inputs_of_its_batches(istmpi_command, answer, refusal, tmp_path):
    file = tmp_path / "loop.py"
    file.write_text("import torch\nfirst = (torch.zeros(6, 5), torch.zeros(6, 5))\nsecond = lambda: first\nnone = 3\n")
    words = "model", f"{FILE}:TwoTowers", "--set", "model.features=5", "--json"
    for name in "first", "second":
        assert json.loads(answer(*words, "--example", f"{file}:{name}"))["shape"] == [5]
    for name, said in (
        ("none", "give the inputs of a batch"),
        ("third", "no third; known: first, none, second, torch"),
    ):
        assert said in refusal(*words, "--example", f"{file}:{name}")
    code, _, err = istmpi_command("model", f"{FILE}:Convolutional", "--json")
    assert code == 0 and "The examples are digits" in err, "digits are not fed in silence"


def test_the_command_tells_what_is_not_dealt_out_by_default(istmpi_command):
    words = "model", f"{FILE}:Attention", "--shape", "10x6", "--outputs", "10"
    assert "but not by default: a residual addition joins embed and out.0" in istmpi_command(*words)[1]
    facts = json.loads(istmpi_command(*words, "--json")[1])
    assert {width["name"]: width["by_default"] for width in facts["widths"]} == {
        "heads": True, "head_dim": False, "embed": False, "hidden": True, "depth": False
    }  # fmt: skip
    narrow = networks.Attention((10, 6), 10, heads=4, hidden=32)
    assert facts["held"]["2"] == sum(parameter.numel() for parameter in narrow.parameters())
    assert facts["replicated"] == 32 * 6 + 32 + 2 * 2 * 32 + 2 * 2 * 32 + 10 * 32 + 10


@pytest.mark.parametrize(
    "words, message",
    [
        ([f"{FILE}"], "give FILE.py:Class or package.module:Class"),
        (["/nowhere.py:Net"], "/nowhere.py does not exist"),
        (["no.such.package:Net"], "cannot be imported: ModuleNotFoundError: No module named 'no'"),
        ([f"{FILE}:Convolutiona"], "has no class Convolutiona; did you mean Convolutional?"),
        (["istmpi.inspection.residual:put"], "put is a function, no torch.nn.Module class; known: Absent"),
        ([f"{FILE}:NOT_A_NETWORK"], "does not have a torch.nn.Module as NOT_A_NETWORK"),
        ([f"{FILE}:NoDefault"], "its argument hidden has no default, and the data do not define it"),
        ([f"{FILE}:OtherOutputs"], r"its forward returns (2, 9) for 2 examples; the data need (2, 10)"),
        ([f"{FILE}:OtherOutputs", "--set", "model.hidden=9"], "or give --set model.hidden=10."),
        ([f"{FILE}:Multihead", "--set", "model.hidden=9"], "unknown setting model.hidden (--hidden)"),
        ([f"{FILE}:Convolutional", "--shape", "3x2x2", "--outputs", "10"], "dense.weight has no elements (64 x 0)"),
        ([f"{FILE}:Joined", "--set", "model.hidden='x'"], "its constructor fails with hidden = 'x': TypeError"),
        ([f"{FILE}:Joined", "--set", "model.hidden=0"], "has no elements"),
        ([f"{FILE}:Joined", "--set", "model.outputs=3"], "model.outputs is the number of classes"),
        ([f"{FILE}:Joined", "--set", "train.rounds=3"], "only arguments of the network can be set here"),
        ([f"{FILE}:Faulty", *SEVEN, "model.what=script"], "its module first is compiled by torch.jit, so its layers"),
        ([f"{FILE}:Joined", "--shape", "3xx"], "give --data, --example, or both --shape and --outputs"),
        ([f"{FILE}:Joined", "--shape", "3xx", "--outputs", "3"], "must be the lengths of an example's axes"),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_what_cannot_be_used_is_refused_in_one_line(refusal, words, message):
    assert message in refusal("model", *words)


@pytest.mark.parametrize(
    "what, problem",
    [
        ("constant", "the outputs do not show the order of its units in any parameter"),
        ("seldom drops", "draws random numbers in evaluation, as functional.dropout does without training=self.traini"),
    ],
)
def test_a_network_of_which_nothing_can_be_dealt_out_is_explained(istmpi_command, what, problem):
    for output in ((), ("--json",)):
        code, out, err = istmpi_command("model", f"{FILE}:Faulty", *SEVEN, f"model.what={what}", *output)
        assert code == 2 and problem in err and err.count("\n") == 1 and problem in out


def with_axes(axes, kind=networks.Attention, **arguments):
    own = user_network(f"{FILE}:{kind.__name__}", SEQUENCE, 10, arguments)
    declared = type("Declared", (kind,), {"AXES": axes}), own.source
    return replace(own, load=lambda: declared)


QKV = {"qkv.0.weight": "(3 heads head_dim) embed", "qkv.0.bias": "(3 heads head_dim)"}


def test_declared_axes_are_taken_once_they_are_proved():
    plain, found = infer(with_axes({})), infer(with_axes(QKV))
    assert found.parameters == plain.parameters and found.lengths == plain.lengths
    for axes, broken in (
        (QKV | {"qkv.0.bias": "(heads 3 head_dim)"}, {"heads"}),
        (QKV | {"qkv.1.weight": "(head_dim heads 3) embed"}, {"heads", "head_dim"}),
    ):
        wrong = {of.width.name: of.problem for of in infer(with_axes(axes)).findings if not of.proved}
        assert wrong.keys() == broken | {"depth"}
        for name in broken:
            assert "exchanging its units as in AXES changes the outputs, first those of" in wrong[name]


@pytest.mark.parametrize(
    "axes, said",
    [
        ("qkv.0.weight", "AXES = 'qkv.0.weight' must be a dict"),
        ({"qkv.0.wight": "a b"}, "AXES names 'qkv.0.wight', which is not a parameter; did you mean qkv.0.weight"),
        ({"out.0.bias": 32}, "32 must be text, such as"),
        ({"out.0.bias": "(embed"}, "a bracket is not closed"),
        ({"out.0.bias": "depth"}, "depth is not a width that a parameter's shape depends on"),
        ({"out.0.bias": "(2 embed)"}, r"AXES has '\(2 embed\)' for out.0.bias: \(64,\), but its shape is \(32,\)"),
        ({"out.0.bias": "(4 heads)"}, "embed is on its axis 0: its length doubles when the width doubles"),
    ],
)
def test_axes_that_are_not_the_networks_are_refused(axes, said):
    with pytest.raises(ConfigError, match=said) as refused:
        infer(with_axes(axes))
    assert "\n" not in str(refused.value)


def test_declared_axes_may_be_sums_and_the_command_shows_them(istmpi_command):
    def declared(text, **arguments):
        own = user_network(f"{joined_nets.__file__}:WideAndDeep", FLAT, 10, arguments)
        kind = type("Declared", (joined_nets.WideAndDeep,), {"AXES": {"last.weight": text}})
        return infer(replace(own, load=lambda: (kind, own.source)))

    assert str(declared("10 7 + hidden2").parameters["last.weight"]) == "10 7 + hidden2"
    for text in ("10 hidden2 + 7", "10 3 + hidden2 + 4"):
        problem = {of.width.name: of.problem for of in declared(text).findings}["hidden2"]
        assert "exchanging its units as in AXES changes the outputs" in problem
    with pytest.raises(ConfigError, match="but its axis 1 has 21 positions when hidden2 doubles"):
        declared("10 (2 hidden2)", hidden2=7)
    _, out, _ = istmpi_command("model", f"{joined_nets.__file__}:WideAndDeep", "--shape", "7", "--outputs", "10")
    assert re.search(r"last.weight +10 7 \+ hidden2 +10 x 21", out) and "1 x (hidden2 + 7) x 10" in out


@pytest.mark.filterwarnings("error")
def test_a_constructor_may_read_weights_that_it_freezes():
    """`from_pretrained` of transformers refuses to read them onto the device of shapes alone."""
    found = inferred("ReadsWeights", FLAT)
    axes = {name: str(pattern) for name, pattern in found.parameters.items()}
    assert axes == {"down.weight": "rank 7", "up.weight": "10 rank"}
    assert [finding.proved for finding in found.findings] == [True]


# ---- the law of two halves


class TwoLayers(nn.Module):
    BIAS = True

    def __init__(self, features, outputs, units=16):
        super().__init__()
        self.first, self.last = nn.Linear(features, units), nn.Linear(units, outputs, bias=self.BIAS)


class OthersAlone(TwoLayers):
    """Each unit adds up the other units: its own place is masked."""

    def forward(self, x):
        h = self.first(x).tanh()
        scores = h[:, :, None] * h[:, None, :]
        scores = scores.masked_fill(torch.eye(h.shape[1], dtype=torch.bool), -torch.inf)
        return self.last((scores.softmax(-1) @ h[..., None])[..., 0])


class Deviation(TwoLayers):
    def forward(self, x):
        h = self.first(x).tanh()
        return self.last(h / h.std(-1, keepdim=True))


class SquareOfWidth(TwoLayers):
    """A sum times the square of the width: the right power of the share is 3, which is not tried."""

    BIAS = False

    def forward(self, x):
        return self.last(self.first(x).tanh()) * self.last.in_features**2


def test_a_deviation_that_fades_with_the_width_is_no_fault_and_a_power_that_is_not_tried_is_refused():
    names = ("OthersAlone", "Deviation", "SquareOfWidth")
    others, deviation, square = (inspect(user_network(f"{__file__}:{name}", (6,), 3, {})) for name in names)
    for table in (others, deviation):
        assert not table.unscaled and table.dealt == ("units",)
        assert 0 < table.fading["units"] < 0.2
    (place,) = square.unscaled
    assert place.startswith("last: two equal halves change the outputs by") and square.dealt == ()
