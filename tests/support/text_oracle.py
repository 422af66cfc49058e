"""The naive oracle for the decoder: narrow ones cut out of the full one by hand, with AdamW's state, in one process.

It knows of no axes pattern, layout, transfer or store. From istmpi it takes the deals, the batches and the class alone.
"""

import numpy as np
import torch
from holders import HoldersMean, stream_of
from torch.nn import functional

from istmpi.engine.partition import Partition
from istmpi.models.transformer import Transformer

AVERAGES = "exp_avg", "exp_avg_sq"


def where(name, shape, held, layers, per_head):
    """The rows and columns that a rank has of a parameter."""
    rows, columns = (np.arange(length) for length in (*shape, 1)[:2])
    for number in range(layers):
        if not name.startswith(f"layers.{number}."):
            continue
        heads, hidden = held[f"heads{number + 1}"], held[f"hidden{number + 1}"]
        product = name.removeprefix(f"layers.{number}.").removesuffix(".weight")
        if product in ("attention.query", "attention.key", "attention.value"):
            width = per_head[product.removeprefix("attention.")]
            rows = (heads[:, None] * width + np.arange(width)).ravel()
        elif product == "attention.output":
            width = per_head["query"]
            columns = (heads[:, None] * width + np.arange(width)).ravel()
        elif product in ("feed_forward.up", "feed_forward.gate"):
            rows = hidden
        elif product == "feed_forward.down":
            columns = hidden
    return (rows,) if len(shape) == 1 else np.ix_(rows, columns)


def train(settings, lengths, run, data, weights, ranks):
    """The weights and both of AdamW's averages after all rounds, and the mean loss of each round."""
    layers = len(settings["heads"])
    queries = settings["queries"] * settings["head_dim"]
    per_head = {"query": queries, "key": settings["head_dim"], "value": settings["head_dim"]}
    streams = [stream_of(run, data.train, rank, ranks) for rank in range(ranks)]
    state = [{name: torch.zeros_like(values) for name, values in weights.items()} for _ in AVERAGES]
    losses = []
    for round in range(run.train.rounds):
        deal = Partition.draw(lengths, tuple(lengths), ranks, run.train.seed, round)
        of_round, after, averages = [], HoldersMean(weights), [HoldersMean(weights) for _ in AVERAGES]
        for rank in range(ranks):
            held = {name: parts[rank] for name, parts in deal.units.items()}
            narrow = {**settings, "heads": [], "hidden": []}
            for number in range(1, layers + 1):
                narrow["heads"].append(len(held[f"heads{number}"]))
                narrow["hidden"].append(len(held[f"hidden{number}"]))
            network = Transformer(tuple(data.shape), data.outputs, **narrow).double()
            places = {}
            for name, parameter in network.named_parameters():
                places[name] = where(name, weights[name].shape, held, layers, per_head)
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
    return weights, {name: [kept[name] for kept in state] for name in weights}, losses
