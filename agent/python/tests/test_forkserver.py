"""The fork server: tasks that cannot tell, and cannot be told, from freshly started ones."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List, Optional, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fake_agent import PACKAGE, await_true  # noqa: E402

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
FACTS = os.path.join(SCRIPTS, "facts.py")
# What the agent leaves for the environments of tasks to come.
PADDING = 8192
WAIT_S_MAX = 60.0


class Forks:
    """The agent's side of a fork server."""

    def __init__(self, package: str = PACKAGE, arguments: Tuple[str, ...] = ()) -> None:
        self.line, theirs = socket.socketpair()
        self.line.settimeout(WAIT_S_MAX)
        environment = {
            "PATH": os.environ["PATH"], "PYTHONPATH": package, "PYTHONUNBUFFERED": "1",
            "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPTIMUS_TASK": "-", "OPTIMUS_PADDING": "-" * PADDING,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "optimus.forkserver", *arguments, " " * 1024],
            stdin=theirs, env=environment, start_new_session=True, stderr=subprocess.PIPE,
        )
        theirs.close()
        self._answers = self.line.makefile("rb")

    def __enter__(self) -> "Forks":
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self._answers.close()
        self.line.close()

    def hear(self) -> Dict[str, Any]:
        return json.loads(self._answers.readline())

    def order(
        self, command: List[str], environment: Dict[str, str], output: str,
        gate: Optional[int] = None,
    ) -> None:
        order = json.dumps({
            "id": 7, "environment": environment, "directory": os.path.dirname(output),
            "command": command, "script": 1,
        }).encode()
        with open(output, "ab") as file:
            given = [file.fileno()] if gate is None else [file.fileno(), gate]
            send(self.line, len(order).to_bytes(4, "big") + order, given)


def send(line: socket.socket, content: bytes, descriptors: List[int]) -> None:
    """Send bytes with descriptors."""
    numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in descriptors)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)
    line.sendmsg([content], [rights])


def environment_of(folder: str) -> Dict[str, str]:
    return {
        "PATH": os.environ["PATH"], "PYTHONPATH": PACKAGE, "PYTHONUNBUFFERED": "1",
        "LANG": "C.UTF-8", "OPTIMUS_TASK": "n1/j12/3/worker1", "OPTIMUS_DIR": folder, "OPTIMUS_JOB": "j12",
        "OPTIMUS_ROLE": "worker", "OPTIMUS_INDEX": "1", "OMP_NUM_THREADS": "1", "WORD": "a b=c é",
    }


class Forked(unittest.TestCase):
    maxDiff = None

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def read(self, name: str) -> str:
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def cold(self, arguments: List[str], name: str) -> Tuple[str, int]:
        with open(self.path(name), "wb") as file:
            done = subprocess.run(
                [sys.executable, *arguments], env=environment_of(self.folder), cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                check=False,
            )
        return self.read(name), done.returncode

    def forked(self, forks: Forks, arguments: List[str], name: str) -> Tuple[str, Optional[int]]:
        forks.order([sys.executable, *arguments], environment_of(self.folder), self.path(name))
        started = forks.hear()
        self.assertEqual(started["forked"], 7)
        ended = forks.hear()
        self.assertEqual(ended["ended"], started["pid"])
        status = ended["code"] if "code" in ended else -ended["signal"]
        return self.read(name), status

    def test_a_forked_script_sees_and_does_what_a_fresh_one_does(self) -> None:
        with Forks() as forks:
            self.assertEqual(forks.hear(), {"ready": True, "gpus": False})
            for end in ("", "5", "raise", "signal", "words"):
                with self.subTest(end=end):
                    cold, code = self.cold([FACTS, end, "b c"], f"cold{end}")
                    warm, status = self.forked(forks, [FACTS, end, "b c"], f"warm{end}")
                    self.assertEqual(status, code)
                    first, rest = cold.split("\n", 1)
                    found, found_rest = warm.split("\n", 1)
                    self.assertEqual(json.loads(found), json.loads(first))
                    self.assertEqual(found_rest, rest)
            missing = [self.path("nothing.py")]
            self.assertEqual(self.cold(missing, "c"), self.forked(forks, missing, "w"))
            with open(self.path("wrong.py"), "w", encoding="utf-8") as file:
                file.write("x = = 1\n")
            wrong = [self.path("wrong.py")]
            self.assertEqual(self.cold(wrong, "d"), self.forked(forks, wrong, "x"))

    def test_names_in_ps_and_random_numbers_are_each_tasks_own(self) -> None:
        script = self.path("numbers.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(
                "import sys\nassert 'mxnet' in sys.modules\nimport numpy, random\n"
                "print(open('/proc/self/comm').read().strip())\n"
                "print(numpy.random.random(), random.random())\n"
            )
        with Forks() as forks:
            forks.hear()
            outputs = [self.forked(forks, [script], f"o{number}")[0] for number in range(2)]
        lines = [output.splitlines() for output in outputs]
        self.assertEqual([line[0] for line in lines], ["j12-worker1"] * 2)
        self.assertFalse(set(lines[0][1].split()) & set(lines[1][1].split()))

    def test_tasks_outlive_the_server_which_ends_with_the_agent(self) -> None:
        script = self.path("wait.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import time\nprint('here')\ntime.sleep(1000)\n")
        with Forks() as forks:
            forks.hear()
            forks.order([sys.executable, script], environment_of(self.folder), self.path("o"))
            pid = forks.hear()["pid"]
            self.addCleanup(os.kill, pid, signal.SIGKILL)
            await_true(lambda: self.read("o") == "here\n", "output")
            # The next order comes with the end of the agent: nobody would know of the task.
            os.kill(forks.process.pid, signal.SIGSTOP)
            forks.order([sys.executable, script], environment_of(self.folder), self.path("p"))
            forks.line.shutdown(socket.SHUT_RDWR)
            os.kill(forks.process.pid, signal.SIGCONT)
            self.assertEqual(forks.process.wait(WAIT_S_MAX), 0)
            os.kill(pid, 0)
            self.assertEqual(self.read("p"), "")

    def test_a_task_waits_at_its_gate_and_ends_where_that_is_closed(self) -> None:
        script = self.path("say.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("print('here')\n")
        with Forks() as forks:
            forks.hear()
            for name, opened in (("open", True), ("closed", False)):
                gate, opener = os.pipe()
                environment = environment_of(self.folder)
                forks.order([sys.executable, script], environment, self.path(name), gate)
                os.close(gate)
                pid = forks.hear()["pid"]
                self.assertEqual(self.read(name), "")
                if opened:
                    os.write(opener, b".")
                os.close(opener)
                self.assertEqual(forks.hear(), {"ended": pid, "code": 0 if opened else 1})
                self.assertEqual(self.read(name), "here\n" if opened else "")

    def test_a_server_ends_with_the_agent_while_it_still_imports(self) -> None:
        os.mkdir(self.path("mxnet"))
        with open(self.path("mxnet/__init__.py"), "w", encoding="utf-8") as file:
            file.write("import time\nopen('importing', 'w').close()\ntime.sleep(1000)\n")
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)
        with Forks(f"{self.folder}:{PACKAGE}", ("low",)) as forks:
            await_true(lambda: os.path.exists(self.path("importing")), "import")
            forks.line.shutdown(socket.SHUT_RDWR)
            self.assertEqual(forks.process.wait(WAIT_S_MAX), 0)

    def test_what_cannot_be_imported_is_said(self) -> None:
        os.mkdir(self.path("mxnet"))
        with open(self.path("mxnet/__init__.py"), "w", encoding="utf-8") as file:
            file.write("raise RuntimeError('no such engine')\n")
        with Forks(f"{self.folder}:{PACKAGE}") as forks:
            self.assertEqual(forks.hear(), {"unusable": "RuntimeError: no such engine"})
            self.assertEqual(forks.process.wait(WAIT_S_MAX), 1)

    def test_a_task_that_cannot_be_set_up_is_refused_and_the_next_one_runs(self) -> None:
        with Forks() as forks:
            forks.hear()
            large = {**environment_of(self.folder), "OPTIMUS_DIR": "/" * 2 * PADDING}
            forks.order([sys.executable, FACTS, "0"], large, self.path("o"))
            refused = forks.hear()
            self.assertEqual(refused["failed"], 7)
            self.assertIn("does not fit", refused["error"])
            self.assertEqual(self.forked(forks, [FACTS, "0"], "p")[1], 0)


if __name__ == "__main__":
    unittest.main()
