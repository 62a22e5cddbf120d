#!/usr/bin/env bash
# A job of a sweep: line SLURM_ARRAY_TASK_ID (comments not counted) of a file of override lines.
#
#   sbatch --array=0-11%4 slurm/array.sh FILE RUN_DIR [KEY=VALUE ...]
#
# slurm/submit.sh does that for the jobs not finished, with a folder for the logs. GPU, time and
# memory are options of sbatch; the ones below are defaults. Results go to RUN_DIR/NUMBER, one line
# about each task to RUN_DIR/status/NUMBER.
#
#SBATCH --job-name=lgp
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=128G
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

# SIGUSR1 comes before the time limit. lgp then stops after the batch in flight; where it has not
# after GRACE seconds it is killed, which costs that batch and nothing else.
child='' asked='' cancelled='' code=127
trap 'asked=$SECONDS; [ -n "$child" ] && kill -USR1 "$child" 2>/dev/null' USR1
trap 'cancelled=1; [ -n "$child" ] && kill -TERM "$child" 2>/dev/null' TERM

file=${1:?usage: sbatch --array=0-11 slurm/array.sh FILE RUN_DIR [KEY=VALUE ...]}
run_dir=${2:?which folder takes the runs?}
shift 2
task=${SLURM_ARRAY_TASK_ID:?start this with sbatch --array}
start=$(date -u +%FT%TZ)
mkdir -p "$run_dir/status"

status() { # state, exit status; written aside, so that a reader sees one whole line
  local aside="$run_dir/status/.$task.$$"
  printf 'state=%s start=%s end=%s host=%s exit=%s job=%s_%s requeues=%s\n' "$1" "$start" \
    "$([ "$1" = running ] || date -u +%FT%TZ)" "$(hostname)" "$2" "$SLURM_ARRAY_JOB_ID" "$task" \
    "${SLURM_RESTART_COUNT:-0}" >"$aside" && mv -f "$aside" "$run_dir/status/$task"
}

status running ''
if [ -z "$asked$cancelled" ]; then
  "${LGP:-lgp}" jobs "$file" --run "$task" "run_dir=$run_dir" "$@" &
  child=$!
  while kill -0 "$child" 2>/dev/null; do
    if [ -z "$asked" ]; then
      wait "$child" # returns early when a signal comes
      code=$?
    else
      sleep 0.5
      [ $((SECONDS - asked)) -lt "${GRACE:-90}" ] || kill -KILL "$child" 2>/dev/null
    fi
  done
  wait "$child" 2>/dev/null
  last=$?
  [ "$last" -eq 127 ] || code=$last # 127: its status was given before
else
  code=85
fi

# 85: stopped as asked. 138, 137: asked before it could listen, or after it had been too slow.
if [ -n "$asked" ] && [ -z "$cancelled" ] && [[ $code =~ ^(85|137|138)$ ]]; then
  if [ "${SLURM_RESTART_COUNT:-0}" -lt "${REQUEUES:-20}" ]; then
    trap '' TERM # of the requeue itself
    status requeued "$code"
    # The task's own number: SLURM_JOB_ID may be that of the whole array.
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$task" && exit 0
  fi
  status stopped "$code"
elif [ -n "$cancelled" ]; then
  status cancelled "$code"
elif [ "$code" -eq 0 ]; then
  status finished 0
else
  status failed "$code"
fi
exit "$code"
