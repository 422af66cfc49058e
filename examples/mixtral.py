"""A small Mixtral of `transformers`, unchanged, for text. Its experts are dealt out.

    istmpi model examples/mixtral.py:Mixtral --shape 64 --outputs 256 --tokens
    mpirun -n 4 istmpi train --data text.h5 --model examples/mixtral.py:Mixtral --set optimizer.name=adamw --lr 0.002

A rank has some of each layer's experts, the router's rows for them, and all attention. The weights of its best two
experts add up to 1, so their sum is a mean. The full network takes the mean of its own best two.
"""

from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM


class Mixtral(nn.Module):
    DEALT, SUMS = ("experts",), {"experts": "mean"}

    def __init__(self, shape, outputs, experts=8, intermediate_size=64, layers=2):
        super().__init__()
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "head_dim": 16}
        sizes = {"num_local_experts": experts, "intermediate_size": intermediate_size, "num_hidden_layers": layers}
        tokens = {"vocab_size": outputs, "bos_token_id": None, "eos_token_id": None, "use_cache": False}
        self.mixtral = MixtralForCausalLM(MixtralConfig(**heads, **sizes, **tokens))

    def forward(self, tokens):
        return self.mixtral(tokens).logits
