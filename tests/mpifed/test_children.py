"""Processes that a component starts end as those of any other program do."""

import subprocess
import sys

import pytest

HANDLED = """
import multiprocessing, os, signal, threading, time
from mpifed.watchdog.children import end_children_by

came = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda received, frame: came.append(received))
end_children_by(signal.SIGTERM, signal.SIGUSR1)
"""
AT_ONCE = """
for _ in range(50):
    child = os.fork()
    if child == 0:
        time.sleep(100)
        os._exit(0)
    os.kill(child, signal.{name})
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.{name}
"""
PROCESS = """
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
child.start()
child.terminate()
child.join()
assert child.exitcode == -signal.SIGTERM
"""
IN_A_THREAD = """
def fork():
    child = os.fork()
    if child == 0:
        os._exit(1 if signal.pthread_sigmask(signal.SIG_BLOCK, ()) else 0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

codes = []
thread = threading.Thread(target=fork)
thread.start()
thread.join()
assert codes == [0]
"""
PARENT = """
if os.fork() == 0:
    os._exit(0)
os.kill(os.getpid(), signal.SIGTERM)
assert came == [signal.SIGTERM]
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
"""


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(AT_ONCE.format(name="SIGTERM"), id="SIGTERM at once"),
        pytest.param(AT_ONCE.format(name="SIGUSR1"), id="SIGUSR1 at once"),
        pytest.param(PROCESS, id="multiprocessing"),
        pytest.param(IN_A_THREAD, id="forked by a thread"),
        pytest.param(PARENT, id="the parent handles its own"),
    ],
)
def test_signals_end_children(what):
    command = [sys.executable, "-c", HANDLED + what]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def test_command_leaves_children_to_signals(tmp_path):
    """A run whose callback starts and terminates a process is not held up by it."""
    (tmp_path / "starts.py").write_text(
        "import multiprocessing, time\n\n\n"
        "def process(recorded):\n"
        "    child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(99,))\n"
        "    child.start()\n"
        "    child.terminate()\n"
        "    child.join(30)\n"
        "    print('ended by', child.exitcode)\n"
    )
    words = "digits-fedem clients=4 rounds=1 --quiet --on-round starts:process --output run"
    command = [sys.executable, "-m", "mpifed.run", *words.split()]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "ended by -15" in ended.stdout
