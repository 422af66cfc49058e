"""The naive oracle for the decoder: narrow ones cut out of the full one by hand, with AdamW's state, in one process.

It knows of no axes pattern, layout, transfer or store. From istmpi it takes the deals, the batches and the class alone.
"""

import numpy as np
import torch
from holders import HoldersMean, find_part, stream_of
from torch.nn import functional

from istmpi.engine.partition import Partition
from istmpi.models.transformer import Transformer

AVERAGES = "exp_avg", "exp_avg_sq"


def find_axes(settings):
    """The units on each axis of a parameter, as `find_positions` has them: heads with their rows, and hidden units."""
    size = settings["head_dim"]
    queries = settings["queries"] * size
    axes = {}
    for number in range(len(settings["heads"])):
        attention, dense = f"layers.{number}.attention", f"layers.{number}.feed_forward"
        heads, hidden = f"heads{number + 1}", f"hidden{number + 1}"
        axes[f"{attention}.query.weight"] = ((1, heads, queries), None)
        axes[f"{attention}.output.weight"] = (None, (1, heads, queries))
        for product in ("key", "value"):
            axes[f"{attention}.{product}.weight"] = ((1, heads, size), None)
        for product in ("up", "gate"):
            axes[f"{dense}.{product}.weight"] = (hidden, None)
        axes[f"{dense}.down.weight"] = (None, hidden)
    return axes


def train(settings, lengths, run, data, weights, ranks):
    """The weights after all rounds, AdamW's averages among them, and the mean loss of each round."""
    axes = find_axes(settings)
    streams = [stream_of(run, data.train, rank, ranks) for rank in range(ranks)]
    state = [{name: torch.zeros_like(values) for name, values in weights.items()} for _ in AVERAGES]
    losses = []
    for round in range(run.train.rounds):
        deal = Partition.draw(lengths, tuple(lengths), ranks, run.train.seed, round)
        of_round, after, averages = [], HoldersMean(weights), [HoldersMean(weights) for _ in AVERAGES]
        for rank in range(ranks):
            held = {name: parts[rank] for name, parts in deal.units.items()}
            narrow = {**settings, "heads": [], "hidden": []}
            for number in range(1, len(settings["heads"]) + 1):
                narrow["heads"].append(len(held[f"heads{number}"]))
                narrow["hidden"].append(len(held[f"hidden{number}"]))
            network = Transformer(tuple(data.shape), data.outputs, **narrow).double()
            places = {}
            for name, parameter in network.named_parameters():
                places[name] = find_part(axes.get(name), weights[name].shape, held, lengths)
                parameter.data = weights[name][places[name]].clone()
            for number, layer in enumerate(network.layers, 1):
                for product, group in ((layer.attention.output, "heads"), (layer.feed_forward.down, "hidden")):
                    factor = lengths[f"{group}{number}"] / ranks / len(held[f"{group}{number}"])
                    product.register_forward_pre_hook(lambda _, inputs, factor=factor: (inputs[0] * factor,))
            steps = run.method.local_steps
            optimizer = torch.optim.AdamW(
                network.parameters(), lr=run.optimizer.lr, weight_decay=run.optimizer.weight_decay
            )
            for name, parameter in network.named_parameters():
                own = {kind: of[name][places[name]].clone() for kind, of in zip(AVERAGES, state)}
                optimizer.state[parameter] = {"step": torch.tensor(float(round * steps)), **own}
            for step in range(steps):
                batch = streams[rank].at(round * steps + step)
                optimizer.zero_grad()
                logits = network(batch.inputs[0])
                loss = functional.cross_entropy(logits.reshape(-1, data.outputs), batch.targets.reshape(-1))
                loss.backward()
                if run.optimizer.clip:
                    norm = torch.sqrt(sum((parameter.grad**2).sum() for parameter in network.parameters()))
                    for parameter in network.parameters():
                        parameter.grad *= min(1.0, run.optimizer.clip / (norm + 1e-6))
                optimizer.step()
                of_round.append(float(loss.detach()))
            own = dict(network.named_parameters())
            after.add(own, places)
            for kind, average in zip(AVERAGES, averages):
                average.add({name: optimizer.state[parameter][kind] for name, parameter in own.items()}, places)
        weights = after.mean(weights)
        state = [average.mean(kept) for average, kept in zip(averages, state)]
        losses.append(np.mean(of_round))
    for kind, kept in zip(AVERAGES, state):
        weights |= {f"{name}/{kind}": values for name, values in kept.items()}
    return weights, losses
