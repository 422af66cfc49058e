"""The port of tagger_before.py to istmpi: 19 of its lines are new, 36 are gone; all ranks train it.

mpirun -n 4 python examples/tagger.py
"""

import sys
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import istmpi

TOKENS, LONGEST = 24, 16
EPOCHS, BATCH, ACCUMULATE = 5, 16, 2
RATE, DECAY, WARM_UP = 5e-3, 0.05, 20
METHOD = (*sys.argv[1:], "ist")[0]


class Texts(Dataset):
    """Texts of several lengths; token 0 is padding."""

    def __init__(self, texts, seed):
        random = torch.Generator().manual_seed(seed)
        lengths = torch.randint(4, LONGEST + 1, (texts,), generator=random)
        self.texts = [torch.randint(1, TOKENS, (length,), generator=random) for length in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, number):
        ids = self.texts[number]
        repeated = (ids[:, None] == ids).tril(-1).any(dim=1).long()
        return ids, repeated, int((ids < TOKENS // 2).float().mean() > 0.5)


def collate(items):
    ids, tags, labels = zip(*items)
    ids = pad_sequence(ids, batch_first=True)
    tags = pad_sequence(tags, batch_first=True, padding_value=-100)
    return {"ids": ids, "mask": ids > 0, "tags": tags, "labels": torch.tensor(labels)}


class Block(nn.Module):
    def __init__(self, embed, heads, hidden):
        super().__init__()
        self.heads, self.size = heads, 8
        self.first, self.second = nn.LayerNorm(embed), nn.LayerNorm(embed)
        self.query, self.key = nn.Linear(embed, heads * 8), nn.Linear(embed, heads * 8)
        self.value, self.join = nn.Linear(embed, heads * 8), nn.Linear(heads * 8, embed)
        self.up, self.down = nn.Linear(embed, hidden), nn.Linear(hidden, embed)

    def forward(self, x, mask):
        y = self.first(x)
        query, key, value = (
            layer(y).unflatten(2, (self.heads, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
        x = x + self.join(seen.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Tagger(nn.Module):
    def __init__(self, tokens, places, embed=32, heads=4, hidden=128):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, embed), nn.Embedding(places, embed)
        self.one, self.two = Block(embed, heads, hidden), Block(embed, heads, hidden)
        self.norm, self.tags, self.labels = nn.LayerNorm(embed), nn.Linear(embed, 2), nn.Linear(embed, 2)

    def forward(self, ids, mask):
        x = self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        x = self.norm(self.two(self.one(x, mask), mask))
        mean = (x * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        return self.tags(x), self.labels(mean)


def compute_loss(outputs, batch):
    tags, labels = outputs
    return functional.cross_entropy(tags.flatten(0, 1), batch["tags"].flatten()) + 0.5 * functional.cross_entropy(
        labels, batch["labels"]
    )


def accuracy(network, batch):
    tags, labels = network(batch["ids"], batch["mask"])
    right = (tags.argmax(dim=2) == batch["tags"])[batch["mask"]].float().mean()
    return (right + (labels.argmax(dim=1) == batch["labels"]).float().mean()) / 2


torch.manual_seed(0)
loader = DataLoader(Texts(1600, seed=1), BATCH, shuffle=True, collate_fn=collate)
test_loader = DataLoader(Texts(400, seed=2), 100, collate_fn=collate)
first = next(iter(test_loader))
sizes = {"tokens": TOKENS, "places": LONGEST}
inputs = (first["ids"], first["mask"])
adamw = partial(torch.optim.AdamW, lr=RATE, weight_decay=DECAY)
how = {"groups": {"*bias": {"weight_decay": 0.0}}, "schedule": "cosine", "warm_up": WARM_UP, "autocast": True}
job = istmpi.Distributed(Tagger, sizes, example=inputs, optimizer=adamw, method=METHOD, local_steps=5, **how)
for round in job.epochs(EPOCHS, loader, accumulate=ACCUMULATE, folder="runs/tagger", resume="auto"):
    for batch in round.take():
        outputs = round.module(batch["ids"], batch["mask"])
        round.step(compute_loss(outputs, batch))
    if round.ends_epoch:
        job.evaluate(accuracy, test_loader, name="accuracy", best="best.pt")
if job.communicator.rank == 0:
    print(f"best accuracy {job.best.score:.3f}")
