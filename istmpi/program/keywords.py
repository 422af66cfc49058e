"""The settings that `istmpi.Distributed` takes as keyword arguments, for type checkers and editors.

Made from the sections of a run by `tools/keywords`; do not edit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict


class Keywords(TypedDict, total=False):
    """Settings of a run, such as ``local_steps``.

    ``method_local_steps`` is the same setting with its section.
    """

    autocast: bool
    best: bool
    betas: Sequence[float] | None
    burn_in: int
    checkpoint_best: bool
    checkpoint_every: int
    checkpoint_keep: int
    checkpoint_max_failures: int
    checkpoint_wait: bool
    checkpoint_writer: Literal["auto", "mpio", "direct", "root", "parts"]
    clip: float | None
    comm_exchange: Literal["auto", "alltoallv", "pieces"]
    comm_patience: float
    decay: float
    delay: int | None
    device: Literal["auto", "cpu", "cuda"]
    dtype: Literal["float32", "float64"]
    eps: float | None
    exchange: Literal["auto", "alltoallv", "pieces"]
    feedback: float
    finish: str
    fraction: float
    fragments: int | None
    group_size: int
    holders: int
    init: str | Callable[[], Any]
    init_names: Mapping[str, Any] | None
    keep: int
    least_lr: float
    local_steps: int
    lr: float
    max_failures: int
    max_minutes: float
    method_burn_in: int
    method_delay: int | None
    method_epochs: int
    method_feedback: float
    method_finish: str
    method_fraction: float
    method_fragments: int | None
    method_holders: int
    method_local_steps: int
    method_mix: float
    method_moving_rate: float
    method_optimizer_state: Literal["reset", "keep", "carry"] | None
    method_order: Literal["together", "round-robin"]
    method_outer_lr: float | None
    method_outer_momentum: float | None
    method_partition: Sequence[str] | None
    method_passes: int
    method_penalty: float
    method_redeal: float
    method_share_every: int
    method_shared_wire: Literal["top-k"] | None
    method_shares: Sequence[float] | str | None
    method_sigma: float | None
    method_staleness: int
    method_threshold: float
    method_top: int
    method_wire: Literal["float32", "bfloat16", "int8"]
    milestones: Sequence[float]
    mix: float
    model_dtype: Literal["float32", "float64"]
    model_init: Literal["fan-in", "constructor"]
    model_scale: Literal["share", "fitted", "none"]
    momentum: float
    moving_rate: float
    optimizer_arguments: Mapping[str, Any] | None
    optimizer_betas: Sequence[float] | None
    optimizer_clip: float | None
    optimizer_decay: float
    optimizer_eps: float | None
    optimizer_least_lr: float
    optimizer_lr: float
    optimizer_milestones: Sequence[float]
    optimizer_momentum: float
    optimizer_schedule: Literal[
        "constant", "cosine", "linear", "step", "warm-up-stable-decay", "one-cycle"
    ]
    optimizer_state: Literal["reset", "keep", "carry"] | None
    optimizer_warm_up: int
    optimizer_weight_decay: float
    order: Literal["together", "round-robin"]
    outer_lr: float | None
    outer_momentum: float | None
    partition: Sequence[str] | None
    passes: int
    penalty: float
    redeal: float
    scale: Literal["share", "fitted", "none"]
    seed: int
    share_every: int
    shared_wire: Literal["top-k"] | None
    shares: Sequence[float] | str | None
    sigma: float | None
    staleness: int
    sync_batch_norm: bool
    threads: int
    threshold: float
    top: int
    train_autocast: bool
    train_device: Literal["auto", "cpu", "cuda"]
    train_group_size: int
    train_init: str | Callable[[], Any]
    train_init_names: Mapping[str, Any] | None
    train_max_minutes: float
    train_seed: int
    train_sync_batch_norm: bool
    train_threads: int
    train_widen: bool
    wait: bool
    warm_up: int
    weight_decay: float
    widen: bool
    wire: Literal["float32", "bfloat16", "int8"]
    writer: Literal["auto", "mpio", "direct", "root", "parts"]
