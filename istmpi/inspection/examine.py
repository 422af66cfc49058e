"""Inspects a network before training: makes its table, or raises ConfigError if the network cannot
be trained.

The network is built twice in full size, with different random numbers, and run on a few examples.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from istmpi.engine.axes import Pattern
from istmpi.inspection.halves import prove_halves
from istmpi.inspection.inference import Inferred, infer
from istmpi.inspection.proved_leaves import prove_leaves
from istmpi.inspection.recording import Recorder
from istmpi.inspection.tracing import record, trace
from istmpi.inspection.uses import find_sums
from istmpi.network.joined import groups_on
from istmpi.network.norms import Calibrated, build_module
from istmpi.network.running import require_trainable
from istmpi.network.scaling import identify_storage
from istmpi.network.table import (
    BatchNormalisation,
    Blocks,
    Joined,
    ParameterEntry,
    ResidualBlock,
    Table,
)
from istmpi.network.trials import hooked
from istmpi.network.user import UserNetwork

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
"""Classes of layers that sum over an axis of their weight."""


@dataclass(frozen=True)
class Content:
    """The facts of a tensor that are compared in two builds."""

    checksum: int
    constant: float | None
    """The value of the elements if all are equal, otherwise None."""


Contents = Mapping[str, Content]


@dataclass(frozen=True)
class _Evaluation:
    """A recorded forward pass in evaluation."""

    recorder: Recorder
    bare: Mapping[str, bool]
    """The layers of products that are called. A layer has False if only one call of a batch
    normalisation uses its outputs, unchanged."""
    output_count: int
    head: str
    """The layer whose output the network returns unchanged, or ""."""


def inspect(network: UserNetwork) -> Table:
    table, _ = examine(network)
    return table


def examine(network: UserNetwork) -> tuple[Table, Inferred]:
    """Return a network's table, and what was found about its widths. Raises ConfigError if the
    network cannot be trained."""
    # Two builds with other random numbers show which values the constructor draws.
    again = build_module(network, seed=1)
    require_trainable(network, again)
    second = _contents(_tensors(again))
    inferred = infer(network, again)
    del again  # so that both need not fit into memory
    module = build_module(network, seed=0)
    first = _contents(_tensors(module))
    norms = {name: layer for name, layer in module.named_modules() if isinstance(layer, Calibrated)}
    evaluation = _evaluate(network, module, norms)
    # After the pass in evaluation: one in training may change buffers, which is then refused.
    trained, stochastic = _train(network, module, evaluation.output_count)
    _require_equal_buffers(network, module, first, second)
    operators = trace(network, inferred.widths, inferred.blocks, trained)
    sums, joined = _sums(module, inferred.parameters, evaluation)
    unit_sums = find_sums(network, inferred.widths, evaluation.recorder, sums, inferred.parameters)
    parameters = {}
    for name, _ in module.named_parameters():
        bound, centre = _initial(network, module, name, unit_sums.fans, first[name], second[name])
        parameters[name] = ParameterEntry(str(inferred.parameters[name]), bound, centre)
    blocks, folded = _leave_out_never_called(module, inferred.blocks, unit_sums.folded)
    leaves = prove_leaves(network, inferred.widths, module)
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
            name
            for name in parameters
            if first[name] == second[name] and first[name].constant is None
        ),
        norms={
            name: BatchNormalisation(layer.num_features, layer.eps) for name, layer in norms.items()
        },
        sums=_scaled_sums(sums, joined, evaluation.bare, unit_sums.layers, inferred.blocks),
        uses=unit_sums.uses,
        folded=folded,
        elsewhere=_find_used_elsewhere(module, sums, evaluation.recorder),
        joined={**joined, **unit_sums.joined},
        stochastic=stochastic,
        operators=operators.products,
        normalised=operators.normalised,
        inexact=operators.inexact,
        residual=operators.residual,
        preferred=network.preferred,
        blocks=blocks,
        leaves=leaves,
        output_count=evaluation.output_count,
        head=evaluation.head if evaluation.head in leaves else "",
    )
    return prove_halves(network, table, unit_sums.means), inferred


def _require_equal_buffers(
    network: UserNetwork, module: nn.Module, first: Contents, second: Contents
) -> None:
    """Raise ConfigError if a buffer has other values in two builds."""
    for name, _ in module.named_buffers():
        if first[name] != second[name]:
            raise network.refused(
                f"its buffer {name} has random values, which would differ between ranks "
                "(frozen parameters are buffers). Compute it from a generator with a fixed seed."
            )


def _scaled_sums(
    sums: Mapping[str, tuple[str, ...]],
    joined: Collection[str],
    bare: Mapping[str, bool],
    recorded: Mapping[str, tuple[str, ...]],
    blocks: Blocks,
) -> dict[str, tuple[str, ...]]:
    """Return the groups over which layers sum, and for which the sum needs a factor."""
    scaled = {}
    for name, groups in sums.items():
        if name in bare:  # otherwise the pass says nothing about it
            groups = tuple(group for group in groups if group in recorded[name] or group in blocks)
        # The moments of a normalisation do not restore the ratio of an axis' segments.
        if groups and (name in joined or bare.get(name, True)):
            scaled[name] = groups
    return scaled


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _contents(tensors: Iterable[tuple[str, torch.Tensor]]) -> Contents:
    """Return a checksum of each tensor and, if all its values are equal, their value."""
    contents = {}
    for name, values in tensors:
        array = values.detach().cpu().contiguous()
        flat = array.reshape(-1)
        checksum = zlib.crc32(flat.view(torch.uint8).numpy().data)
        constant = None
        if flat.numel() and not flat.is_complex() and bool((flat == flat[0]).all()):
            constant = float(flat[0])
        contents[name] = Content(checksum, constant)
    return contents


@dataclass
class _Output:
    """An output of a layer of products."""

    layer: str
    tensor: torch.Tensor
    version: int
    """The tensor's version when the layer returned it: a later one was written into."""
    norm: str | None = None
    """The batch normalisation that uses the output unchanged, if any."""

    def is_unchanged(self, tensor: torch.Tensor) -> bool:
        return tensor is self.tensor and tensor._version == self.version


def _evaluate(
    network: UserNetwork, module: nn.Module, norms: Mapping[str, Calibrated]
) -> _Evaluation:
    """Record a forward pass in evaluation. Raises ConfigError if a batch normalisation is not
    called."""
    calls = dict.fromkeys(norms, 0)
    outputs: list[_Output] = []

    def note_output(name: str, _: nn.Module, __: object, output: torch.Tensor) -> None:
        outputs.append(_Output(name, output, output._version))

    def note_norm(name: str, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        calls[name] += 1
        for output in outputs:
            if output.is_unchanged(inputs[0]):
                output.norm = name

    handles = []
    for name, layer in module.named_modules():
        if isinstance(layer, PRODUCTS):
            handles.append(layer.register_forward_hook(partial(note_output, name)))
    for name, norm in norms.items():
        handles.append(norm.register_forward_pre_hook(partial(note_norm, name)))
    with hooked(handles):
        recorder, returned, _ = record(network, module, False)
    for name, count in calls.items():
        if not count:
            raise network.refused(
                f"its batch normalisation {name} is not called in a forward pass, so its "
                "moments cannot be calibrated. Remove it from the constructor."
            )
    head = next((output.layer for output in outputs if output.is_unchanged(returned)), "")
    bare = _find_bare(recorder, outputs, calls)
    return _Evaluation(recorder, bare, network.count_outputs(returned), head)


def _find_bare(
    recorder: Recorder, outputs: Iterable[_Output], calls: Mapping[str, int]
) -> dict[str, bool]:
    """Return False for layers whose outputs only one call of a batch normalisation uses, and True
    for other layers. ``calls``: the number of calls of each normalisation."""
    bare: dict[str, bool] = {}
    for output in outputs:
        # A layer that writes into its output also reads it.
        readers = recorder.readers.get(identify_storage(output.tensor), set()) - {
            *calls,
            output.layer,
        }
        # Moments are averaged over calls. Inputs of larger scale would weigh more.
        is_bare = bool(readers) or output.norm is None or calls[output.norm] != 1
        bare[output.layer] = bare.get(output.layer, False) or is_bare
    return bare


def _train(network: UserNetwork, module: nn.Module, in_evaluation: int) -> tuple[Recorder, bool]:
    """Record a forward pass in training. Also returns True if the pass draws random numbers.

    ``in_evaluation``: the number of outputs of a pass in evaluation.

    Raises ConfigError if the network cannot be trained.
    """
    before = _contents(module.named_buffers())
    recorder, outputs, draws = record(network, module, True)
    # Training would fail in its first step, with an error of torch that names no cause.
    if not outputs.requires_grad:
        raise network.refused(
            "its outputs have no gradient with respect to any parameter. Remove "
            "torch.no_grad, detach and argmax from its forward."
        )
    in_training = network.count_outputs(outputs)
    # A loss has a weight for each of these outputs.
    if in_training != in_evaluation:
        plural = "s" if in_training > 1 else ""
        raise network.refused(
            f"its forward returns {in_training} output{plural} in training and "
            f"{in_evaluation} in evaluation. Return as many in both, the full network's last."
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
    module: nn.Module, patterns: Mapping[str, Pattern], evaluation: _Evaluation
) -> tuple[dict[str, tuple[str, ...]], dict[str, Joined]]:
    """Return the widths on the axis that each layer of products sums over, by the layer's name; and
    axes that are sums.

    A layer that the recorded pass did not call, such as an expert without examples, counts like the
    called ones, unless the pass read its weight in another way.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    read = set(evaluation.recorder.kept_apart)
    for addition in evaluation.recorder.sums:
        read.update(addition.parameter.split(","))
    sums = {}
    joined = {}
    for path, layer in module.named_modules():
        if not isinstance(layer, PRODUCTS) or isinstance(layer, NonDynamicallyQuantizableLinear):
            continue
        name = names.get(id(layer.weight), "")
        if name and (path in evaluation.bare or name not in read):
            number = 0 if isinstance(layer, TRANSPOSED) else 1
            axis = patterns[name].axes[number]
            sums[path] = groups_on(axis)
            if len(axis.segments) > 1:
                joined[path] = Joined(str(axis), number, layer.weight.ndim)
    return sums, joined


def _find_used_elsewhere(
    module: nn.Module, sums: Collection[str], recorder: Recorder
) -> tuple[str, ...]:
    """Return the layers in ``sums`` whose weight the pass has also used outside of such layers."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    used = set(recorder.kept_apart)
    for addition in recorder.sums:
        if addition.module not in sums:
            used.update(addition.parameter.split(","))
    return tuple(path for path in sums if names[id(module.get_submodule(path).weight)] in used)


def _leave_out_never_called(
    module: nn.Module, blocks: Blocks, folded: Mapping[str, tuple[str, ...]]
) -> tuple[Blocks, dict[str, tuple[str, ...]]]:
    """Return ``blocks`` without ends that attention reads but never calls, and ``folded`` with the
    ends' parameters."""
    folded = dict(folded)
    called_blocks: dict[str, list[ResidualBlock]] = {group: [] for group in blocks}
    for group, several in blocks.items():
        for block in several:
            called = []
            for end in block.ends:
                layer = module.get_submodule(end)
                if not isinstance(layer, NonDynamicallyQuantizableLinear):
                    called.append(end)
                    continue
                for key, _ in layer.named_parameters():
                    name = f"{end}.{key}"
                    folded[name] = (*folded.get(name, ()), group)
            called_blocks[group].append(replace(block, ends=tuple(called)))
    return called_blocks, folded


def _initial(
    network: UserNetwork,
    module: nn.Module,
    name: str,
    fans: Mapping[str, int],
    first: Content,
    second: Content,
) -> tuple[float, float]:
    """Return bound and centre of a parameter's initial values, from its contents in two builds.

    Equal contents have the bound 0. A product's bound follows from its number of inputs, an
    embedding's bound from its width. Other values keep mean and deviation. Raises ConfigError if a
    value is not finite.
    """
    path, _, key = name.rpartition(".")
    layer = module.get_submodule(path)
    parameter = module.get_parameter(name)
    if not torch.isfinite(parameter).all():
        raise network.refused(
            f"its parameter {name} does not start with finite numbers. Set it in the constructor."
        )
    if first == second:
        centre = first.constant
        if centre is None:
            centre = float(parameter.detach().double().mean())
        return 0.0, centre
    if isinstance(layer, (*PRODUCTS, nn.Embedding, nn.EmbeddingBag)):
        weight = layer.weight if key == "bias" else parameter
        return max(weight[0].numel(), 1) ** -0.5, 0.0
    # PyTorch draws a bias by the number of inputs of its weight.
    fan = fans.get(name) or fans.get(name.replace("bias", "weight"))
    if fan:
        return fan**-0.5, 0.0
    # A constructor may draw in its own way, of which mean and deviation are kept.
    values = parameter.detach().double()
    # A uniform distribution of this deviation has a bound of sqrt(3) times as much.
    return float(3**0.5 * values.std(correction=0)), float(values.mean())
