"""What does not hold yet of the networks of this folder: ``FAILING[law][reason]`` names those that fail it.

Shorten it as they hold: a network that passes while it stands here fails the tests.
"""

_NOT_EXAMINED = {
    "running statistics of nn.InstanceNorm are refused": "InstanceTracked",
    "a batch normalisation that is called twice is refused": "NormTwice",
}
FAILING = {
    "found": _NOT_EXAMINED
    | {
        "layers of nn.TransformerEncoder are not found as blocks": "Encoder",
        "a table of distances that two layers share makes heads a residual stream": "T5",
    },
    "permuted": _NOT_EXAMINED,
    "written": _NOT_EXAMINED,
    "scaled": _NOT_EXAMINED,
    "trained": _NOT_EXAMINED,
    "bytes": _NOT_EXAMINED,
    "agree": {},
    "json": {},
    "initial": {},
    "oracle": {},
}
