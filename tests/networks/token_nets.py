"""Networks of tokens, as users write them: they know nothing of istmpi."""

import torch
from torch import nn
from torch.nn import functional


class Gpt(nn.Module):
    """A decoder of one block, whose logits are made by the table of its tokens."""

    def __init__(self, shape, outputs, embed=6, heads=8, hidden=12):
        super().__init__()
        self.heads = heads
        self.tokens, self.places = nn.Embedding(outputs, embed), nn.Embedding(shape[0], embed)
        self.norm, self.qkv = nn.LayerNorm(embed), nn.Linear(embed, 6 * heads)
        self.out, self.up, self.down = nn.Linear(2 * heads, embed), nn.Linear(embed, hidden), nn.Linear(hidden, embed)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, 2)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.down(functional.gelu(self.up(self.norm(x))))
        return functional.linear(self.norm(x), self.tokens.weight)
