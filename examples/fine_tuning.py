"""Fine-tunes a network of GPT-2's shape on machines with slow links, with LoRA or in full.

mpirun -n 2 python examples/fine_tuning.py                                     # LoRA, local SGD
mpirun -n 2 python examples/fine_tuning.py --rank 0 --method sparse-loco       # all weights
mpirun -n 2 python examples/fine_tuning.py --layers 2 --embed 64 --rounds 2    # a small network, for a trial

Weights are random here, and so are the texts: the program shows seconds and bytes. Give GPT2LMHeadModel.from_pretrained
your checkpoint in place of the configuration, and a loader of your texts.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

import istmpi


class Adapted(nn.Module):
    """A frozen layer of GPT-2 and its adapter."""

    def __init__(self, layer, rank):
        super().__init__()
        inputs, outputs = layer.weight.shape
        self.layer, self.down = layer, nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class Gpt2(nn.Module):
    """GPT-2; ``rank`` is that of the adapters, or "0" to train all weights.

    Arguments are texts, because integers would be widths that istmpi may divide.
    """

    def __init__(self, layers="12", embed="768", heads="12", rank="8"):
        super().__init__()
        torch.manual_seed(0)  # frozen weights are not sent, so all ranks must make the same
        sizes = {"n_layer": int(layers), "n_embd": int(embed), "n_head": int(heads)}
        self.gpt2 = GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False))
        if rank == "0":
            return
        self.gpt2.requires_grad_(False)
        for name, layer in [*self.gpt2.named_modules()]:
            if isinstance(layer, Conv1D):
                self.gpt2.set_submodule(name, Adapted(layer, int(rank)))

    def forward(self, tokens):
        return self.gpt2(tokens, labels=tokens).loss


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="local-sgd")
    parser.add_argument("--folder", default="runs/fine-tuning")
    for name, default in (("layers", 12), ("embed", 768), ("heads", 12), ("rank", 8)):
        parser.add_argument(f"--{name}", default=str(default))
    for name, default in (("rounds", 10), ("local-steps", 20), ("batch", 1), ("length", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


if __name__ == "__main__":
    options = parse_options()
    texts = torch.randint(0, 50257, (64, options.length), generator=torch.Generator().manual_seed(1))
    loader = DataLoader(texts, options.batch, shuffle=True)
    arguments = {name: getattr(options, name) for name in ("layers", "embed", "heads", "rank")}
    how = {"method": options.method, "local_steps": options.local_steps, "optimizer": "adamw", "lr": 1e-4}
    job = istmpi.Distributed(Gpt2, arguments, example=texts[: options.batch], **how)
    for round in job.rounds(options.rounds, folder=options.folder, resume="auto"):
        for tokens in round.take(loader):
            round.step(round.module(tokens))
