#!/usr/bin/env bash
# Several processes of `cwdfm repro` on one GPU, side by side by NVIDIA's MPS, for some seconds:
#
#   benchmarks/share_gpu.sh 4 1500 headline corrector --scale small --out repro --text novels
#
# Small networks leave most of a large GPU idle. Each process takes the first job that is free; what
# is not done by the end is left for the next time. Logs: worker-1.log and so on, beside the jobs.
# What `cwdfm repro` would refuse ends this at once, with its message and its exit code.
set -euo pipefail
if (($# < 3)) || ! [[ $1 =~ ^[0-9]+$ && $2 =~ ^[0-9]+$ ]]; then
    echo "usage: $0 WORKERS SECONDS NAME ... --out DIR [options of cwdfm repro]" >&2
    exit 2
fi
workers=$1 seconds=$2
shift 2
out=.
for ((i = 1; i <= $#; i++)); do
    [[ ${!i} == --out ]] && next=$((i + 1)) && out=${!next}
done
python -m cwdfm repro "$@" --dry-run
mkdir -p "$out"
CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d)
CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
nvidia-cuda-mps-control -d
trap 'nvidia-cuda-mps-control <<< quit || true' EXIT
begun=()
for ((i = 1; i <= workers; i++)); do
    timeout "$seconds" python -m cwdfm repro "$@" --wait 3 --limit $((seconds * 9 / 10)) \
        > "$out/worker-$i.log" 2>&1 &
    begun+=($!)
done
status=0
for worker in "${begun[@]}"; do
    code=0
    wait "$worker" || code=$?
    ((code == 0 || code == 124)) || status=$code # 124: its time was over
done
tail -n 3 "$out"/worker-*.log
exit "$status"
