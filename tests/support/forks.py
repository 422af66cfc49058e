"""Runs programs in processes of their own, each forked from this one, which has imported torch: that import is most of
what a command of istmpi takes.

The standard input has a program a line: its code, ``sys.argv``, environment, and files for its output and errors. The
answer is its exit code.
"""

import gc
import json
import os
import sys

import h5py  # noqa: F401
import torch  # noqa: F401

import istmpi.cli.main
import istmpi.training.run  # noqa: F401

gc.freeze()
for line in sys.stdin:
    request = json.loads(line)
    process = os.fork()
    if not process:
        os.environ |= request["environment"]
        sys.argv = request["words"]
        for stream, path in enumerate([os.devnull, *request["files"]]):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), stream)
        exec(request["program"], {"__name__": "__main__"})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
