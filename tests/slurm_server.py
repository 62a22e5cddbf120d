"""A private SLURM of one node for tests: munged, slurmctld and slurmd on free ports in a folder.

Two GPUs are pretended, so that `--gpus-per-node` can be asked for. `sacct` is a stand-in over
`scontrol`, since accounting would need a database.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "scancel", "scontrol", "squeue", "srun")

CONF = """\
ClusterName=lgp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
GresTypes=gpu
AuthType=auth/munge
AuthInfo=socket={root}/munge/sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
KillWait=5
InactiveLimit=0
MinJobAge=600
Waittime=0
PropagateResourceLimits=NONE
NodeName={host} NodeAddr=127.0.0.1 Gres=gpu:2 CPUs=4 Boards=1 SocketsPerBoard=1 CoresPerSocket=4 \
ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
# A requeued job waits until its munge credential has expired: 6 s here, else 2 minutes.

SACCT = """\
#!{python}
# Answers `sacct -o JobID,State,NodeList --parsable2 -j ID -j ID`, which is all that submitit asks.
import re, subprocess, sys
print("JobID|State|NodeList")
for job in [sys.argv[i + 1] for i, word in enumerate(sys.argv[:-1]) if word == "-j"]:
    words = ["scontrol", "-o", "show", "job", job]
    for line in subprocess.run(words, capture_output=True, text=True).stdout.splitlines():
        f = dict(re.findall(r"(\\S+?)=(\\S*)", line))
        array = "ArrayTaskId" in f
        name = f"{{f['ArrayJobId']}}_{{f['ArrayTaskId']}}" if array else f["JobId"]
        print(f"{{name}}|{{f['JobState']}}|{{f.get('NodeList', '')}}")
"""


def unavailable() -> str | None:
    """Why no private SLURM can be started here; None where it can."""
    missing = [name for name in (*DAEMONS, *CLIENTS) if _which(name) is None]
    if missing:
        packages = "slurmctld slurmd slurm-client munge"
        return f"{', '.join(missing)} not found: apt-get install -y {packages}"
    return None if os.geteuid() == 0 else "slurmd runs jobs as root only"


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass(frozen=True)
class Slurm:
    """A running server.

    Attributes:
        environment: of every client: SLURM_CONF; the `sacct` above and this Python on PATH.
    """

    root: Path
    environment: Mapping[str, str]

    def run(self, *words: str | Path, timeout: float = 120, **more: str) -> str:
        """What a command prints (CalledProcessError: it failed; `more` joins the environment)."""
        done = subprocess.run(
            [str(word) for word in words], env=dict(self.environment) | more, timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n")
            done.check_returncode()
        return done.stdout

    def states(self, job: str) -> dict[str, str]:
        """State of each task of a job (and of a job without tasks, under "")."""
        found = {}
        for line in self.run("squeue", "-h", "-t", "all", "-r", "-o", "%i %T", "-j", job).split(
            "\n"
        ):
            if line:
                name, state = line.split()
                found[name.partition("_")[2]] = state
        return found

    def wait(self, job: str, seconds: float = 120) -> dict[str, str]:
        """The states of a job's tasks when none is waiting or running any more."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            states = self.states(job)
            if not set(states.values()) & {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}:
                return states
            time.sleep(0.2)
        raise TimeoutError(f"job {job} after {seconds} s: {states}")


def start() -> Slurm:
    """Start the three daemons; RuntimeError with the ends of their logs where they do not come."""
    # A short path: sockets' names are bounded at 108 characters.
    root = Path(tempfile.mkdtemp(prefix="lgp-slurm-", dir="/tmp"))
    for name in ("munge", "state", "spool", "log", "bin"):
        (root / name).mkdir(mode=0o755)
    root.chmod(0o755)
    key = root / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().split(".")[0]
    (root / "slurm.conf").write_text(CONF.format(host=host, root=root, ports=_free_ports(2)))
    (root / "gres.conf").write_text(f"NodeName={host} Name=gpu Count=2 File=/dev/null,/dev/zero\n")
    sacct = root / "bin" / "sacct"
    sacct.write_text(SACCT.format(python=sys.executable))
    sacct.chmod(0o755)
    own = [root / "bin", Path(sys.executable).parent, os.environ["PATH"], "/usr/sbin"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
    environment = kept | {
        "SLURM_CONF": str(root / "slurm.conf"), "PATH": ":".join(map(str, own)),
        "OMP_NUM_THREADS": "1", "HYDRA_FULL_ERROR": "1",
    }  # fmt: skip
    slurm = Slurm(root, environment)
    munge, log = root / "munge", root / "log"
    try:
        slurm.run(
            "munged", f"--key-file={key}", f"--socket={munge / 'sock'}", "--num-threads=2",
            f"--pid-file={munge / 'pid'}", f"--seed-file={munge / 'seed'}",
            f"--log-file={log / 'munged.log'}",
        )  # fmt: skip
        slurm.run("slurmctld", "-f", root / "slurm.conf", "-c")
        slurm.run("slurmd", "-f", root / "slurm.conf", "-N", host, "-c")
        for _ in range(150):
            if slurm.run("sinfo", "-h", "-o", "%T", timeout=20).strip() == "idle":
                return slurm
            time.sleep(0.1)
        raise RuntimeError("the node did not become idle")
    except (RuntimeError, subprocess.SubprocessError) as error:
        ends = [f"{p}:\n{p.read_text()[-2000:]}" for p in log.glob("*.log")]
        stop(slurm)
        raise RuntimeError(f"no private SLURM: {error}\n" + "\n".join(ends)) from error


def stop(slurm: Slurm) -> None:
    """End all jobs and the daemons, and remove the folder."""
    subprocess.run(
        ["scancel", "--user=root", "--quiet"], env=dict(slurm.environment), timeout=30, check=False
    )
    pids = [_pid(slurm.root / name) for name in ("slurmd.pid", "slurmctld.pid", "munge/pid")]
    for pid in filter(None, pids):
        os.kill(pid, signal.SIGTERM)
    for _ in range(100):
        if not any(pid and Path(f"/proc/{pid}").exists() for pid in pids):
            break
        time.sleep(0.1)
    shutil.rmtree(slurm.root, ignore_errors=True)


def _pid(path: Path) -> int | None:
    try:
        pid = int(path.read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
