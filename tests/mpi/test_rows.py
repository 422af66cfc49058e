"""Further settings of the papers' rows: --dry-run shows the bytes that are counted, and a stopped run goes on."""

import json
from pathlib import Path

import pytest
from replaying import run_of
from resuming import save, stop_after, stored
from small import assert_same_bits, on_root, trained

from istmpi.cli.plan import show
from istmpi.comm.ledger import EVALUATION, SAVING
from istmpi.training.run import run_training
from tests.networks import dense_nets

LARS = Path(__file__).parents[2] / "examples" / "lars.py"
FEDAVG = {"method__name": "fedavg", "method__epochs": 1, "method__fraction": 0.5, "train__batch": 64}
ROWS = {
    "holders": {"method__holders": 2},
    "staleness": {"method__name": "downpour", "method__staleness": 2},
    "label shards": {"data__placement": "label-shards", **FEDAVG},
    "top-k and energy": {"evaluate__top_k": [2], "train__watts": 5.0},
    "exits": {"model__name": f"{dense_nets.__file__}:TwoExits"},
    "finish": {"method__name": "data-parallel", "method__finish": "local-sgd:50%"},
    "wider network": {"train__init": "narrow.h5", "train__widen": True},
    "own optimizer": {"optimizer__name": f"{LARS}:Lars", "method__optimizer_state": "carry"},
}
SETTINGS = {"train__rounds": 4, "method__local_steps": 3, "evaluate__every": 2, "checkpoint__every": 2}


@pytest.mark.ranks(only=[4])
@pytest.mark.parametrize("row", ROWS)
def test_the_bytes_of_a_dry_run_are_counted_and_a_stopped_run_goes_on(comm, shared_tmp, capsys, row):
    run = comm.broadcast_from_root(run_of(SETTINGS | ROWS[row], comm.size, shared_tmp) if comm.rank == 0 else None)
    if run.train.widen:
        narrow = save(trained(comm, model__hidden=(6, 5), train__rounds=1)[0], shared_tmp / "narrow.h5")
        run = run.override({"train.init": str(narrow)})
    folder = shared_tmp / "run"
    run = run.override({"output.folder": str(folder)})
    before = {purpose: comm.ledger.sent[purpose].bytes for purpose in (EVALUATION, SAVING)}
    last = run_training(run, comm).last
    sent = {purpose: sum(comm.allgather(comm.ledger.sent[purpose].bytes - before[purpose])) for purpose in before}
    if comm.rank == 0:
        capsys.readouterr()
        show(run, comm.size, as_json=True)
        planned = json.loads(capsys.readouterr().out)
        assert planned["sent_bytes"] == last.bytes
        # The plan counts no evaluations of a run whose methods differ.
        counted = None if run.method.finish else sent[EVALUATION]
        assert planned["evaluations"]["sent"] == counted
        assert planned["saving"]["sent"] in (sent[SAVING], None)
    expected = stored(folder / "network.h5")
    on_root(comm, lambda: stop_after(folder, 2))
    run_training(run, comm, resume="auto")
    assert_same_bits(stored(folder / "network.h5"), expected)
