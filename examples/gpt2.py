"""A small GPT-2 of `transformers`, unchanged, for text. Its whole layers are dealt out.

    istmpi model examples/gpt2.py:GPT2 --shape 64 --outputs 256 --tokens
    mpirun -n 4 istmpi train --data text.h5 --model examples/gpt2.py:GPT2

Its heads cannot be dealt out: the size of a head is ``n_embd`` / ``n_head``, so fewer heads are larger. The number of
feed-forward units, four times ``n_embd``, is not an argument here.
"""

from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


class GPT2(nn.Module):
    """``n_layer`` counts the blocks that can be dealt out."""

    DEALT = ("n_layer",)

    def __init__(self, shape, outputs, n_layer=8, n_head=4, n_embd=128):
        super().__init__()
        tokens = {"vocab_size": outputs, "n_positions": shape[0], "bos_token_id": None, "eos_token_id": None}
        self.gpt2 = GPT2LMHeadModel(
            GPT2Config(**tokens, n_layer=n_layer, n_head=n_head, n_embd=n_embd, use_cache=False)
        )

    def forward(self, tokens):
        return self.gpt2(tokens).logits
