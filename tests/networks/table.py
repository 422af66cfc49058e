"""The networks of this folder, and what is true of each; written by hand, before and beside the code that finds it out.

`ROWS` has a row for each class.
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
    dealt: str = ""
    """The arguments whose units are interchangeable, with a number behind one of a list: ``hidden1 wide``."""
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
RESIDUAL = Row("dense_nets.ResidualMlp", FLAT, "stream hidden depth", default="hidden", blocks="depth")
DENSE = (
    RESIDUAL,
    replace(RESIDUAL, network="dense_nets.InPairs", dtype="float32"),
    Row("dense_nets.TwoExits", FLAT, "hidden1 hidden2"),
)
CONVOLUTIONS = (
    Row("convolution_nets.GroupsCounted", IMAGE, "groups"),
    Row("convolution_nets.GroupsFixed", IMAGE, undealt={"channels": f"{ORDER}|an axis of .* has"}, trains=False),
    Row("convolution_nets.Upsampling", IMAGE, "channels wide"),
    Row("convolution_nets.Inverted", IMAGE, "stream expand", default="expand"),
    Row("convolution_nets.DenseNet", IMAGE, "growth"),
)
NORMS = (
    Row("norm_nets.GroupsOfNorm", IMAGE, "groups"),
    *rows("norm_nets", "InstanceTracked OfSubclass Standardised", IMAGE, "channels1 channels2"),
    Row("norm_nets.NormTwice", FLAT, "hidden"),
    Row("norm_nets.AndElsewhere", FLAT, "hidden wide"),
    Row("norm_nets.WeightNormed", FLAT, "hidden1 hidden2"),
    Row("norm_nets.SpectralNormed", FLAT, trains=False, refused="buffer"),
)
PRODUCTS = (
    Row("product_nets.Bilinear", FLAT, "left right", fan={"both.weight": 12}),
    *rows("product_nets", "Kan Vector", FLAT, "hidden"),
    Row("product_nets.Machine", FLAT, "factors"),
)
TIED = (
    Row("tied_nets.TiedAutoencoder", FLAT, "hidden code"),
    Row("tied_nets.TiedFilters", IMAGE, "channels"),
    Row("tied_nets.Lora", FLAT, "rank", undealt={"hidden": FROZEN}),
    Row("tied_nets.LogitScale", FLAT, "hidden"),
)
ATTENTION = (
    Row("attention_nets.MhaCross", SEQUENCE, "heads keys"),
    Row("attention_nets.EncoderLayer", SEQUENCE, "heads hidden", default="hidden"),
    Row("attention_nets.Windows", SEQUENCE, "heads"),
    Row("attention_nets.Latents", SEQUENCE, "latents"),
)
RECURRENT = (
    Row("recurrent_nets.Lstm", SEQUENCE, "hidden", fan={"cell.weight_ih_l0": 6, "cell.weight_hh_l0": 12}),
    Row("recurrent_nets.LstmBoth", SEQUENCE, "hidden"),
    Row("recurrent_nets.LstmProjected", SEQUENCE, "hidden projected"),
    Row(
        "recurrent_nets.LstmForgets",
        SEQUENCE,
        "hidden",
        settings={"model.init": "constructor"},
        kept=("cell.bias_ih_l0", "cell.bias_hh_l0"),
    ),
    Row("recurrent_nets.GruCells", SEQUENCE, "hidden"),
)
EXPERTS = (
    Row("expert_nets.SoftExperts", FLAT, "experts hidden", fan={"up": 6, "down": 12, "gate.weight": 6}),
    Row("expert_nets.TopExperts", FLAT, "experts hidden", means="experts"),
    Row("expert_nets.ListedExperts", FLAT, "hidden", undealt={"experts": COUNT}),
    Row("expert_nets.SoftmaxUnits", FLAT, "hidden", trains=None, refused="softmax"),
)
GRAPHS = (Row("graph_nets.FixedGraph", SEQUENCE, "hidden1 hidden2"), Row("graph_nets.Convolution", NODES, "hidden"))
TEXT = (Row("token_nets.Gpt", TOKENS, "embed heads hidden", default="heads hidden"),)
TRAPS = (
    Row("trap_nets.HeadsFromWidth", SEQUENCE, undealt={"inner": ORDER}, trains=False),
    *rows("trap_nets", "TrainingBranch Numbered", FLAT, undealt={"hidden": ORDER}, trains=False),
    Row(
        "trap_nets.DrawsAlways",
        FLAT,
        undealt={"hidden": "other outputs for the same examples|two equal calls"},
        trains=False,
    ),
    Row("trap_nets.UnusedLayer", FLAT, "hidden", trains=None, refused="unused|not used|never used"),
    Row("trap_nets.Vae", FLAT, trains=False, refused="own loop|istmpi.with_loss|loss inside"),
    Row("trap_nets.Configured", FLAT, trains=False, refused="wrapper"),
)
FACTORS = (
    Row("factor_nets.ScoresByHand", SEQUENCE, "width"),
    *rows("factor_nets", "Units MeanTimesWidth TwoGates Distances Averaged", FLAT, "units"),
    *rows("factor_nets", "EqualisedRates RareHead", FLAT, "hidden"),
    Row("factor_nets.SumOfLogarithms", FLAT, "units", trains=False, refused=HALVES),
    Row("factor_nets.RenormalisedExperts", FLAT, "experts hidden", means="experts"),
    Row("factor_nets.ChosenFeatures", FLAT, trains=False, refused="draws random values"),
)
JOINED_ROWS = (
    Row("joined_nets.WideAndDeep", FLAT, "hidden1 hidden2"),
    Row("joined_nets.Nerf", FLAT, "hidden wide"),
    Row("joined_nets.UnetSkips", IMAGE, "outer inner deep"),
    Row("joined_nets.Growing", IMAGE, "stem growth neck half"),
    Row("joined_nets.Branches", IMAGE, "one three five"),
    Row("joined_nets.OwnWeights", FLAT, "units wide", fan={"second": 18, "last": 26}),
    Row(
        "joined_nets.GroupBeside", IMAGE, "channels", default="", trains=False, refused="no factor makes its sums right"
    ),
    Row("joined_nets.Padded", IMAGE, "channels"),
    Row("joined_nets.CutTwice", SEQUENCE, "inner state"),
)
ROWS = (*DENSE, *CONVOLUTIONS, *NORMS, *ATTENTION, *RECURRENT, *EXPERTS, *PRODUCTS, *TIED, *TRAPS, *FACTORS)
ROWS += (*JOINED_ROWS, *GRAPHS, *TEXT)
