"""Stand-ins for GPUs, which the project's checks do not have: what is called there."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from istmpi.comm import host_copies
from istmpi.engine.replica_group import ReplicaGroup


class OnGpu:
    """A stand-in for a tensor on a GPU, which notes what is called, and on which stream."""

    device = torch.device("cuda", 0)
    notes: list = []

    def __init__(self, values):
        self.values = values

    def detach(self):
        return self

    @classmethod
    def __torch_function__(cls, function, types, args, kwargs):
        cls.notes.append((function.__name__, {**kwargs}))
        kwargs.pop("pin_memory", None)
        return function(*(item.values if isinstance(item, cls) else item for item in args), **kwargs)

    def copy_(self, source, **options):
        self.notes.append(("copy_", options))
        self.values.copy_(source)


def test_values_pass_between_a_gpu_and_page_locked_memory_on_a_stream_of_their_own(monkeypatch):
    class Stream:
        def __getattr__(self, name):
            return lambda *others: OnGpu.notes.append(name)

    monkeypatch.setattr(host_copies, "_make_stream", lambda gpu: Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda gpu: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    here = torch.ones(2)
    weights = {"here": here, "there": OnGpu(torch.arange(3.0))}
    staged = host_copies.on_host(weights)
    assert staged["here"] is here and staged["there"].tolist() == [0, 1, 2]
    host_copies.copy_from_host({"here": here, "there": staged["there"] + 1}, weights)
    assert weights["there"].values.tolist() == [1, 2, 3]
    copied = ["wait_stream", ("copy_", {"non_blocking": True}), "synchronize"]
    assert OnGpu.notes == [("empty_like", {"device": "cpu", "pin_memory": True}), *copied, *copied]


@pytest.mark.parametrize("other, backend", [("GPU-2", "nccl"), ("GPU-1", "gloo"), ("", "gloo")])
def test_members_use_nccl_if_each_has_a_gpu_of_its_own(tmp_path, monkeypatch, other, backend):
    gpu = torch.device("cuda", 0)
    inside = SimpleNamespace(rank=0, size=2, allgather=lambda value: [value, other])
    calls = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="GPU-1"))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *words, **named: calls.append((words, named)))
    monkeypatch.setattr(ReplicaGroup, "_is_open", False)
    monkeypatch.setattr(ReplicaGroup, "wrap", lambda group, network, may_skip: network)
    monkeypatch.setattr(torch.nn.Module, "to", lambda network, device: network)
    ReplicaGroup(SimpleNamespace(inside=inside, leads=True), gpu, tmp_path / "members")
    ((words, named),) = calls
    assert (words, named["device_id"]) == ((backend,), gpu if backend == "nccl" else None)
    assert (named["rank"], named["world_size"]) == (0, 2)
