"""A small vision transformer of `timm`, unchanged. Its heads and its feed-forward units are dealt out.

    istmpi model examples/vit.py:ViT
    mpirun -n 4 istmpi train --model examples/vit.py:ViT --set optimizer.name=adam --lr 0.003

It cuts an image of any size into 4 x 4 patches.
"""

from timm.layers import Attention
from timm.models import VisionTransformer


class Attention16(Attention):
    """Heads of 16 numbers. By default, timm divides the width by the number of heads, so fewer heads are larger."""

    def __init__(self, dim, **settings):
        super().__init__(dim, attn_head_dim=16, **settings)


class ViT(VisionTransformer):
    """Arguments can be dealt out. The width of the residual stream is not an argument, so the stream stays whole."""

    def __init__(self, shape, outputs, num_heads=8, mlp_hidden=256, depth=2):
        images = {"img_size": shape[1:], "patch_size": (shape[1] // 4, shape[2] // 4), "in_chans": shape[0]}
        sizes = {"embed_dim": 64, "num_heads": num_heads, "mlp_ratio": mlp_hidden / 64, "depth": depth}
        pooled = {"num_classes": outputs, "global_pool": "avg", "class_token": False}
        super().__init__(attn_layer=Attention16, **images, **sizes, **pooled)
