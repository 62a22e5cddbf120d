#!/usr/bin/env bash
# Submit the jobs of a file of override lines that are not finished yet, as one SLURM array.
#
#   slurm/submit.sh FILE [option of sbatch ...] [-- KEY=VALUE ...]
#
# Words after -- go to every job. The environment sets RUN_DIR (runs/NAME of the file), PARALLEL (jobs
# at a time, 8) and LGP (the command, lgp). A broken line is told before anything is submitted.
set -euo pipefail
file=${1:?usage: slurm/submit.sh FILE [option of sbatch ...] [-- KEY=VALUE ...]}
shift
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  options+=("$1")
  shift
done
[ $# -gt 0 ] && shift # the --
name=$(basename "${file%.*}")
run_dir=${RUN_DIR:-runs/$name}
tasks=$("${LGP:-lgp}" jobs "$file" --missing "run_dir=$run_dir" "$@")
if [ -z "$tasks" ]; then
  echo "all jobs of $file are finished in $run_dir" >&2
  exit 0
fi
mkdir -p "$run_dir/logs"
exec sbatch --array="$tasks%${PARALLEL:-8}" --job-name="$name" --output="$run_dir/logs/%a-%A.log" \
  "${options[@]}" "$(dirname "$0")/array.sh" "$file" "$run_dir" "$@"
