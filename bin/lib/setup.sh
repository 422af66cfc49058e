# shellcheck shell=bash
# Sourced by bin/quickstart and bin/test: a virtual environment with istmpi in it, and an MPI that is proved to work.
#
#   ISTMPI_VENV         where the environment lies            (default: .venv in the project)
#   ISTMPI_PYTHON       the Python to make it with            (default: the first of python3, python3.10 ... that fits)
#   ISTMPI_TORCH        the version of torch to install       (default: the tested one)
#   ISTMPI_TORCH_INDEX  the index to take torch from          (default: PyPI with a GPU, else PyTorch's for CPU builds)
#   MPIRUN              the launcher to use                   (default: the first that works, else PyPI's MPICH)
#   ISTMPI_HDF5_PYTHON  a Python whose h5py has MPI           (default: an environment beside the other, with h5py built)

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=${ISTMPI_VENV:-$ROOT/.venv}
PYTHON=$VENV/bin/python
TORCH=${ISTMPI_TORCH:-2.13.0}
CUDA_SIZE=7000 # megabytes on the disk
TORCH_INDEX=${ISTMPI_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

# A stage prints one line as it begins; below it, on a terminal, stands a line of its progress, which is written over.
[ -t 1 ] && TERMINAL=yes || TERMINAL=
say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }
die() { say "$*" >&2; exit 1; }
size() { du -sm "$@" 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 " MB" }'; }

# pip_install TEXT ARGUMENTS: what pip says of an error comes whole.
pip_install() {
    local stage=$1 log=$VENV/pip.log tmp=$VENV/pip.tmp start=$SECONDS step code=0
    shift
    rm -rf "$tmp" && mkdir -p "$tmp"
    say "$stage"
    TMPDIR=$tmp "$PYTHON" -m pip install --disable-pip-version-check --progress-bar off "$@" >"$log" 2>&1 </dev/null &
    while kill -0 $! 2>/dev/null; do
        if [ -n "$TERMINAL" ]; then
            step=$(sed -n 's/^ *\(Collecting\|Downloading\|Building\|Preparing\|Installing\) /\1 /p' "$log" | tail -n 1)
            step="  $((SECONDS - start)) s, $(size "$VENV"), ${step:-looking for packages}"
            printf '\r\033[K%.*s' "$(($(tput cols 2>/dev/null || echo 80) - 1))" "$step"
            sleep 0.8
        fi
        sleep 0.2
    done
    wait $! || code=$?
    printf '%s' "${TERMINAL:+$'\r\033[K'}"
    [ $code = 0 ] || cat "$log" >&2
    rm -rf "$tmp"
    return $code
}

# A plain path instead of setuptools' finder: to the finder Python prefers a folder istmpi/ in the current one, such as the
# clone itself seen from the folder that holds it.
EDITABLE=(--config-settings editable_mode=compat --editable)

# The stamp makes a second start cheap; it changes with anything that would make pip do something else.
fingerprint() {
    { echo "$ROOT" "$TORCH" "$TORCH_INDEX" "$(gpus)"; "$PYTHON" -VV; cat "$ROOT/setup.py" "$ROOT/pyproject.toml" "${BASH_SOURCE[0]}"; } | cksum
}

gpus() { nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c | awk '{ $1 = $1 " x"; print }' | paste -s -d ,; }

make_venv() {
    "$PYTHON" -m pip --version >/dev/null 2>&1 && return
    local python candidates=(python3 python3.13 python3.12 python3.11 python3.10)
    [ -z "${ISTMPI_PYTHON:-}" ] || candidates=("$ISTMPI_PYTHON")
    for python in "${candidates[@]}" ""; do
        [ -n "$python" ] || die "needs Python 3.10 or newer; ${candidates[0]} is $("${candidates[0]}" -V 2>&1). Name one: ISTMPI_PYTHON=/path/to/python3"
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && break
    done
    say "environment: $VENV, made with $("$python" -V)"
    "$python" -m venv --clear "$VENV" ||
        die "$python cannot make a virtual environment. Debian and Ubuntu: apt install python3-venv; or use conda: environment.yml"
}

# choose_torch: sets TORCH_FROM to what pip is to be asked for, and TORCH_SIZE to megabytes on the disk. PyPI's torch for
# Linux brings gigabytes of CUDA along, which is right where there is a GPU. CPU builds carry a local version, +cpu, that
# PyPI cannot have: they come from wherever pip is set up to look, else from PyTorch's index, whose wheel is asked for by
# its address: as a second index it would be asked for every other package too.
choose_torch() {
    local wheel free
    TORCH_FROM=("torch==$TORCH") TORCH_SIZE=800
    free=$(df -Pm "$VENV" | awk 'NR == 2 { print $4 }')
    if [ -n "${ISTMPI_TORCH_INDEX:-}" ]; then
        TORCH_FROM+=(--extra-index-url "$TORCH_INDEX")
    elif [ -n "$(gpus)" ] && [ "$free" -gt "$CUDA_SIZE" ]; then
        TORCH_SIZE=$CUDA_SIZE
    elif [ "$(uname -s)" != Linux ]; then
        : # PyPI's has no CUDA there
    elif "$PYTHON" -m pip install --dry-run --ignore-installed --no-deps "torch==$TORCH+cpu" >/dev/null 2>&1; then
        TORCH_FROM=("torch==$TORCH+cpu")
    elif wheel=$("$PYTHON" - "$TORCH_INDEX" "$TORCH" <<'END' 2>/dev/null
import platform, re, sys, urllib.parse, urllib.request
index, version = sys.argv[1:]
page = urllib.request.urlopen(index + "/torch/", timeout=10).read().decode()
tag = "cp%d%d" % sys.version_info[:2]
links = re.findall('href="([^"#]+)', page)
print(next(urllib.parse.urljoin(index, link) for link in links
           if f"/torch-{version}%2Bcpu-{tag}-{tag}-" in link and link.endswith(f"linux_2_28_{platform.machine()}.whl")))
END
    ); then
        TORCH_FROM=("torch @ $wheel")
    else
        say "torch: $TORCH_INDEX has no CPU build of $TORCH or cannot be reached; PyPI's may bring CUDA (gigabytes)"
        TORCH_SIZE=$CUDA_SIZE
    fi
    [ "$free" -gt "$CUDA_SIZE" ] || CUDA_LACKS="its PyTorch needs $CUDA_SIZE MB in $VENV, where $free are free"
}

# prepare EXTRAS: an environment with istmpi[EXTRAS], and an MPI where no other works, installed by one run of pip and only
# when something changed.
prepare() {
    make_venv
    local now extras=$1
    now=$(fingerprint)
    # What bin/test installs, docs,test,export,ec2,graph,tables,plots,data, ends with what bin/quickstart needs and serves it too.
    if ! grep -qsxF "$now" "$VENV"/.istmpi-*"$1"; then
        choose_torch
        [ -n "${MPIRUN:-}" ] || find_launcher libmpi || extras=mpich,$1
        pip_install "packages: torch $TORCH, mpi4py, h5py and istmpi[$extras] into $VENV (some $((TORCH_SIZE + 400)) MB there)" \
            "${TORCH_FROM[@]}" "${EDITABLE[@]}" "${ROOT}[$extras]"
        echo "$now" >"$VENV/.istmpi-$1"
    fi
    PATH=$VENV/bin:$PATH
}

# works LAUNCHER [libmpi]: two processes that it starts see each other through the environment's mpi4py, and one also runs
# alone; or, before mpi4py is there, through the library that it would load. A launcher of one MPI with the library of
# another gives two worlds of size 1 instead, and no error.
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
    if [ "${2:-}" = libmpi ]; then
        $limit "$1" -n 2 "$PYTHON" -c "$TWO_SEE_EACH_OTHER" >/dev/null 2>&1 </dev/null
        return
    fi
    # shellcheck disable=SC2086 # two words
    MPI_LIBRARY=$($limit "$1" -n 2 "$PYTHON" -c '
from mpi4py import MPI
assert MPI.COMM_WORLD.allreduce(1) == 2
if MPI.COMM_WORLD.rank == 0:
    print(" ".join(MPI.Get_library_version().strip("\0").splitlines()[0].split(",")[0].split()))' 2>/dev/null </dev/null) &&
        [ -n "$MPI_LIBRARY" ] && $limit "$PYTHON" -c 'from mpi4py import MPI' 2>/dev/null </dev/null
}

# Looks where mpi4py's wheel does: in the environment, then where the loader looks.
TWO_SEE_EACH_OTHER='
import ctypes, sys
for name in [place + name for place in (sys.prefix + "/lib/", "") for name in ("libmpi.so", "libmpi.so.12", "libmpi.so.40", "libmpi.dylib")]:
    try:
        mpi = ctypes.CDLL(name)
        break
    except OSError:
        pass
mpi.MPI_Init(None, None)
try:
    world = ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world"))
except ValueError:
    world = 0x44000000
size = ctypes.c_int()
mpi.MPI_Comm_size(world, ctypes.byref(size))
mpi.MPI_Finalize()
sys.exit(size.value != 2)'

# find_launcher [libmpi]: sets LAUNCHER to one that works. The machine's own MPI knows the machine's network, so it comes
# before ours; an MPI in the environment comes before both, for mpi4py loads its library from there first.
find_launcher() {
    for LAUNCHER in "$VENV/bin/mpirun" "$(PATH=${PATH//"$VENV/bin:"/} command -v mpirun)"; do
        works "$LAUNCHER" "$@" && return
    done
}

# find_mpi: sets MPIRUN to a launcher that works and says which.
find_mpi() {
    if [ -n "${MPIRUN:-}" ]; then
        MPIRUN=$(command -v "$MPIRUN" || echo "$MPIRUN")
        works "$MPIRUN" || die "MPIRUN=$MPIRUN and mpi4py do not work together: its ranks do not see each other. Unset MPIRUN to use another MPI"
    elif find_launcher; then
        MPIRUN=$LAUNCHER
    else
        pip_install "MPI: ${LAUNCHER:-none}${LAUNCHER:+ and mpi4py do not work together}; PyPI's MPICH into $VENV" 'mpich>=4.2'
        MPIRUN=$VENV/bin/mpirun
        works "$MPIRUN" || die "$MPIRUN does not work either. Load or install an MPI, or use conda: environment.yml"
    fi
    say "MPI: $MPI_LIBRARY, started by $MPIRUN"
}

# find_launcher_of_one_host: sets ONE_HOST to the launcher beside MPIRUN for ranks of this host alone. MPICH's mpirun listens
# on the network for its proxies on other hosts; its gforker starts processes and listens to nobody.
# shellcheck disable=SC2034 # ONE_HOST is for the caller
find_launcher_of_one_host() {
    local alone
    alone=$(dirname "$MPIRUN")/mpiexec.gforker
    ONE_HOST=$MPIRUN
    case $("$MPIRUN" --version 2>/dev/null) in
        *HYDRA*) if works "$alone"; then ONE_HOST=$alone; fi ;;
    esac
}

# find_gpu: says which GPUs PyTorch uses, or why it uses none.
find_gpu() {
    local gpu reason
    gpu=$(gpus) || true
    if [ -z "$gpu" ]; then
        say "GPU: none, nvidia-smi names none here; the CPU is used$([ ! -e /dev/kfd ] || echo ". AMD: ISTMPI_TORCH_INDEX=(PyTorch's index for ROCm)")"
    elif reason=$("$PYTHON" -c 'import torch; torch.cuda.init()' 2>&1); then
        say "GPU: $gpu"
    else
        say "GPU: $gpu, not used: ${CUDA_LACKS:-$(tail -n 1 <<<"$reason"). For another torch remove $VENV and start again}; the CPU is used"
    fi
}

# find_hdf5_packages: whether HDF5 with MPI and its tools are there; where not, returns 1 and sets HDF5_LACKS to the reason.
# Debian's are installed where that is allowed.
# shellcheck disable=SC2034 # HDF5_LACKS is for the caller
find_hdf5_packages() {
    local packages="libhdf5-openmpi-dev libopenmpi-dev openmpi-bin hdf5-tools"
    if command -v mpicc.openmpi >/dev/null && command -v h5diff >/dev/null && pkg-config --exists hdf5-openmpi; then return; fi
    HDF5_LACKS="needs Debian's packages $packages and root to install them, or ISTMPI_HDF5_PYTHON"
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    say "installing $packages"
    # shellcheck disable=SC2086 # several words
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y pkg-config $packages; } >/dev/null 2>&1
}

# find_parallel_hdf5: sets HDF5_PYTHON to a Python whose h5py was built with MPI, and HDF5_MPIRUN to its launcher; where
# there can be none, returns 1 and sets HDF5_LACKS to the reason.
# shellcheck disable=SC2034 # HDF5_LACKS is for the caller
find_parallel_hdf5() {
    local wheels
    HDF5_MPIRUN=mpirun.openmpi HDF5_PYTHON=${ISTMPI_HDF5_PYTHON:-$VENV-hdf5/bin/python}
    if [ -n "${ISTMPI_HDF5_PYTHON:-}" ]; then
        HDF5_MPIRUN=$(dirname "$HDF5_PYTHON")/mpirun
        [ -x "$HDF5_MPIRUN" ] || HDF5_MPIRUN=mpirun
    else
        find_hdf5_packages || return 1
    fi
    HDF5_LACKS="h5py could not be built with MPI in $VENV-hdf5"
    if [ -z "${ISTMPI_HDF5_PYTHON:-}" ] && ! "$HDF5_PYTHON" -c 'import h5py, sys; sys.exit(not h5py.get_config().mpi)' 2>/dev/null; then
        # Everything but h5py and mpi4py is taken from the first environment. Without build isolation: with it, pip would
        # compile mpi4py too, for which tens of GB of memory are not enough.
        "$PYTHON" -m venv --clear "$VENV-hdf5" || return 1
        "$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$("$HDF5_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/first.pth"
        wheels=${XDG_CACHE_HOME:-$HOME/.cache}/istmpi/h5py-mpi-$("$HDF5_PYTHON" -c 'import h5py, sys; print(h5py.__version__, *sys.version_info[:2], sep="-")')-hdf5-$(pkg-config --modversion hdf5-openmpi)
        local h5py install=("$HDF5_PYTHON" -m pip)
        h5py=h5py==$("$PYTHON" -c 'import h5py; print(h5py.__version__)')
        "${install[@]}" install -qq --disable-pip-version-check --ignore-installed cython pkgconfig 'setuptools>=77' wheel mpi4py || return 1
        if ! ls "$wheels"/h5py-*.whl >/dev/null 2>&1; then
            say "building $h5py with MPI (two minutes the first time)"
            CC=mpicc.openmpi HDF5_MPI=ON "${install[@]}" wheel -qq --disable-pip-version-check --no-deps --no-build-isolation \
                --no-cache-dir --no-binary=h5py --wheel-dir "$wheels" "$h5py" || return 1
        fi
        "${install[@]}" install -qq --disable-pip-version-check --no-deps --ignore-installed "$wheels"/h5py-*.whl || return 1
        "${install[@]}" install -qq --disable-pip-version-check --no-deps --no-build-isolation "${EDITABLE[@]}" "$ROOT" || return 1
    fi
    HDF5_LACKS="$HDF5_MPIRUN and $HDF5_PYTHON do not work together"
    HDF5_MPIRUN=$(command -v "$HDF5_MPIRUN") && PYTHON=$HDF5_PYTHON works "$HDF5_MPIRUN"
}

# find_slurm: whether a SLURM can be started here; where not, returns 1 and sets SLURM_LACKS to the reason. Debian's is
# installed where that is allowed. Its own services are kept from starting: the tests start theirs.
# shellcheck disable=SC2034 # SLURM_LACKS is for the caller
find_slurm() {
    PATH=$PATH:/usr/sbin
    SLURM_LACKS="only root can start a SLURM with several nodes on one host"
    [ "$(id -u)" = 0 ] || return 1
    command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null && return
    SLURM_LACKS="needs Debian's package slurm-wlm, which cannot be installed here"
    command -v apt-get >/dev/null || return 1
    say "installing slurm-wlm"
    apt-get update >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y --no-install-recommends slurm-wlm >/dev/null 2>&1 || return 1
    command -v slurmctld >/dev/null && command -v slurmd >/dev/null
}
