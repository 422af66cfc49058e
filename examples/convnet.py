"""A convolutional network in plain PyTorch, which does not import istmpi.

    istmpi model examples/convnet.py:ConvNet                      # which widths can be dealt out, and what P ranks hold
    mpirun -n 4 istmpi train --model examples/convnet.py:ConvNet  # 8x8 digits, which come with istmpi
    mpirun -n 4 istmpi train --model examples/convnet.py:ConvNet --set model.channels=[64,128] --hidden 256

The integer arguments of the constructor are its widths: here ``channels1``, ``channels2`` and ``hidden``. Each rank
trains this class with smaller widths. istmpi fills in ``shape`` and ``outputs`` from the data.
"""

from torch import nn
from torch.nn import functional


class ConvNet(nn.Module):
    """Two convolutions, each normalised over the batch and halved by pooling, and two dense layers."""

    def __init__(self, shape, outputs, channels=(32, 64), hidden=128, dropout=0.1):
        super().__init__()
        depth, height, width = shape
        # A bias before a batch normalisation would have no effect.
        self.first = nn.Conv2d(depth, channels[0], 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels[0])
        self.second = nn.Conv2d(channels[0], channels[1], 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels[1])
        self.dense = nn.Linear(channels[1] * (height // 4) * (width // 4), hidden)
        self.dropout = nn.Dropout(dropout)
        self.outputs = nn.Linear(hidden, outputs)

    def forward(self, x):
        """Logits ``[examples, outputs]`` for images ``[examples, depth, height, width]``."""
        x = functional.max_pool2d(functional.relu(self.first_norm(self.first(x))), 2)
        x = functional.max_pool2d(functional.relu(self.second_norm(self.second(x))), 2)
        x = self.dropout(functional.relu(self.dense(x.flatten(1))))
        return self.outputs(x)
