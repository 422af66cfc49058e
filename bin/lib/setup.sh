# shellcheck shell=bash
# Sourced by bin/quickstart and bin/test: a virtual environment with istmpi in it, and an MPI that is proved to work.
#
#   ISTMPI_VENV         where the environment lies            (default: .venv in the project)
#   ISTMPI_PYTHON       the Python to make it with            (default: the first of python3, python3.10 ... that fits)
#   ISTMPI_TORCH_INDEX  the index to take torch from          (default: PyTorch's own one for CPU builds)
#   MPIRUN              the launcher to use                   (default: the first that works, else PyPI's MPICH)

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=${ISTMPI_VENV:-$ROOT/.venv}
PYTHON=$VENV/bin/python
TORCH=2.13.0
TORCH_INDEX=${ISTMPI_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }
die() { say "$*" >&2; exit 1; }

pip_install() {
    "$PYTHON" -m pip install -qq --disable-pip-version-check "$@"
}

# The stamp makes a second start cheap; it changes with anything that would make pip do something else.
fingerprint() {
    { echo "$ROOT"; "$PYTHON" -VV; cat "$ROOT/setup.py" "$ROOT/pyproject.toml" "${BASH_SOURCE[0]}"; } | cksum
}

make_venv() {
    "$PYTHON" -m pip --version >/dev/null 2>&1 && return
    local python candidates=${ISTMPI_PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}
    for python in $candidates ""; do
        [ -n "$python" ] || die "needs Python 3.10 or newer; ${candidates%% *} is $(${candidates%% *} -V 2>&1). Name one: ISTMPI_PYTHON=/path/to/python3"
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && break
    done
    say "making $VENV with $("$python" -V)"
    "$python" -m venv --clear "$VENV" ||
        die "$python cannot make a virtual environment. Debian and Ubuntu: apt install python3-venv; or use conda: environment.yml"
}

# PyPI's torch for Linux brings gigabytes of CUDA along. CPU builds carry a local version, +cpu, that PyPI cannot have:
# ask for that one, first from wherever pip is set up to look, then from PyTorch's index; failing takes a second each.
# --no-deps keeps an index that does not answer from being asked for every dependency.
install_torch() {
    "$PYTHON" -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$TORCH')" 2>/dev/null && return
    if [ -n "${ISTMPI_TORCH_INDEX:-}" ]; then
        pip_install --no-deps --index-url "$TORCH_INDEX" "torch==$TORCH"
    elif [ "$(uname -s)" != Linux ]; then
        pip_install --no-deps "torch==$TORCH" # has no CUDA there
    elif ! pip_install --no-deps "torch==$TORCH+cpu" 2>/dev/null &&
        ! pip_install --no-deps --retries 1 --timeout 10 --extra-index-url "$TORCH_INDEX" "torch==$TORCH+cpu" 2>/dev/null; then
        say "$TORCH_INDEX has no CPU build of torch $TORCH or cannot be reached; taking PyPI's, which may bring CUDA (gigabytes)"
        pip_install --no-deps "torch==$TORCH"
    fi
}

# prepare EXTRAS: an environment with istmpi[EXTRAS], installed only when something changed.
prepare() {
    make_venv
    local now
    now=$(fingerprint)
    # What bin/test installs, test,export,plots,data, ends with what bin/quickstart needs and serves it too.
    if ! grep -qsxF "$now" "$VENV"/.istmpi-*"$1"; then
        say "installing torch $TORCH, mpi4py, h5py and istmpi[$1] into $VENV (some 300 MB the first time)"
        install_torch
        pip_install --editable "${ROOT}[$1]"
        echo "$now" >"$VENV/.istmpi-$1"
    fi
    PATH=$VENV/bin:$PATH
}

# works LAUNCHER: two processes that it starts see each other through the environment's mpi4py, and one also runs alone.
# A launcher of one MPI with the library of another gives two worlds of size 1 instead, and no error.
works() {
    [ -x "$1" ] || return
    case $("$1" --version 2>/dev/null) in
        *"Open MPI"* | *"open-mpi"*)
            # It refuses root, and more ranks than cores, unless told: OMPI_ is read by version 4, PRTE_ by version 5.
            if [ "$(id -u)" = 0 ]; then
                export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
                export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
            fi
            export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
            ;;
    esac
    local limit=env
    command -v timeout >/dev/null && limit="timeout 60"
    # shellcheck disable=SC2086 # two words
    MPI_LIBRARY=$($limit "$1" -n 2 "$PYTHON" -c '
from mpi4py import MPI
assert MPI.COMM_WORLD.allreduce(1) == 2
if MPI.COMM_WORLD.rank == 0:
    print(" ".join(MPI.Get_library_version().strip("\0").splitlines()[0].split(",")[0].split()))' 2>/dev/null </dev/null) &&
        $limit "$PYTHON" -c 'from mpi4py import MPI' 2>/dev/null </dev/null
}

# find_mpi: sets MPIRUN to a launcher that works and says which. The machine's own MPI knows the machine's network, so it
# comes before ours; an MPI in the environment comes before both, for mpi4py loads its library from there first.
find_mpi() {
    local system
    system=$(PATH=${PATH//"$VENV/bin:"/} command -v mpirun || true)
    if [ -n "${MPIRUN:-}" ]; then
        MPIRUN=$(command -v "$MPIRUN" || echo "$MPIRUN")
        works "$MPIRUN" || die "MPIRUN=$MPIRUN and mpi4py do not work together: its ranks do not see each other. Unset MPIRUN to use another MPI"
    elif works "$VENV/bin/mpirun"; then
        MPIRUN=$VENV/bin/mpirun
    elif works "$system"; then
        MPIRUN=$system
    else
        say "${system:-no MPI found}${system:+ and mpi4py do not work together}; installing PyPI's MPICH into $VENV"
        pip_install --editable "${ROOT}[mpich]"
        MPIRUN=$VENV/bin/mpirun
        works "$MPIRUN" || die "$MPIRUN does not work either. Load or install an MPI, or use conda: environment.yml"
    fi
    say "MPI: $MPI_LIBRARY, started by $MPIRUN"
}
