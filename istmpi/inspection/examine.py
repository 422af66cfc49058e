"""Inspects a network before training: makes its table, or raises ConfigError if the network cannot
be trained.

The network is built twice in full size, with different random numbers, and run on a few examples.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from istmpi.engine.axes import Pattern
from istmpi.errors import ConfigError
from istmpi.inspection.halves import prove_halves
from istmpi.inspection.inference import Inferred, infer
from istmpi.inspection.recording import Recorder
from istmpi.inspection.tracing import EXAMPLES, followed, trace
from istmpi.inspection.uses import sums_of
from istmpi.network.joined import groups_on
from istmpi.network.leaves import Elsewhere, candidates, leaves_of, prepare, without_values
from istmpi.network.norms import Calibrated, built
from istmpi.network.running import require_trainable, run_short
from istmpi.network.scaling import storage_of
from istmpi.network.table import BatchNormalisation, Blocks, Joined, ParameterEntry, Table
from istmpi.network.trials import few, hooked, one_thread, seeded
from istmpi.network.user import UserNetwork

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
"""Classes of layers that sum over an axis of their weight."""

Leaves = dict[str, tuple[str, ...]]
Contents = Mapping[str, tuple[int, float | None]]
"""The checksum of every tensor, and the value of its elements if all are equal, otherwise None."""


def inspect(network: UserNetwork) -> Table:
    return examine(network)[0]


def examine(network: UserNetwork) -> tuple[Table, Inferred]:
    again = built(network, seed=1)
    require_trainable(network, again)
    second = _contents(_tensors(again))
    inferred = infer(network, again)
    del again  # so that both need not fit into memory
    module = built(network, seed=0)
    first = _contents(_tensors(module))
    norms = {name: layer for name, layer in module.named_modules() if isinstance(layer, Calibrated)}
    evaluated, bare, exits, head = _evaluated(network, module, norms)
    trained, stochastic = _trained(network, module, exits)
    for name, _ in module.named_buffers():
        if first[name] != second[name]:
            raise network.refused(
                f"its buffer {name} has random values, which would differ between ranks "
                "(frozen parameters are buffers). Compute it from a generator with a fixed seed."
            )
    computation = trace(network, inferred.widths, inferred.blocks, trained)
    sums, joined = _sums(module, inferred.parameters, evaluated, bare)
    scaled = sums_of(network, inferred.widths, evaluated, sums, inferred.parameters)
    parameters = {}
    for name, _ in module.named_parameters():
        bound, centre = _initial(network, module, name, scaled.fans, first[name], second[name])
        parameters[name] = ParameterEntry(str(inferred.parameters[name]), bound, centre)
    for name, groups in sums.items():
        if name in bare:  # otherwise the pass says nothing about it
            sums[name] = tuple(
                group
                for group in groups
                if group in scaled.layers[name] or group in inferred.blocks
            )
    blocks, folded = _never_called(module, inferred.blocks, scaled.folded)
    leaves = proved_leaves(network, inferred.widths, module)
    table = Table(
        source=network.source.hash,
        settings=network.settings,
        groups=inferred.lengths,
        undealt={
            finding.width.name: finding.problem
            for finding in inferred.findings
            if not finding.proved
        },
        parameters=parameters,
        computed=tuple(
            name for name in parameters if first[name] == second[name] and first[name][1] is None
        ),
        norms={
            name: BatchNormalisation(layer.num_features, layer.eps) for name, layer in norms.items()
        },
        # The moments of a normalisation do not restore the ratio of an axis' segments.
        sums={
            name: groups
            for name, groups in sums.items()
            if groups and (name in joined or bare.get(name, True))
        },
        uses=scaled.uses,
        folded=folded,
        joined={**joined, **scaled.joined},
        stochastic=stochastic,
        **computation,
        preferred=network.preferred,
        blocks=blocks,
        leaves=leaves,
        exits=exits,
        head=head if head in leaves else "",
    )
    return prove_halves(network, table, scaled.means), inferred


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _contents(tensors: Iterable[tuple[str, torch.Tensor]]) -> Contents:
    contents = {}
    for name, values in tensors:
        array = values.detach().cpu().contiguous()
        checksum = zlib.crc32(array.reshape(-1).view(torch.uint8).numpy())
        constant = (
            array.numel() > 0
            and not array.is_complex()
            and bool((array == array.reshape(-1)[0]).all())
        )
        contents[name] = checksum, float(array.reshape(-1)[0]) if constant else None
    return contents


def _evaluated(
    network: UserNetwork, module: nn.Module, norms: Mapping[str, Calibrated]
) -> tuple[Recorder, dict[str, bool], int, str]:
    """Record a forward pass in evaluation. Raises ConfigError if a batch normalisation is not
    called.

    Also returns the layers of products that are called; the number of exits; and the layer whose
    output the network returns unchanged, or "". A layer has False if only one call of a batch
    normalisation uses its outputs, unchanged.
    """
    calls = dict.fromkeys(norms, 0)
    outputs: list[tuple[str, torch.Tensor, int]] = []
    normalised: dict[int, str] = {}

    def made(name: str, _: nn.Module, __: object, output: torch.Tensor) -> None:
        outputs.append((name, output, output._version))

    def arrives(name: str, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        calls[name], x = calls[name] + 1, inputs[0]
        into = (
            n
            for n, (_, output, version) in enumerate(outputs)
            if output is x and x._version == version
        )
        normalised.update(dict.fromkeys(into, name))

    products = {
        name: layer for name, layer in module.named_modules() if isinstance(layer, PRODUCTS)
    }
    hooks = [layer.register_forward_hook(partial(made, name)) for name, layer in products.items()]
    hooks += [
        layer.register_forward_pre_hook(partial(arrives, name)) for name, layer in norms.items()
    ]
    with hooked(hooks):
        recorder, returned, _ = followed(network, module, False)
    for name, count in calls.items():
        if not count:
            raise network.refused(
                f"its batch normalisation {name} is not called in a forward pass, so its "
                "moments cannot be calibrated. Remove it from the constructor."
            )
    bare: dict[str, bool] = {}
    for number, (name, output, _) in enumerate(outputs):
        # A layer that writes into its output also reads it.
        elsewhere = recorder.readers.get(storage_of(output), set()) - {*norms, name}
        # Moments are averaged over calls. Inputs of larger scale would weigh more.
        bare[name] = (
            bare.get(name, False) or bool(elsewhere) or calls.get(normalised.get(number)) != 1
        )
    head = next(
        (
            name
            for name, output, version in outputs
            if output is returned and version == output._version
        ),
        "",
    )
    return recorder, bare, network.exits_of(returned), head


def _trained(network: UserNetwork, module: nn.Module, exits: int) -> tuple[Recorder, bool]:
    """Record a forward pass in training. Also returns True if the pass draws random numbers.

    Raises ConfigError if the network cannot be trained.
    """
    before = _contents(module.named_buffers())
    recorder, outputs, draws = followed(network, module, True)
    if not outputs.requires_grad:
        raise network.refused(
            "its outputs have no gradient with respect to any parameter. Remove "
            "torch.no_grad, detach and argmax from its forward."
        )
    if (trained := network.exits_of(outputs)) != exits:
        raise network.refused(
            f"its forward returns {trained} output{'s' * (trained > 1)} in training and "
            f"{exits} in evaluation. Return as many in both, the full network's last."
        )
    after = _contents(module.named_buffers())
    for name in before:
        if before[name] != after.get(name):
            raise network.refused(
                f"its buffer {name} changes in a forward pass in training, so ranks would "
                "disagree on it and checkpoints would lack it. Only buffers of nn.BatchNorm and "
                "nn.InstanceNorm may change."
            )
    return recorder, draws


def _sums(
    module: nn.Module, patterns: Mapping[str, Pattern], evaluated: Recorder, called: Collection[str]
) -> tuple[dict[str, tuple[str, ...]], dict[str, Joined]]:
    """Return the widths on the axis that each layer of products sums over, by the layer's name; and
    axes that are sums.

    A layer that the recorded pass did not call, such as an expert without examples, counts like the
    ``called`` ones, unless the pass read its weight in another way.
    """
    name_of = {id(parameter): name for name, parameter in module.named_parameters()}
    read = set(evaluated.kept_apart)
    for seen in evaluated.sums:
        read.update(seen.parameter.split(","))
    sums, joined = {}, {}
    for path, layer in module.named_modules():
        if not isinstance(layer, PRODUCTS) or isinstance(layer, NonDynamicallyQuantizableLinear):
            continue
        name = name_of.get(id(layer.weight), "")
        if name and (path in called or name not in read):
            number = 0 if isinstance(layer, TRANSPOSED) else 1
            axis = patterns[name].axes[number]
            sums[path] = groups_on(axis)
            if len(axis.segments) > 1:
                joined[path] = Joined(str(axis), number, layer.weight.ndim)
    return sums, joined


def _never_called(
    module: nn.Module, blocks: Blocks, folded: Mapping[str, tuple[str, ...]]
) -> tuple[Blocks, dict[str, tuple[str, ...]]]:
    """Return ``blocks`` without ends that attention reads but never calls, and ``folded`` with the
    ends' parameters."""
    folded = dict(folded)

    def called(end: str, group: str) -> bool:
        layer = module.get_submodule(end)
        if not isinstance(layer, NonDynamicallyQuantizableLinear):
            return True
        for key, _ in layer.named_parameters():
            folded[f"{end}.{key}"] = (*folded.get(f"{end}.{key}", ()), group)
        return False

    return {
        group: [
            replace(block, ends=tuple(end for end in block.ends if called(end, group)))
            for block in several
        ]
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
    """Return bound and centre of a parameter's initial values, from its contents in two builds.

    Equal contents have the bound 0. A product's bound follows from its number of inputs, an
    embedding's bound from its width. Other values keep mean and deviation. Raises ConfigError if a
    value is not finite.
    """
    path, _, key = name.rpartition(".")
    layer, parameter = module.get_submodule(path), module.get_parameter(name)
    if not torch.isfinite(parameter).all():
        raise network.refused(
            f"its parameter {name} does not start with finite numbers. Set it in the constructor."
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


def proved_leaves(
    network: UserNetwork, lengths: Mapping[str, int], full: nn.Module | None = None
) -> Leaves:
    """Return the layers, with their parameters' names, whose results do not depend on where their
    weights' rows are.

    A small network is tried, or the full network if the small one fails. A layer has its weight
    only during its call. All bits of the outputs must equal the ordinary network's. A layer is left
    out if others read its weight.
    """
    for tried in (few(lengths), lengths):
        with suppress(ConfigError), one_thread():
            module = full if full and tried == lengths else built(network, tried)
            return _proved_leaves(network, tried, module.eval())
    return {}


def _proved_leaves(network: UserNetwork, lengths: Mapping[str, int], real: nn.Module) -> Leaves:
    leaves, generator = candidates(real), torch.Generator().manual_seed(0)
    values = {}
    for name, parameter in real.named_parameters():
        parameter.data = values[name] = torch.empty_like(parameter.detach()).uniform_(
            -1, 1, generator=generator
        )
    with seeded():
        examples = network.examples(EXAMPLES, torch.get_default_dtype())
        x, expected = run_short(network, examples, partial(network.forward, real))
    while leaves:
        outputs, read = _with_leaves(network, lengths, values, leaves, x)
        if not read:
            same = outputs is not None and torch.equal(outputs.nan_to_num(), expected.nan_to_num())
            return leaves if same else {}
        leaves = {path: names for path, names in leaves.items() if read.isdisjoint(names)}
    return {}


def _with_leaves(
    network: UserNetwork,
    lengths: Mapping[str, int],
    values: Mapping[str, torch.Tensor],
    leaves: Leaves,
    x: tuple[torch.Tensor, ...],
) -> tuple[torch.Tensor | None, set[str]]:
    """Return the outputs (None if the pass fails), and the parameters that were read outside their
    layers."""
    outputs = None
    try:
        with without_values():
            module = built(network, lengths).eval()
        elsewhere = {name for names in leaves.values() for name in names}
        for name, parameter in prepare(module, elsewhere).items():
            parameter.data = values[name]
        for leaf in leaves_of(module, leaves).values():
            leaf.replace(
                partial(leaf.whole, {key: values[name] for key, name in leaf.names.items()})
            )
    except Exception:  # a user's constructor may not accept such parameters
        return None, set()
    with suppress(ConfigError), seeded():
        outputs = network.forward(module, *x)
    parameters = (parameter for part in module.modules() for parameter in part._parameters.values())
    return outputs, {
        parameter.name
        for parameter in parameters
        if isinstance(parameter, Elsewhere) and parameter.read
    }
