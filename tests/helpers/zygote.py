"""A process that has imported torch and forks a real training process for each request: real pids, real SIGKILL, no
two seconds of imports each time. Talks JSON lines on stdin and stdout: {"start": spec} → pid, {"wait": pid} → exit
status."""

from __future__ import annotations

import json
import os
import sys
import traceback


def main() -> None:
    import faults
    import torch

    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                _child(faults, request["start"])
            answer = pid
        else:
            _, status = os.waitpid(request["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        print(json.dumps(answer), flush=True)


def _child(faults, spec: dict) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        output = os.open(spec["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        faults.run(spec)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
