"""An inspection of a network before it is trained: it makes the network's table, or refuses what cannot be trained.

The network is built twice in its full size, with different random numbers, and run on two examples.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from istmpi.engine.axes import Pattern
from istmpi.errors import ConfigError
from istmpi.models.inference import Inferred, infer, require_trainable
from istmpi.models.leaf_proof import proved_leaves
from istmpi.models.norms import Calibrated, built
from istmpi.models.recording import Recorder
from istmpi.models.scaling import storage_of
from istmpi.models.table import BatchNormalisation, Blocks, ParameterEntry, Table
from istmpi.models.tracing import followed, trace
from istmpi.models.trials import hooked
from istmpi.models.user import UserNetwork
from istmpi.models.uses import sums_of

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
"""Layers that sum over an axis of their weight."""

Contents = Mapping[str, tuple[int, float | None]]
"""The checksum of every tensor, and the value that all of its elements have, if they do."""


def inspect(network: UserNetwork) -> Table:
    return examine(network)[0]


def examine(network: UserNetwork) -> tuple[Table, Inferred]:
    """The table of a network, and the finding of each width."""
    again = built(network, seed=1)
    require_trainable(network, again)
    second = _contents(_tensors(again))
    inferred = infer(network, again)
    del again  # there need not be memory for both
    module = built(network, seed=0)
    first = _contents(_tensors(module))
    watched = _watch(network, module)
    trained, stochastic = _trained(network, module, watched.exits)
    for name, _ in module.named_buffers():
        if first[name] != second[name]:
            raise ConfigError(
                f"{network.name}: its buffer {name} has random values, which would differ between ranks "
                "(frozen parameters are buffers). Compute it from a generator with a fixed seed."
            )
    traced = trace(network, inferred.widths, inferred.blocks, trained)
    sums = {name: groups for name, groups in _sums(module, inferred.parameters).items() if name in watched.called}
    scaled = sums_of(network, inferred.widths, watched.recorder, sums)
    parameters = {}
    for name, _ in module.named_parameters():
        bound, centre = _initial(network, module, name, scaled.fans, first[name], second[name])
        parameters[name] = ParameterEntry(str(inferred.parameters[name]), bound, centre)
    for name, groups in sums.items():
        sums[name] = tuple(group for group in groups if group in scaled.layers[name] or group in inferred.blocks)
    blocks, folded = _never_called(module, inferred.blocks, scaled.folded)
    leaves = proved_leaves(network, inferred.widths, module)
    table = Table(
        source=network.source.hash,
        settings=network.settings,
        groups=inferred.lengths,
        undealt={finding.width.name: finding.problem for finding in inferred.findings if not finding.proved},
        parameters=parameters,
        computed=tuple(name for name in parameters if first[name] == second[name] and first[name][1] is None),
        norms={name: BatchNormalisation(layer.num_features, layer.eps) for name, layer in watched.norms.items()},
        sums={name: groups for name, groups in sums.items() if groups and name in watched.bare},
        uses=scaled.uses,
        folded=folded,
        unscaled=scaled.unscaled,
        stochastic=stochastic,
        operators=traced.operators,
        normalised=tuple(map(str, traced.normalised)),
        residual=traced.residual,
        inexact=traced.inexact,
        preferred=network.preferred,
        blocks=blocks,
        leaves=leaves,
        exits=watched.exits,
        head=watched.head if watched.head in leaves else "",
    )
    return table, inferred


@dataclass(frozen=True)
class _Watched:
    norms: Mapping[str, Calibrated]
    called: frozenset[str]
    bare: frozenset[str]
    """The called products whose output goes not only straight into a batch normalisation."""
    recorder: Recorder
    exits: int
    head: str
    """The product that made the output as it stands."""


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _contents(tensors: Iterable[tuple[str, torch.Tensor]]) -> Contents:
    contents = {}
    for name, values in tensors:
        array = values.detach().cpu().contiguous()
        checksum = zlib.crc32(array.reshape(-1).view(torch.uint8).numpy())
        constant = array.numel() > 0 and not array.is_complex() and bool((array == array.reshape(-1)[0]).all())
        contents[name] = checksum, float(array.reshape(-1)[0]) if constant else None
    return contents


def _watch(network: UserNetwork, module: nn.Module) -> _Watched:
    """Watch a forward pass in evaluation; refuses batch normalisations that it does not call."""
    norms = {name: layer for name, layer in module.named_modules() if isinstance(layer, Calibrated)}
    calls = dict.fromkeys(norms, 0)
    outputs: list[tuple[str, torch.Tensor, int]] = []
    normalised: dict[int, str] = {}

    def made(name: str, output: torch.Tensor) -> None:
        outputs.append((name, output, output._version))

    def arrives(name: str, x: torch.Tensor) -> None:
        calls[name] += 1
        # The version counts changes in place since, such as an activation.
        into = (n for n, (_, output, version) in enumerate(outputs) if output is x and x._version == version)
        normalised.update(dict.fromkeys(into, name))

    hooks = [
        layer.register_forward_hook(lambda _, __, output, name=name: made(name, output))
        for name, layer in module.named_modules()
        if isinstance(layer, PRODUCTS)
    ]
    hooks += [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: arrives(name, inputs[0]))
        for name, layer in norms.items()
    ]
    with hooked(hooks):
        recorder, returned, _ = followed(network, module, False)
    for name, count in calls.items():
        if not count:
            raise ConfigError(
                f"{network.name}: its batch normalisation {name} is not called in a forward pass, so its "
                "moments cannot be calibrated. Remove it from the constructor."
            )
    # A layer's own call reads its output as well where it writes into it.
    elsewhere = (recorder.readers.get(storage_of(output), set()) - {*norms, name} for name, output, _ in outputs)
    bare = frozenset(
        name
        for number, ((name, *_), others) in enumerate(zip(outputs, elsewhere))
        # The moments of several calls are averaged: of inputs that differ in scale some would count for more.
        if others or calls.get(normalised.get(number)) != 1
    )
    head = next((name for name, output, version in outputs if output is returned and version == output._version), "")
    exits = network.exits_of(returned)
    return _Watched(norms, frozenset(name for name, *_ in outputs), bare, recorder, exits, head)


def _trained(network: UserNetwork, module: nn.Module, exits: int) -> tuple[Recorder, bool]:
    """A record of a forward pass in training, True if it draws random numbers; refuses what cannot be trained."""
    before = _contents(module.named_buffers())
    recorder, outputs, draws = followed(network, module, True)
    if not outputs.requires_grad:
        raise ConfigError(
            f"{network.name}: its outputs have no gradient with respect to any parameter. Remove "
            "torch.no_grad, detach and argmax from its forward."
        )
    if (trained := network.exits_of(outputs)) != exits:
        raise ConfigError(
            f"{network.name}: its forward returns {trained} output{'s' * (trained > 1)} in training and "
            f"{exits} in evaluation. Return as many in both, the full network's last."
        )
    after = _contents(module.named_buffers())
    for name in before:
        if before[name] != after.get(name):
            raise ConfigError(
                f"{network.name}: its buffer {name} changes in a forward pass in training, so ranks would "
                "disagree on it and checkpoints would lack it. Only buffers of nn.BatchNorm and "
                "nn.InstanceNorm may change."
            )
    return recorder, draws


def _sums(module: nn.Module, patterns: Mapping[str, Pattern]) -> dict[str, tuple[str, ...]]:
    name_of = {id(parameter): name for name, parameter in module.named_parameters()}
    sums = {}
    for path, layer in module.named_modules():
        if isinstance(layer, PRODUCTS) and (name := name_of.get(id(layer.weight))):
            axis = patterns[name].axes[0 if isinstance(layer, TRANSPOSED) else 1]
            sums[path] = tuple(factor.name for factor in axis.factors if factor.name)
    return sums


def _never_called(
    module: nn.Module, blocks: Blocks, folded: Mapping[str, tuple[str, ...]]
) -> tuple[Blocks, dict[str, tuple[str, ...]]]:
    """Blocks without ends that attention reads and never calls; their parameters are ``folded`` now."""
    folded = dict(folded)

    def called(end: str, group: str) -> bool:
        layer = module.get_submodule(end)
        if not isinstance(layer, NonDynamicallyQuantizableLinear):
            return True
        for key, _ in layer.named_parameters():
            folded[f"{end}.{key}"] = (*folded.get(f"{end}.{key}", ()), group)
        return False

    return {
        group: [replace(block, ends=tuple(end for end in block.ends if called(end, group))) for block in several]
        for group, several in blocks.items()
    }, folded


def _initial(
    network: UserNetwork,
    module: nn.Module,
    name: str,
    fans: Mapping[str, int],
    first: tuple[int, float | None],
    second: tuple[int, float | None],
) -> tuple[float, float]:
    """Bound and centre of a parameter's initial values, from its contents after two constructions.

    The bound follows from the length that products with it sum over; one in no product keeps its mean and deviation.
    """
    path, _, key = name.rpartition(".")
    layer, parameter = module.get_submodule(path), module.get_parameter(name)
    if not torch.isfinite(parameter).all():
        raise ConfigError(
            f"{network.name}: its parameter {name} does not start with finite numbers. Set it in the constructor."
        )
    if first == second:
        return 0.0, float(parameter.detach().double().mean()) if first[1] is None else first[1]
    if isinstance(layer, (*PRODUCTS, nn.Embedding, nn.EmbeddingBag)):
        weight = layer.weight if key == "bias" else parameter
        return max(weight[0].numel(), 1) ** -0.5, 0.0
    if fan := fans.get(name) or fans.get(name.replace("bias", "weight")):
        return fan**-0.5, 0.0
    values = parameter.detach().double()
    return float(3**0.5 * values.std(correction=0)), float(values.mean())
