"""What reporting costs a worker, as a ratio of its step time.

Steps of about 10 ms of arithmetic are run in short blocks, in turn with and without
all that happens for the agent at the end of a step (the report itself, the look at the
agent's orders). The ratio is of the medians, so that a disturbed block does not count.
A second number is the processor time of the calls alone over the length of a step: on
a busy machine it is the steadier one.

Prints one JSON object.
"""

import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from typing import Callable, List, NoReturn

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np

from optimus import environment
from optimus.control import Control
from optimus.hold import Holder
from optimus.report import Reporter

STEP_S = 0.010
BLOCKS = 60
STEPS_PER_BLOCK = 20


def start_agent(folder: str) -> int:
    """A process (an agent is one) that takes the datagrams; returns its id."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(os.path.join(folder, "report.sock"))
    child = os.fork()
    if child == 0:
        while listener.recv(65536):
            pass
        os._exit(0)
    listener.close()
    return child


def worker_end_of_step(folder: str) -> Callable[[int, float], None]:
    """Everything that a worker does for the agent between two steps."""
    settings = environment.read({
        "OPTIMUS_JOB": "j1", "OPTIMUS_GENERATION": "1", "OPTIMUS_ROLE": "worker",
        "OPTIMUS_INDEX": "0", "OPTIMUS_SERVERS": "1", "OPTIMUS_WORKERS": "1",
        "OPTIMUS_MODE": "sync", "OPTIMUS_EPOCHS_MAX": "1", "OPTIMUS_GLOBAL_BATCH": "64",
        "OPTIMUS_DIR": folder,
    })
    assert settings is not None
    reporter = Reporter(folder, "worker", 0)

    def never(*_: object) -> NoReturn:
        raise AssertionError("there is no request")

    holder = Holder(settings, 0, Control(folder), reporter, threading.Event(), never, never)

    def end(step: int, duration_s: float) -> None:
        reporter.step((step, 0, 0.12345678 + step, round(duration_s, 6), round(duration_s, 6), 64))
        reporter.flush_stale()
        holder.at_boundary(never, step, False)

    return end


def calibrated() -> Callable[[], None]:
    """Arithmetic that takes about STEP_S."""
    matrix = np.random.RandomState(0).normal(size=(160, 160))
    began = time.perf_counter()
    rounds = 0
    while time.perf_counter() - began < 0.5:
        matrix @ matrix
        rounds += 1
    each_step = max(1, round(rounds * STEP_S / 0.5))

    def work() -> None:
        for _ in range(each_step):
            matrix @ matrix

    return work


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        agent = start_agent(folder)
        with open(os.path.join(folder, "control.json"), "w", encoding="utf-8") as file:
            file.write('{"checkpoint":null}')
        end, work = worker_end_of_step(folder), calibrated()
        seconds: List[List[float]] = [[], []]
        calls: List[float] = []
        step = 0
        for block in range(2 * BLOCKS):
            reporting = block % 2
            for _ in range(STEPS_PER_BLOCK):
                step += 1
                began = time.perf_counter()
                work()
                worked = time.perf_counter()
                if reporting:
                    began_cpu = time.thread_time()
                    end(step, worked - began)
                    calls.append(time.thread_time() - began_cpu)
                seconds[reporting].append(time.perf_counter() - began)
        os.kill(agent, signal.SIGKILL)
        os.waitpid(agent, 0)
    without, with_reports = (statistics.median(times) for times in seconds)
    print(json.dumps({
        "step_ms": round(1e3 * without, 3),
        "ratio_of_medians": round(with_reports / without - 1, 5),
        "calls_cpu_us_mean": round(1e6 * statistics.mean(calls), 1),
        "calls_cpu_us_median": round(1e6 * statistics.median(calls), 1),
        "ratio_of_calls": round(statistics.mean(calls) / without, 5),
    }))


if __name__ == "__main__":
    main()
