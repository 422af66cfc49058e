"""Exchanges in pieces against MPI_Alltoallv itself."""

import numpy as np
import pytest
from mpi4py import MPI

from istmpi.comm import exchange

pytestmark = pytest.mark.real


@pytest.mark.ranks(also=5)
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_every_message_arrives_as_alltoallv_brings_it_and_nothing_else_is_touched(comm, piece, monkeypatch):
    monkeypatch.setattr(exchange, "PIECE_BYTES", piece)
    monkeypatch.setattr(comm, "in_pieces", True)
    draw = np.random.default_rng(5)
    for most in (0, 1, 40):
        counts = draw.integers(0, most + 1, (comm.size, comm.size)) * (draw.random((comm.size, comm.size)) < 0.7)
        sent, received = counts[comm.rank].tolist(), counts[:, comm.rank].tolist()
        starts = [[64 * peer for peer in range(comm.size)] for _ in range(2)]
        buffer = np.random.default_rng(comm.rank).integers(0, 256, 64 * comm.size, dtype=np.uint8)
        mine, theirs = (np.full(64 * comm.size, 0xAB, dtype=np.uint8) for _ in range(2))
        before = comm.traffic.bytes
        for _ in range(3):  # one right behind the other
            comm.alltoallv((buffer, sent, starts[0]), (mine, received, starts[1]))
        assert comm.traffic.bytes - before == 3 * (sum(sent) - sent[comm.rank])
        comm.mpi.Alltoallv([buffer, sent, starts[0], MPI.BYTE], [theirs, received, starts[1], MPI.BYTE])
        assert np.array_equal(mine, theirs)
