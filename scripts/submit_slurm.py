"""Train on Slurm through submitit: a job that saves before its time is up, and goes on when it runs again.

    pip install 'nearsight[slurm]'
    python scripts/submit_slurm.py --gpus 8 --minutes 1440 -- DATA --run /shared/NAME --recipe convit

What follows the two dashes is for `nearsight train`. `--cluster local` runs the same job on this machine.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

try:
    import submitit
except ImportError as error:
    raise SystemExit("this script needs submitit: pip install 'nearsight[slurm]'") from error


class Training:
    """`nearsight train` under torchrun on one machine."""

    def __init__(self, processes: int, words: list[str]) -> None:
        # Both programs lie beside this Python, whatever the job's path; the two dashes keep torchrun from our options.
        torchrun, nearsight = (str(Path(sys.executable).with_name(name)) for name in ("torchrun", "nearsight"))
        self.command = [torchrun, f"--nproc-per-node={processes}", "--no-python", "--", nearsight, "train", *words]
        self.process: subprocess.Popen | None = None

    def __call__(self) -> None:
        # Slurm sends its warning to every process of the job. Only this one listens; it would end torchrun.
        self.process = subprocess.Popen(self.command, preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN))
        while self.process.poll() is None:
            time.sleep(0.5)
        if self.process.returncode:
            raise RuntimeError(f"training ended with code {self.process.returncode}; the log has its reason")

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """What submitit calls on the warning: SIGTERM has every process finish its step and save. The same command goes
        on where it stopped."""
        if self.process is not None:
            self.process.terminate()
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)  # this may have interrupted poll()
        self.process = None
        return submitit.helpers.DelayedSubmission(self)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="slurm", choices=("slurm", "local"))
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of the machine, and processes (0: two on the CPU)")
    parser.add_argument("--minutes", type=int, default=1440, help="time limit of each turn")
    parser.add_argument("--turns", type=int, default=10, help="how often the job may be queued again")
    parser.add_argument("--partition", default=None)
    parser.add_argument("--logs", default="slurm", help="folder for the job's output")
    parser.add_argument("words", nargs="+", help="arguments of nearsight train, after --")
    options = parser.parse_args()
    if options.cluster == "slurm" and shutil.which("srun") is None:
        parser.error("there is no srun on this machine; submit on a login node of the cluster, or add --cluster local")
    executor = submitit.AutoExecutor(folder=options.logs, cluster=options.cluster, slurm_max_num_timeout=options.turns)
    # torchrun is one task that starts the others.
    executor.update_parameters(
        nodes=1, tasks_per_node=1, gpus_per_node=options.gpus, timeout_min=options.minutes, slurm_signal_delay_s=120
    )
    if options.partition:
        executor.update_parameters(slurm_partition=options.partition)
    job = executor.submit(Training(options.gpus or 2, options.words))
    print(f"job {job.job_id}, output in {job.paths.stdout}", flush=True)
    if options.cluster == "local":
        job.result()


if __name__ == "__main__":
    main()
