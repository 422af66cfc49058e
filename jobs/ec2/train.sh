#!/usr/bin/env bash
# Trains RUN on EC2: makes a cluster, trains, brings the results here and removes the cluster, also when something fails:
#
#   KEY=my-key SSH_FROM=203.0.113.7/32 jobs/ec2/train.sh RUN [options of istmpi train]
#
# The cost is said, and asked about, before anything is started; whatever goes wrong, the instances end by themselves after
# a day, or after UP's --hours. `istmpi job ec2 RUN --instances 8` fills this in.
set -euo pipefail

# ---- the cluster, as options of jobs/ec2/cluster up, and files that the run needs
NAME=istmpi-train
CLUSTER=$(dirname "${BASH_SOURCE[0]}")/cluster
REGION=()
UP=(--preset paper-2)
SEND=()
FOLDER=runs
# ----

UP+=(--ssh-from "${SSH_FROM:?the addresses that may log in, as 203.0.113.7/32}")
[ -z "${KEY:-}" ] || UP+=(--key "$KEY")

finish() {
    local code=$?
    trap - EXIT
    if ! "$CLUSTER" "${REGION[@]}" fetch "$NAME" "$FOLDER"; then
        case $code in
            0 | 75)
                echo "The results are still on $NAME, which costs. Fetch them, then remove it: $CLUSTER down $NAME" >&2
                exit 1
                ;;
        esac
    fi
    "$CLUSTER" "${REGION[@]}" down "$NAME" || exit 1
    exit "$code"
}

"$CLUSTER" "${REGION[@]}" up "$NAME" "${UP[@]}"
trap finish EXIT
"$CLUSTER" "${REGION[@]}" run "$NAME" "${SEND[@]}" -- istmpi train "$@"
