"""The networks of this folder, and what is true of each; written by hand, before and beside the code that finds it out.

`ROWS` has a row for each class. A row's ``uses`` say where a subnet of half the units sums half as much as the full
network.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

FLAT, IMAGE, SEQUENCE, TOKENS, NODES = (6,), (2, 8, 8), (5, 6), (7,), (9,)
OUTPUTS, VOCABULARY = 3, 256

ORDER = "exchanging its units"
"""Units are not interchangeable: exchanging them changes the outputs."""
COUNT = "changes which parameters exist"
"""It counts modules, of which none adds to its input."""
HALVES = "two equal halves change the outputs"
"""No factor makes a sum over its units right."""


@dataclass(frozen=True, eq=False)
class Row:
    """The truth about a network."""

    network: str
    """Its class, as ``dense_nets.Mlp``."""
    shape: tuple[int, ...]
    uses: str = ""
    """The arguments whose units are interchangeable, with a number behind one of a list: ``hidden1: up.weight, wide``.

    Behind the colon stand the uses that sum over the argument's units, with no batch normalisation directly behind: the
    names of parameters, with the power of the share behind ``^`` if it is not 1. With a ``|`` behind a name only the
    units' positions count, beside which others lie on the axis. Behind a ``+`` stand uses that are of no parameter, or
    of one that has another use, too."""
    undealt: Mapping[str, str] = field(default_factory=dict)
    """The other integers, each with the kind of its reason."""
    default: str | None = None
    """The arguments that are dealt out by default, where that is not all of them."""
    blocks: str = ""
    """Arguments among them whose units are whole blocks."""
    means: str = ""
    """Arguments whose units are averaged so that a network of twins averages others: the few best of all."""
    trains: bool | None = True
    """IST must train it by default; None: it may be refused as well, as ``refused`` says."""
    refused: str = ""
    """The kind of reason why it cannot be trained; without it, and where ``trains`` is False, those of ``undealt``."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of a run that it needs."""
    fan: Mapping[str, int] = field(default_factory=dict)
    """The number of inputs that initial values of a parameter follow, where its shape alone does not tell."""
    kept: tuple[str, ...] = ()
    """Parameters that start as the constructor made them, with these settings."""
    dtype: str = "float64"

    @property
    def name(self) -> str:
        """The class alone."""
        return self.network.partition(".")[2]

    @property
    def dealt(self) -> str:
        """The names of the arguments whose units are interchangeable."""
        return " ".join(part.partition(":")[0].strip() for part in self.uses.split(","))

    @property
    def scaled(self) -> dict[str, str]:
        """The uses that sum over each argument's units, where there are any."""
        pairs = [part.split(":") for part in self.uses.split(",") if ":" in part]
        return {name.strip(): uses.strip() for name, uses in pairs}

    @property
    def default_groups(self) -> set[str]:
        """The names of what is dealt out by default."""
        return set((self.dealt if self.default is None else self.default).split())

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return VOCABULARY if self.shape == TOKENS else OUTPUTS


def rows(module: str, names: str, *facts: object, **more: object) -> list[Row]:
    """Make the rows of a module's networks of which the same is true."""
    return [Row(f"{module}.{name}", *facts, **more) for name in names.split()]


FROZEN = "changes the outputs"
"""A frozen weight is a buffer, which every rank has whole: its units have their places."""
RESIDUAL = Row(
    "dense_nets.ResidualMlp",
    FLAT,
    "stream: blocks.0.up.weight blocks.1.up.weight blocks.2.up.weight last.weight, "
    "hidden: blocks.0.down.weight blocks.1.down.weight blocks.2.down.weight, depth",
    default="hidden",
    blocks="depth",
)
DENSE = (
    RESIDUAL,
    replace(RESIDUAL, network="dense_nets.InPairs", dtype="float32"),
    Row("dense_nets.TwoExits", FLAT, "hidden1: second.weight early.weight, hidden2: last.weight"),
)
CONVOLUTIONS = (
    Row("convolution_nets.GroupsCounted", IMAGE, "groups: last.weight"),
    Row("convolution_nets.GroupsFixed", IMAGE, undealt={"channels": f"{ORDER}|an axis of .* has"}, trains=False),
    Row("convolution_nets.Upsampling", IMAGE, "channels: up.weight, wide: last.weight"),
    Row("convolution_nets.Inverted", IMAGE, "stream: down.weight last.weight, expand: down.weight", default="expand"),
    Row("convolution_nets.DenseNet", IMAGE, "growth: second.weight| last.weight|"),
)
NORMS = (
    Row("norm_nets.GroupsOfNorm", IMAGE, "groups: last.weight"),
    Row("norm_nets.InstanceTracked", IMAGE, "channels1: second.weight, channels2: last.weight"),
    Row("norm_nets.OfSubclass", IMAGE, "channels1, channels2: last.weight"),
    Row("norm_nets.NormTwice", FLAT, "hidden: second.weight last.weight"),
    Row("norm_nets.AndElsewhere", FLAT, "hidden: second.weight, wide: last.weight"),
    Row("norm_nets.WeightNormed", FLAT, "hidden1: +product +length-of-rows, hidden2: last.weight"),
    Row("norm_nets.SpectralNormed", FLAT, trains=False, refused="buffer"),
    Row("norm_nets.Standardised", IMAGE, "channels1: +product, channels2: last.weight"),
)
PRODUCTS = (
    Row("product_nets.Bilinear", FLAT, "left: both.weight, right: both.weight", fan={"both.weight": 12}),
    Row("product_nets.Kan", FLAT, "hidden: second"),
    Row("product_nets.Machine", FLAT, "factors: +sum"),
    Row("product_nets.Vector", FLAT, "hidden: vector"),
)
TIED = (
    Row("tied_nets.TiedAutoencoder", FLAT, "hidden: last.weight +second.weight, code: +second.weight.t()"),
    Row("tied_nets.TiedFilters", IMAGE, "channels: +transposed"),
    Row("tied_nets.Lora", FLAT, "rank: b.weight", undealt={"hidden": FROZEN}),
    Row("tied_nets.LogitScale", FLAT, "hidden: last.weight"),
)
ATTENTION = (
    Row(
        "attention_nets.MhaCross",
        SEQUENCE,
        "heads: attention.q_proj_weight attention.out_proj.weight last.weight, keys: attention.k_proj_weight",
    ),
    Row(
        "attention_nets.EncoderLayer",
        SEQUENCE,
        "heads: layer.self_attn.in_proj_weight layer.self_attn.out_proj.weight layer.linear1.weight last.weight, "
        "hidden: layer.linear2.weight",
        default="hidden",
    ),
    Row("attention_nets.SlopesLearnt", SEQUENCE, "heads: out.weight"),
    Row("attention_nets.Windows", SEQUENCE, "heads: qkv.0.weight up.weight down.weight qkv.1.weight last.weight"),
    Row("attention_nets.Latents", SEQUENCE, "latents"),
)
RECURRENT = (
    Row(
        "recurrent_nets.Lstm",
        SEQUENCE,
        "hidden: cell.weight_hh_l0 last.weight",
        fan={"cell.weight_ih_l0": 6, "cell.weight_hh_l0": 12},
    ),
    Row(
        "recurrent_nets.LstmBoth",
        SEQUENCE,
        "hidden: cell.weight_hh_l0 cell.weight_hh_l0_reverse cell.weight_ih_l1 cell.weight_hh_l1 "
        "cell.weight_ih_l1_reverse cell.weight_hh_l1_reverse last.weight",
    ),
    Row(
        "recurrent_nets.LstmProjected", SEQUENCE, "hidden: cell.weight_hr_l0, projected: cell.weight_hh_l0 last.weight"
    ),
    Row(
        "recurrent_nets.LstmForgets",
        SEQUENCE,
        "hidden: cell.weight_hh_l0 last.weight",
        settings={"model.init": "constructor"},
        kept=("cell.bias_ih_l0", "cell.bias_hh_l0"),
    ),
    Row("recurrent_nets.GruCells", SEQUENCE, "hidden: cell.weight_hh last.weight"),
)
EXPERTS = (
    Row("expert_nets.SoftExperts", FLAT, "experts, hidden: down", fan={"up": 6, "down": 12, "gate.weight": 6}),
    Row("expert_nets.TopExperts", FLAT, "experts, hidden: down", means="experts"),
    Row(
        "expert_nets.ListedExperts",
        FLAT,
        "hidden: down.0.weight down.1.weight down.2.weight",
        undealt={"experts": COUNT},
    ),
    Row("expert_nets.SoftmaxUnits", FLAT, "hidden", trains=None, refused="softmax"),
)
GRAPHS = (
    Row("graph_nets.FixedGraph", SEQUENCE, "hidden1: second.weight, hidden2: last.weight"),
    Row("graph_nets.Convolution", NODES, "hidden: last.weight"),
)
TEXT = (
    Row(
        "token_nets.Gpt",
        TOKENS,
        "embed: qkv.weight up.weight +tokens.weight, heads: out.weight, hidden: down.weight",
        default="heads hidden",
    ),
)
TRAPS = (
    Row("trap_nets.HeadsFromWidth", SEQUENCE, undealt={"inner": ORDER}, trains=False),
    *rows("trap_nets", "TrainingBranch Numbered", FLAT, undealt={"hidden": ORDER}, trains=False),
    Row(
        "trap_nets.DrawsAlways",
        FLAT,
        undealt={"hidden": "other outputs for the same examples|two equal calls"},
        trains=False,
    ),
    Row("trap_nets.UnusedLayer", FLAT, "hidden: last.weight", trains=None, refused="unused|not used|never used"),
    Row("trap_nets.Vae", FLAT, trains=False, refused="own loop|istmpi.with_loss|loss inside"),
    Row("trap_nets.Configured", FLAT, trains=False, refused="wrapper"),
)
FACTORS = (
    Row("factor_nets.EqualisedRates", FLAT, "hidden: second.weight^0.5 last.weight^0.5"),
    Row("factor_nets.ScoresByHand", SEQUENCE, "width: +scores"),
    Row("factor_nets.Units", FLAT, "units"),
    Row("factor_nets.MeanTimesWidth", FLAT, "units: +mean +cumsum"),
    Row("factor_nets.SumOfLogarithms", FLAT, "units: +prod", trains=False, refused=HALVES),
    Row("factor_nets.TwoGates", FLAT, "units: +sum"),
    Row("factor_nets.Distances", FLAT, "units: +norms"),
    Row("factor_nets.Averaged", FLAT, "units"),
    Row("factor_nets.RenormalisedExperts", FLAT, "experts, hidden: second", means="experts"),
    Row("factor_nets.RareHead", FLAT, "hidden: usual.weight rare.weight"),
    Row("factor_nets.ChosenFeatures", FLAT, trains=False, refused="draws random values"),
)
JOINED_ROWS = (
    Row("joined_nets.WideAndDeep", FLAT, "hidden1: second.weight, hidden2: last.weight|"),
    Row("joined_nets.Nerf", FLAT, "hidden: second.weight|, wide: last.weight"),
    Row(
        "joined_nets.UnetSkips",
        IMAGE,
        "outer: down2.weight mixed.weight| wide.weight| last.weight, inner: bottom.weight up1.weight wide.weight|, "
        "deep: up2.weight",
    ),
    Row(
        "joined_nets.Growing",
        IMAGE,
        "stem: blocks.1.2.weight| blocks.2.2.weight| transition.weight|, "
        "growth: blocks.1.2.weight| blocks.2.2.weight| transition.weight|, "
        "neck: blocks.0.5.weight blocks.1.5.weight blocks.2.5.weight, half: last.weight",
    ),
    Row("joined_nets.Branches", IMAGE, "one: last.weight|, three: three.weight last.weight|, five: last.weight|"),
    Row("joined_nets.Recurrence", SEQUENCE, "hidden: next.weight| last.weight|"),
    Row("joined_nets.OwnWeights", FLAT, "units: second| last|, wide: last|", fan={"second": 18, "last": 26}),
    Row("joined_nets.CutRows", FLAT, "hidden: last.weight|"),
    Row(
        "joined_nets.GroupBeside",
        IMAGE,
        "channels: last.weight| +norm",
        default="",
        trains=False,
        refused="no factor makes its sums right",
    ),
    Row("joined_nets.Padded", IMAGE, "channels: wide.weight last.weight|"),
    Row("joined_nets.CutTwice", SEQUENCE, "inner: last.weight, state: +sum"),
)
ROWS = (*DENSE, *CONVOLUTIONS, *NORMS, *ATTENTION, *RECURRENT, *EXPERTS, *PRODUCTS, *TIED, *TRAPS, *FACTORS)
ROWS += (*JOINED_ROWS, *GRAPHS, *TEXT)
