#!/usr/bin/env bash
# Trains RUN on EC2: makes a cluster, trains, fetches the results and removes the cluster, also after a failure:
#
#   KEY=my-key SSH_FROM=203.0.113.7/32 jobs/ec2/train.sh RUN [options of istmpi train]
#
# The script prints the cost and asks before it starts anything. After any failure the instances terminate themselves after
# a day, or after the --hours of UP. `istmpi job ec2 RUN --instances 8` fills in this script.
set -euo pipefail

# ---- the options of jobs/ec2/cluster up, and the files that the run needs
NAME=istmpi-train
CLUSTER=$(dirname "${BASH_SOURCE[0]}")/cluster
REGION=()
UP=(--preset paper-2)
SEND=()
EACH=()
FOLDER=runs
# ----

UP+=(--ssh-from "${SSH_FROM:?is not set. Set it to the addresses that may log in, such as 203.0.113.7/32}")
[ -z "${KEY:-}" ] || UP+=(--key "$KEY")

finish() {
    local code=$?
    trap - EXIT
    if ! "$CLUSTER" "${REGION[@]}" fetch "$NAME" "$FOLDER"; then
        case $code in
            0 | 75)
                echo "The results are still on $NAME, which costs money. Fetch them, then remove the cluster: $CLUSTER down $NAME" >&2
                exit 1
                ;;
        esac
    fi
    "$CLUSTER" "${REGION[@]}" down "$NAME" || exit 1
    exit "$code"
}

"$CLUSTER" "${REGION[@]}" up "$NAME" "${UP[@]}"
trap finish EXIT
"$CLUSTER" "${REGION[@]}" run "$NAME" "${SEND[@]}" -- "${EACH[@]}" istmpi train "$@"
