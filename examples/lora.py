"""LoRA on a small frozen Llama of `transformers`. Only the adapters are trained, dealt out and sent.

    mpirun -n 4 python examples/lora.py
    mpirun -n 4 python examples/lora.py local-sgd 8 20      # the control: adapters of a rank's share of their rank

Four ranks reach 2.366 nats a byte for 4.24 MB; the control 2.330 for 8.56 MB, the trunk alone 2.649 (2bd5872).
"""

import os
import sys
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, logging

import istmpi


class Adapted(nn.Module):
    def __init__(self, layer, rank):
        super().__init__()
        self.layer, self.down = layer, nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class Lora(nn.Module):
    def __init__(self, trunk, rank=32):
        super().__init__()
        self.llama = LlamaForCausalLM.from_pretrained(trunk).requires_grad_(False)
        for name, layer in [*self.llama.named_modules()]:
            if name.endswith("_proj"):
                self.llama.set_submodule(name, Adapted(layer, rank))

    def forward(self, tokens, labels=None):
        return self.llama(tokens, labels=labels)


def windows(text):
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().split(64)[:-1]


def pretrain(folder):
    """Write a trunk into a folder, trained on the source of Python's modules, as another person would have done."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=256, use_cache=False))
    optimizer = torch.optim.AdamW(llama.parameters(), lr=0.003)
    source = windows(b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py"))))
    for _, tokens in zip(range(100), DataLoader(source, batch_size=32, shuffle=True)):
        llama(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    llama.save_pretrained(folder)


if __name__ == "__main__":
    method, rank, rounds = sys.argv[1:] or ("ist", 32, 20)
    logging.disable_progress_bar()
    world, trunk = istmpi.world(), "runs/trunk"
    if world.rank == 0 and not Path(trunk).exists():
        pretrain(trunk)
    world.barrier()
    text = windows("".join(topics.values()).encode())
    training, test = DataLoader(text[400:], batch_size=16, shuffle=True), DataLoader(text[:400], batch_size=50)
    settings = {"method": method, "local_steps": 10, "optimizer": "adamw", "lr": 0.003}
    job = istmpi.Distributed(Lora, {"trunk": trunk, "rank": int(rank)}, example=text[0][None], **settings)
    for round in job.rounds(int(rounds), folder=f"runs/lora-{method}-{rank}", resume="auto"):
        for tokens in round.take(training):
            round.step(round.module(tokens, tokens).loss)
        if round.number % 10 == 0:
            job.evaluate(lambda module, tokens: module(tokens, tokens).loss, test, name="nats", higher_is_better=False)
    job.export(f"runs/lora-{method}-{rank}/network.pt")
