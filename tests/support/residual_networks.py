"""Networks with lists of blocks: some residual, some not."""

import torch
from torch import nn
from torch.nn import functional


class PostActivated(nn.Module):
    """He et al. 2015: a batch normalisation ends each block, and the sum is activated."""

    def __init__(self, shape, outputs, channels=4, blocks=3):
        super().__init__()
        self.stem = nn.Conv2d(shape[0], channels, 3, padding=1)
        self.layers = nn.ModuleList(PostActivatedBlock(channels) for _ in range(blocks))
        self.last = nn.Linear(channels, outputs)

    def forward(self, x):
        x = functional.relu(self.stem(x))
        for layer in self.layers:
            x = layer(x)
        return self.last(x.mean(dim=(2, 3)))


class PostActivatedBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.one, self.other = (nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x):
        return functional.relu(x + self.other(self.second(functional.relu(self.one(self.first(x))))))


class Mixed(nn.Module):
    """A list of which every other module is residual; ``plain`` ones are not, and the last two share their weights."""

    def __init__(self, features, outputs, pairs=2, width=6):
        super().__init__()
        modules = []
        for _ in range(pairs):
            modules += [Adding(features, width), nn.Linear(features, features)]
        self.first = nn.Linear(features, features)
        self.layers = nn.Sequential(*modules)
        self.last = nn.Linear(features, outputs)

    def forward(self, x):
        return self.last(self.layers(self.first(x)))


class Adding(nn.Module):
    """Two sums, one after the other, with a bias in the ends."""

    def __init__(self, features, width):
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(features), nn.LayerNorm(features)
        self.up, self.down = nn.Linear(features, width), nn.Linear(width, features)
        self.mixing = nn.Linear(features, features)

    def forward(self, x):
        x = x + self.mixing(self.norm(x))
        return x + self.down(torch.relu(self.up(self.other_norm(x))))


class Stack(nn.Module):
    """Blocks one of which, ``blocks`` of them in a list, has its weights outside, too."""

    def __init__(self, features, outputs, blocks=3, width=5):
        super().__init__()
        self.blocks = nn.ModuleList(Adding(features, width) for _ in range(blocks))
        self.last = nn.Linear(features, outputs)
        self.again = self.blocks[0].mixing

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(self.again(x))


class Flat(Stack):
    """Several integers count the blocks of one list."""

    def __init__(self, features, outputs, layers=(1, 3)):
        super().__init__(features, outputs, sum(layers))


class OwnProducts(nn.Module):
    """Blocks that multiply in a layer of their own, inputs first, as GPT-2 of transformers does."""

    def __init__(self, features, outputs, blocks=3, width=5):
        super().__init__()
        self.blocks = nn.ModuleList(AddingOwn(features, width) for _ in range(blocks))
        self.last = nn.Linear(features, outputs)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class AddingOwn(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.up, self.down = Product(features, width), Product(width, features)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Product(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Chain(nn.Module):
    """A list of layers that add nothing to their input."""

    def __init__(self, features, outputs, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(features, features) for _ in range(depth))
        self.last = nn.Linear(features, outputs)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x)


class Encoder(nn.Module):
    """Layers of PyTorch's own that are normalised first; attention reads the weights of its last layer."""

    def __init__(self, shape, outputs, blocks=3):
        super().__init__()
        layer = nn.TransformerEncoderLayer(shape[-1], 2, 7, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.last = nn.Linear(shape[-1], outputs)

    def forward(self, x):
        return self.last(self.layers(x).mean(1))
