"""How much memory tensors take while a piece of code runs."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """The most bytes that tensors have had at a time which were made since it was entered, as operations see them."""

    def __init__(self, known):
        super().__init__()
        self._known = {self._key(tensor) for tensor in known}
        self._alive = {}
        self.peak = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    @staticmethod
    def _has_storage(tensor):
        return not tensor.is_meta and tensor.layout == torch.strided

    @staticmethod
    def _key(tensor):
        return tensor.untyped_storage()._cdata

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves((args, kwargs, outputs)):
            if isinstance(tensor, torch.Tensor) and self._has_storage(tensor) and self._key(tensor) not in self._known:
                storage = tensor.untyped_storage()
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self._alive.values()))
        return outputs
