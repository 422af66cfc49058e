"""A recurrent network for text in plain PyTorch: a table of tokens, layers of LSTM and a product.

    istmpi model examples/lstm_text.py:Lstm --shape 64 --outputs 256 --tokens
    mpirun -n 4 istmpi train --data text.h5 --model examples/lstm_text.py:Lstm --set optimizer.name=adamw --lr 0.002

The state of the LSTM is dealt out, with all four gates of a unit together, and also ``embed`` if ``method.partition``
has it.
"""

from torch import nn


class Lstm(nn.Module):
    """A rank's subnet has a share of the state, and the whole table of tokens."""

    DEALT = ("hidden",)

    def __init__(self, shape, outputs, embed=64, hidden=256, depth=2):
        super().__init__()
        self.tokens, self.cell = nn.Embedding(outputs, embed), nn.LSTM(embed, hidden, depth, batch_first=True)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, tokens):
        return self.last(self.cell(self.tokens(tokens))[0])
