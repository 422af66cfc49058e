"""The networks of this folder, and what is true of each; written by hand, before and beside the code that finds it out.

`ROWS` has a row for each class. A row's ``scaled`` says where a subnet of half the units sums half as much as the full
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
JOINED = "an axis of .* has"
"""Its units are interchangeable, but lie beside other numbers on an axis, which is no multiple of them."""
ORDER_OR_JOINED = f"{ORDER}|{JOINED}"
RANDOM = "other outputs for the same examples|two equal calls"
"""Nothing can be proved: two equal calls differ."""
UNUSED = "unused|not used|never used"
"""Nothing uses a layer."""
BUFFER = "buffer"
"""Training changes a buffer that belongs to units."""
LOSS = "own loop|istmpi.with_loss|loss inside"
"""It returns a part of its loss, and the message says how such a loss is had."""
BUILDS = "draws random values"
"""Two builds with the same parameters and buffers compute different outputs."""
HALVES = "two equal halves change the outputs"
"""No factor makes a sum over its units right."""
NO_WIDTHS = "wrapper"
"""No argument is an integer, and the message gives the wrapper that is the cure."""


@dataclass(frozen=True, eq=False)
class Row:
    """The truth about a network."""

    network: str
    """Its class, as ``dense_nets.Mlp``."""
    shape: tuple[int, ...]
    dealt: str = ""
    """The arguments, with a number behind one of a list, whose units are interchangeable."""
    undealt: Mapping[str, str] = field(default_factory=dict)
    """The other integers, each with the kind of its reason."""
    default: str | None = None
    """The arguments that are dealt out by default, where that is not all of them."""
    blocks: str = ""
    """Arguments among ``dealt`` whose units are whole blocks."""
    scaled: Mapping[str, str] = field(default_factory=dict)
    """The uses that sum over each argument's units, with no batch normalisation directly behind: the names of
    parameters, with the power of the share behind ``^`` if it is not 1. With a ``|`` behind a name only the units'
    positions count, beside which others lie on the axis. Behind a ``+`` stand uses that are of no parameter, or of one
    that has another use, too."""
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
    random: bool = False
    """Training draws random numbers."""

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


FROZEN = "changes the outputs"
"""A frozen weight is a buffer, which every rank has whole: its units have their places."""
CONSTRUCTOR = {"model.init": "constructor"}
RESIDUAL = Row(
    "dense_nets.ResidualMlp",
    FLAT,
    "stream hidden depth",
    default="hidden",
    blocks="depth",
    scaled={
        "stream": "blocks.0.up.weight blocks.1.up.weight blocks.2.up.weight last.weight",
        "hidden": "blocks.0.down.weight blocks.1.down.weight blocks.2.down.weight",
    },
)
DENSE = (
    Row("dense_nets.Mlp", FLAT, "hidden1 hidden2", scaled={"hidden1": "second.weight", "hidden2": "last.weight"}),
    Row("dense_nets.BatchNormed", FLAT, "hidden wide", scaled={"wide": "last.weight"}),
    Row("dense_nets.Dropped", FLAT, "hidden", scaled={"hidden": "layers.3.weight"}, random=True),
    Row("dense_nets.Glu", FLAT, "hidden", scaled={"hidden": "last.weight"}),
    Row(
        "dense_nets.SwiGlu",
        FLAT,
        "stream hidden",
        default="hidden",
        scaled={"stream": "gate.weight up.weight last.weight", "hidden": "down.weight"},
    ),
    RESIDUAL,
    replace(RESIDUAL, network="dense_nets.InPairs", dtype="float32"),
    Row("dense_nets.Highway", FLAT, "hidden", scaled={"hidden": "change.weight gate.weight last.weight"}),
    Row("dense_nets.Maxout", FLAT, "hidden", scaled={"hidden": "last.weight"}),
    Row("dense_nets.Crelu", FLAT, "hidden", scaled={"hidden": "last.weight"}),
    Row("dense_nets.BesideInputs", FLAT, "hidden", scaled={"hidden": "last.weight|"}),
    Row("dense_nets.Siren", FLAT, "hidden", scaled={"hidden": "second.weight last.weight"}),
    Row("dense_nets.UnitsAdded", FLAT, "units", scaled={"units": "+sum"}),
    Row("dense_nets.UnitsAveraged", FLAT, "units"),
    Row(
        "dense_nets.TwoExits",
        FLAT,
        "hidden1 hidden2",
        scaled={"hidden1": "second.weight early.weight", "hidden2": "last.weight"},
    ),
    Row("dense_nets.OneLayerTwice", FLAT, "hidden", scaled={"hidden": "again.weight last.weight"}),
)
CONVOLUTIONS = (
    Row(
        "convolution_nets.Lenet",
        IMAGE,
        "channels1 channels2 hidden",
        scaled={"channels1": "second.weight", "channels2": "dense.weight", "hidden": "last.weight"},
    ),
    Row("convolution_nets.Separable", IMAGE, "channels wide", scaled={"wide": "last.weight"}),
    Row("convolution_nets.GroupsCounted", IMAGE, "groups", scaled={"groups": "last.weight"}),
    Row("convolution_nets.GroupsFixed", IMAGE, undealt={"channels": ORDER_OR_JOINED}, trains=False),
    Row(
        "convolution_nets.Residual",
        IMAGE,
        "stream inner",
        default="inner",
        scaled={"stream": "last.weight", "inner": "second.weight"},
    ),
    Row(
        "convolution_nets.Unet",
        IMAGE,
        "channels",
        scaled={"channels": "down.weight up.weight joined.weight last.weight"},
    ),
    Row("convolution_nets.Upsampling", IMAGE, "channels wide", scaled={"channels": "up.weight", "wide": "last.weight"}),
    Row(
        "convolution_nets.ConvNext",
        IMAGE,
        "stream hidden",
        default="hidden",
        scaled={"stream": "up.weight last.weight", "hidden": "down.weight"},
    ),
    Row(
        "convolution_nets.SqueezeExcite",
        IMAGE,
        "channels squeezed",
        scaled={"channels": "squeeze.weight last.weight", "squeezed": "excite.weight"},
    ),
    Row("convolution_nets.PixelShuffled", IMAGE, "channels", scaled={"channels": "last.weight"}),
    Row("convolution_nets.ChannelsShuffled", IMAGE, undealt={"channels": ORDER_OR_JOINED}, trains=False),
    Row("convolution_nets.Temporal", SEQUENCE, "channels", scaled={"channels": "second.weight last.weight"}),
    Row(
        "convolution_nets.Inverted",
        IMAGE,
        "stream expand",
        default="expand",
        scaled={"stream": "down.weight last.weight", "expand": "down.weight"},
    ),
    Row(
        "convolution_nets.Inception",
        IMAGE,
        "narrow wide",
        scaled={"narrow": "last.weight|", "wide": "last.weight|"},
    ),
    Row("convolution_nets.DenseNet", IMAGE, "growth", scaled={"growth": "second.weight| last.weight|"}),
    Row("convolution_nets.Film", IMAGE, "channels code", scaled={"channels": "last.weight", "code": "film.weight"}),
)
NORMS = (
    Row("norm_nets.GroupsOfNorm", IMAGE, "groups", scaled={"groups": "last.weight"}),
    Row("norm_nets.FourGroups", IMAGE, undealt={"channels": ORDER}, trains=False),
    Row("norm_nets.OneGroup", IMAGE, "channels", scaled={"channels": "last.weight"}),
    Row(
        "norm_nets.InstanceNormed",
        IMAGE,
        "channels1 channels2",
        scaled={"channels1": "second.weight", "channels2": "last.weight"},
    ),
    Row(
        "norm_nets.InstanceTracked",
        IMAGE,
        "channels1 channels2",
        scaled={"channels1": "second.weight", "channels2": "last.weight"},
    ),
    Row(
        "norm_nets.LayerNormed", FLAT, "hidden1 hidden2", scaled={"hidden1": "second.weight", "hidden2": "last.weight"}
    ),
    Row("norm_nets.RmsNormed", FLAT, "hidden", scaled={"hidden": "last.weight"}),
    Row("norm_nets.OfSubclass", IMAGE, "channels1 channels2", scaled={"channels2": "last.weight"}),
    Row("norm_nets.NormTwice", FLAT, "hidden", scaled={"hidden": "second.weight last.weight"}),
    Row("norm_nets.AndElsewhere", FLAT, "hidden wide", scaled={"hidden": "second.weight", "wide": "last.weight"}),
    Row("norm_nets.ResponseNormed", IMAGE, undealt={"channels": ORDER}, trains=False),
    Row("norm_nets.OnSphere", FLAT, "hidden", scaled={"hidden": "last.weight +length"}),
    Row("norm_nets.Prelu", FLAT, "hidden", scaled={"hidden": "last.weight"}),
    Row(
        "norm_nets.WeightNormed",
        FLAT,
        "hidden1 hidden2",
        scaled={"hidden1": "+product +length-of-rows", "hidden2": "last.weight"},
    ),
    Row(
        "norm_nets.WeightNormedOld",
        FLAT,
        "hidden1 hidden2",
        scaled={"hidden1": "+product +length-of-rows", "hidden2": "last.weight"},
    ),
    Row("norm_nets.SpectralNormed", FLAT, trains=False, refused=BUFFER),
    Row(
        "norm_nets.Standardised",
        IMAGE,
        "channels1 channels2",
        scaled={"channels1": "+product", "channels2": "last.weight"},
    ),
)
OUT = {"heads": "out.weight"}
ATTENTION = (
    Row(
        "attention_nets.Mha",
        SEQUENCE,
        "heads",
        scaled={"heads": "attention.in_proj_weight attention.out_proj.weight last.weight"},
        fan={"attention.in_proj_weight": 24, "attention.out_proj.weight": 24},
    ),
    Row("attention_nets.MhaWide", SEQUENCE, undealt={"embed": ORDER}, trains=False),
    Row(
        "attention_nets.MhaCross",
        SEQUENCE,
        "heads keys",
        scaled={
            "heads": "attention.q_proj_weight attention.out_proj.weight last.weight",
            "keys": "attention.k_proj_weight",
        },
        fan={"attention.q_proj_weight": 24, "attention.k_proj_weight": 8, "attention.v_proj_weight": 6},
    ),
    Row(
        "attention_nets.Sdpa",
        SEQUENCE,
        "embed heads",
        default="heads",
        scaled={"embed": "qkv.weight last.weight", "heads": "out.weight"},
    ),
    Row(
        "attention_nets.ByEinsum", SEQUENCE, "heads", scaled={"heads": "wo"}, fan={"wq": 6, "wk": 6, "wv": 6, "wo": 24}
    ),
    Row(
        "attention_nets.EncoderLayer",
        SEQUENCE,
        "heads hidden",
        default="hidden",
        scaled={
            "heads": "layer.self_attn.in_proj_weight layer.self_attn.out_proj.weight layer.linear1.weight last.weight",
            "hidden": "layer.linear2.weight",
        },
    ),
    Row(
        "attention_nets.EncoderLayerFirst",
        SEQUENCE,
        "heads hidden",
        default="hidden",
        scaled={
            "heads": "layer.self_attn.in_proj_weight layer.self_attn.out_proj.weight layer.linear1.weight last.weight",
            "hidden": "layer.linear2.weight",
        },
    ),
    Row(
        "attention_nets.Encoder",
        SEQUENCE,
        "hidden depth",
        default="hidden",
        blocks="depth",
        scaled={"hidden": " ".join(f"encoder.layers.{number}.linear2.weight" for number in range(3))},
        random=True,
    ),
    Row("attention_nets.Heads", SEQUENCE, "heads", scaled=OUT),
    Row("attention_nets.RelativeTable", SEQUENCE, "heads", scaled=OUT),
    Row("attention_nets.RelativeBuckets", SEQUENCE, "heads", scaled=OUT),
    Row("attention_nets.SlopesLearnt", SEQUENCE, "heads", scaled=OUT),
    Row("attention_nets.Alibi", SEQUENCE, undealt={"heads": ORDER}, trains=False),
    Row("attention_nets.Rotary", SEQUENCE, "heads", scaled=OUT),
    Row("attention_nets.RotaryDim", SEQUENCE, undealt={"dim": ORDER}, trains=False),
    Row(
        "attention_nets.Windows",
        SEQUENCE,
        "heads",
        scaled={"heads": "qkv.0.weight up.weight down.weight qkv.1.weight last.weight"},
    ),
    Row("attention_nets.MultiQuery", SEQUENCE, "heads", scaled=OUT),
    Row("attention_nets.AttentionPooled", SEQUENCE, "hidden", scaled={"hidden": "query last.weight"}),
    Row("attention_nets.Latents", SEQUENCE, "latents"),
    Row(
        "attention_nets.Mixer",
        SEQUENCE,
        "stream across along",
        default="across along",
        scaled={"stream": "up.weight last.weight", "across": "down_places.weight", "along": "down.weight"},
    ),
    Row(
        "attention_nets.T5",
        SEQUENCE,
        "embed heads hidden",
        default="heads hidden",
        scaled={
            "embed": " ".join(f"attention.{number}.{part}.weight" for number in (0, 1) for part in "qkv")
            + " wi.weight last.weight",
            "heads": "attention.0.o.weight attention.1.o.weight",
            "hidden": "wo.weight",
        },
    ),
)
RECURRENT = (
    Row(
        "recurrent_nets.Lstm",
        SEQUENCE,
        "hidden",
        scaled={"hidden": "cell.weight_hh_l0 last.weight"},
        fan={"cell.weight_ih_l0": 6, "cell.weight_hh_l0": 12},
    ),
    Row(
        "recurrent_nets.LstmDeep",
        SEQUENCE,
        "hidden",
        {"depth": COUNT},
        scaled={"hidden": "cell.weight_hh_l0 cell.weight_ih_l1 cell.weight_hh_l1 last.weight"},
        random=True,
    ),
    Row(
        "recurrent_nets.LstmBoth",
        SEQUENCE,
        "hidden",
        scaled={
            "hidden": "cell.weight_hh_l0 cell.weight_hh_l0_reverse cell.weight_ih_l1 cell.weight_hh_l1 "
            "cell.weight_ih_l1_reverse cell.weight_hh_l1_reverse last.weight"
        },
    ),
    Row(
        "recurrent_nets.LstmProjected",
        SEQUENCE,
        "hidden projected",
        scaled={"hidden": "cell.weight_hr_l0", "projected": "cell.weight_hh_l0 last.weight"},
    ),
    Row(
        "recurrent_nets.LstmForgets",
        SEQUENCE,
        "hidden",
        scaled={"hidden": "cell.weight_hh_l0 last.weight"},
        settings=CONSTRUCTOR,
        kept=("cell.bias_ih_l0", "cell.bias_hh_l0"),
    ),
    Row("recurrent_nets.Gru", SEQUENCE, "hidden", scaled={"hidden": "cell.weight_hh_l0 last.weight"}),
    Row(
        "recurrent_nets.Irnn",
        SEQUENCE,
        "hidden",
        scaled={"hidden": "cell.weight_hh_l0 last.weight"},
        settings=CONSTRUCTOR,
        kept=("cell.weight_hh_l0",),
    ),
    Row("recurrent_nets.LstmCells", SEQUENCE, "hidden", scaled={"hidden": "cell.weight_hh last.weight"}),
    Row("recurrent_nets.GruCells", SEQUENCE, "hidden", scaled={"hidden": "cell.weight_hh last.weight"}),
    Row("recurrent_nets.MinGru", SEQUENCE, "hidden", scaled={"hidden": "last.weight"}),
    Row(
        "recurrent_nets.Mamba",
        SEQUENCE,
        "channels states",
        default="states",
        scaled={"channels": "step.weight read.weight write.weight last.weight", "states": "+sum"},
        settings=CONSTRUCTOR,
        kept=("a_log", "skip"),
    ),
)
EXPERTS = (
    Row(
        "expert_nets.SoftExperts",
        FLAT,
        "experts hidden",
        scaled={"hidden": "down"},
        fan={"up": 6, "down": 12, "gate.weight": 6},
    ),
    Row("expert_nets.BatchedExperts", FLAT, "experts hidden", scaled={"hidden": "down"}, fan={"up": 6, "down": 12}),
    Row("expert_nets.OpenExperts", FLAT, "experts hidden", scaled={"experts": "down", "hidden": "down"}),
    Row(
        "expert_nets.TopExperts",
        FLAT,
        "experts hidden",
        scaled={"hidden": "down"},
        means="experts",
        fan={"up": 6, "down": 12},
    ),
    Row(
        "expert_nets.MaskedExperts",
        FLAT,
        "experts hidden",
        scaled={"hidden": "down"},
        means="experts",
        fan={"up": 6, "down": 12},
    ),
    Row(
        "expert_nets.ListedExperts",
        FLAT,
        "hidden",
        {"experts": COUNT},
        scaled={"hidden": "down.0.weight down.1.weight down.2.weight"},
    ),
    Row("expert_nets.SoftmaxUnits", FLAT, "hidden", trains=None, refused="softmax"),
    Row("expert_nets.Codebook", FLAT, "entries"),
)
PRODUCTS = (
    Row(
        "product_nets.Bilinear",
        FLAT,
        "left right",
        scaled={"left": "both.weight", "right": "both.weight"},
        fan={"both.weight": 12},
    ),
    Row("product_nets.Kan", FLAT, "hidden", scaled={"hidden": "second"}),
    Row(
        "product_nets.Einsum",
        FLAT,
        "hidden1 hidden2",
        scaled={"hidden1": "second", "hidden2": "last"},
        fan={"first": 6, "second": 12, "last": 14},
    ),
    Row("product_nets.OfDict", FLAT, "hidden", scaled={"hidden": "weights.down"}, fan={"weights.up": 6}),
    Row(
        "product_nets.OfList",
        FLAT,
        "hidden",
        scaled={"hidden": "weights.1 weights.2"},
        fan={"weights.0": 6, "weights.1": 12, "weights.2": 12},
    ),
    Row("product_nets.LowRank", FLAT, "hidden rank", scaled={"hidden": "a last.weight", "rank": "a"}),
    Row("product_nets.Hyper", FLAT, "code hidden", scaled={"code": "up.weight", "hidden": "last.weight"}),
    Row("product_nets.Machine", FLAT, "factors", scaled={"factors": "+sum"}, fan={"factors": 6}),
    Row("product_nets.TwoTowers", FLAT, "units", scaled={"units": "+sum"}),
    Row("product_nets.CosineHead", FLAT, "hidden"),
    Row("product_nets.NormalisedHead", FLAT, "hidden"),
    Row("product_nets.Prototypes", FLAT, "hidden", scaled={"hidden": "+sum"}),
    Row("product_nets.Radial", FLAT, "hidden", scaled={"hidden": "last.weight"}),
    Row(
        "product_nets.Outer", FLAT, "left right", default="left", scaled={"left": "last.weight", "right": "last.weight"}
    ),
    Row("product_nets.Vector", FLAT, "hidden", scaled={"hidden": "vector"}),
    Row("product_nets.Bags", FLAT, "units", scaled={"units": "last.weight"}),
)
TIED = (
    Row(
        "tied_nets.TiedAutoencoder",
        FLAT,
        "hidden code",
        scaled={"hidden": "last.weight +second.weight", "code": "+second.weight.t()"},
    ),
    Row("tied_nets.TiedFilters", IMAGE, "channels", scaled={"channels": "+transposed"}),
    Row("tied_nets.Items", FLAT, "units", scaled={"units": "mix.weight +items.weight.t()"}),
    Row("tied_nets.Lora", FLAT, "rank", undealt={"hidden": FROZEN}, scaled={"rank": "b.weight"}),
    Row("tied_nets.FrozenTrunk", FLAT, "hidden2", undealt={"hidden1": FROZEN}, scaled={"hidden2": "last.weight"}),
    Row("tied_nets.Sinusoids", SEQUENCE, "hidden", scaled={"hidden": "last.weight"}),
    Row("tied_nets.SinusoidBuffer", SEQUENCE, "hidden", scaled={"hidden": "last.weight"}),
    Row("tied_nets.LogitScale", FLAT, "hidden", scaled={"hidden": "last.weight"}),
    Row("tied_nets.Temperature", SEQUENCE, "heads", scaled={"heads": "last.weight"}),
)
TRAPS = (
    Row("trap_nets.HeadsFromWidth", SEQUENCE, undealt={"inner": ORDER}, trains=False),
    Row("trap_nets.GroupsAtMost", IMAGE, undealt={"channels": ORDER}, trains=False),
    Row("trap_nets.GroupsQuarter", IMAGE, undealt={"channels": ORDER}, trains=False),
    Row("trap_nets.GroupsDivisor", IMAGE, undealt={"channels": ORDER}, trains=False),
    Row("trap_nets.WideBranch", FLAT, undealt={"hidden": ORDER}, trains=False),
    Row("trap_nets.TrainingBranch", FLAT, undealt={"hidden": ORDER}, trains=False),
    Row("trap_nets.DrawsAlways", FLAT, undealt={"hidden": RANDOM}, trains=False, random=True),
    Row("trap_nets.UnusedLayer", FLAT, "hidden", scaled={"hidden": "last.weight"}, trains=None, refused=UNUSED),
    Row("trap_nets.Sorted", FLAT, undealt={"hidden": ORDER}, trains=False),
    Row("trap_nets.CumulativeUnits", FLAT, undealt={"hidden": ORDER}, trains=False),
    Row("trap_nets.Flipped", FLAT, undealt={"hidden": ORDER}, trains=False),
    Row("trap_nets.LargestUnit", FLAT, undealt={"hidden": ORDER}, trains=False),
    Row("trap_nets.Numbered", FLAT, undealt={"hidden": ORDER}, trains=False),
    Row("trap_nets.Vae", FLAT, trains=False, refused=LOSS),
    Row("trap_nets.Configured", FLAT, trains=False, refused=NO_WIDTHS),
    Row("trap_nets.AnyArguments", FLAT, trains=False, refused=NO_WIDTHS),
    Row("trap_nets.SingleOnly", FLAT, "hidden", scaled={"hidden": "last.weight"}, dtype="float32"),
)
FACTORS = (
    Row("factor_nets.Tangent", FLAT, "hidden", scaled={"hidden": "second^0.5"}),
    Row("factor_nets.EqualisedRates", FLAT, "hidden", scaled={"hidden": "second.weight^0.5 last.weight^0.5"}),
    Row("factor_nets.ByProduct", FLAT, "hidden", scaled={"hidden": "weight^0.5"}),
    Row("factor_nets.MeanReadout", FLAT, "hidden"),
    Row("factor_nets.ScoresByHand", SEQUENCE, "width", scaled={"width": "+scores"}),
    Row("factor_nets.Units", FLAT, "units"),
    Row("factor_nets.TimesTheirShare", FLAT, "units"),
    Row("factor_nets.MeanTimesWidth", FLAT, "units", scaled={"units": "+mean"}),
    Row("factor_nets.LastOfCumsum", FLAT, "units", scaled={"units": "+cumsum"}),
    Row("factor_nets.PooledTimesWidth", FLAT, "units", scaled={"units": "+pool"}, trains=False, refused=HALVES),
    Row("factor_nets.ZeroFrequency", FLAT, "units", scaled={"units": "+fft"}, trains=False, refused=HALVES),
    Row("factor_nets.IndexAdded", FLAT, "units", scaled={"units": "+index_add"}, trains=False, refused=HALVES),
    Row("factor_nets.SumOfLogarithms", FLAT, "units", scaled={"units": "+prod"}, trains=False, refused=HALVES),
    Row("factor_nets.TwoGates", FLAT, "units", scaled={"units": "+sum"}),
    Row("factor_nets.RenormalisedExperts", FLAT, "experts hidden", scaled={"hidden": "second"}, means="experts"),
    Row(
        "factor_nets.SkippedExperts",
        FLAT,
        "hidden",
        {"experts": "counts the modules"},
        scaled={"hidden": " ".join(f"experts.{number}.2.weight" for number in range(8))},
    ),
    Row("factor_nets.RareHead", FLAT, "hidden", scaled={"hidden": "usual.weight rare.weight"}),
    Row("factor_nets.ShuffledFlow", FLAT, trains=False, refused=BUILDS),
    Row("factor_nets.ChosenFeatures", FLAT, trains=False, refused=BUILDS),
    Row("factor_nets.FourierFeatures", FLAT, trains=False, refused=BUILDS),
)
GRAPHS = (
    Row(
        "graph_nets.FixedGraph",
        SEQUENCE,
        "hidden1 hidden2",
        scaled={"hidden1": "second.weight", "hidden2": "last.weight"},
    ),
    Row("graph_nets.Convolution", NODES, "hidden", scaled={"hidden": "last.weight"}, fan={"weight": 9}),
    Row("graph_nets.GraphAttention", NODES, "heads", scaled={"heads": "last.weight"}),
)
TEXT = (
    Row(
        "token_nets.Gpt",
        TOKENS,
        "embed heads hidden",
        default="heads hidden",
        scaled={"embed": "qkv.weight up.weight +tokens.weight", "heads": "out.weight", "hidden": "down.weight"},
    ),
    Row("token_nets.TiedSoftmax", TOKENS, "embed", scaled={"embed": "mix.weight +tokens.weight"}),
    Row(
        "token_nets.LstmText",
        TOKENS,
        "embed hidden",
        scaled={"embed": "cell.weight_ih_l0", "hidden": "cell.weight_hh_l0 last.weight"},
    ),
)
JOINED_ROWS = (
    Row(
        "joined_nets.WideAndDeep",
        FLAT,
        "hidden1 hidden2",
        scaled={"hidden1": "second.weight", "hidden2": "last.weight|"},
    ),
    Row("joined_nets.Nerf", FLAT, "hidden wide", scaled={"hidden": "second.weight|", "wide": "last.weight"}),
    Row(
        "joined_nets.UnetSkips",
        IMAGE,
        "outer inner deep",
        scaled={
            "outer": "down2.weight mixed.weight| wide.weight| last.weight",
            "inner": "bottom.weight up1.weight wide.weight|",
            "deep": "up2.weight",
        },
    ),
    Row(
        "joined_nets.Growing",
        IMAGE,
        "stem growth neck half",
        scaled={
            "stem": "blocks.1.2.weight| blocks.2.2.weight| transition.weight|",
            "growth": "blocks.1.2.weight| blocks.2.2.weight| transition.weight|",
            "neck": "blocks.0.5.weight blocks.1.5.weight blocks.2.5.weight",
            "half": "last.weight",
        },
    ),
    Row(
        "joined_nets.PointNet",
        SEQUENCE,
        "local everywhere head",
        scaled={"local": "all.weight head.weight|", "everywhere": "head.weight|", "head": "last.weight"},
    ),
    Row(
        "joined_nets.Branches",
        IMAGE,
        "one three five",
        scaled={"one": "last.weight|", "three": "three.weight last.weight|", "five": "last.weight|"},
    ),
    Row(
        "joined_nets.FlatBeside",
        IMAGE,
        "channels hidden",
        scaled={"channels": "joined.weight|", "hidden": "last.weight"},
    ),
    Row("joined_nets.Recurrence", SEQUENCE, "hidden", scaled={"hidden": "next.weight| last.weight|"}),
    Row(
        "joined_nets.OwnWeights",
        FLAT,
        "units wide",
        scaled={"units": "second| last|", "wide": "last|"},
        fan={"second": 18, "last": 26},
    ),
    Row("joined_nets.CutRows", FLAT, "hidden", scaled={"hidden": "last.weight|"}),
    Row(
        "joined_nets.JoinedNormed",
        FLAT,
        "hidden",
        default="",
        scaled={"hidden": "last.weight| +norm"},
        trains=False,
        refused="no factor makes its sums right",
    ),
    Row(
        "joined_nets.ScoreBeside",
        SEQUENCE,
        "hidden scores",
        scaled={"hidden": "joined.weight| last.weight|", "scores": "score.weight"},
    ),
    Row(
        "joined_nets.GroupBeside",
        IMAGE,
        "channels",
        default="",
        scaled={"channels": "last.weight| +norm"},
        trains=False,
        refused="no factor makes its sums right",
    ),
    Row(
        "joined_nets.Padded",
        IMAGE,
        "channels",
        scaled={"channels": "wide.weight last.weight|"},
    ),
    Row(
        "joined_nets.CutTwice",
        SEQUENCE,
        "inner state",
        scaled={"inner": "last.weight", "state": "+sum"},
    ),
)
ROWS = (
    *DENSE,
    *CONVOLUTIONS,
    *NORMS,
    *ATTENTION,
    *RECURRENT,
    *EXPERTS,
    *PRODUCTS,
    *TIED,
    *TRAPS,
    *FACTORS,
    *JOINED_ROWS,
    *GRAPHS,
    *TEXT,
)
