"""``mpifed test``: the page that says whether runs work with a launcher and an MPI."""

from __future__ import annotations

import time

import pytest
from commands import call

from mpifed import test as check
from mpifed.testing import played


def test_a_command_that_does_not_end_is_ended_with_all_that_it_started(tmp_path):
    began = time.monotonic()
    words = ["sh", "-c", "echo begun; (sleep 2; touch alive) & sleep 60"]
    assert check.ended(words, tmp_path, 0.3) == (None, "begun\n")
    assert time.monotonic() - began < 2
    time.sleep(2.2)
    assert not (tmp_path / "alive").exists()
    code, printed = check.ended(["/no/such/program"], tmp_path, 1)
    assert code == 127 and "/no/such/program" in printed


def test_the_page_has_what_failed_its_command_and_its_last_words(tmp_path, monkeypatch, capfd):
    battery = check.Battery(tmp_path, "sh -c 'echo no slots; exit 3' --", 10)
    monkeypatch.setattr(check, "python_words", lambda subcommand: ["true", subcommand])
    assert check.run_all(battery, 4) == []
    failed = [step.name for step in battery.steps if step.failure]
    assert len(failed) == 3 and len(battery.steps) == 4  # two runs and the messages
    page = check.page_of(battery, 4, [])
    assert "3 of 4 steps failed" in page and page.count("\nno slots\n") == 3
    assert "exit code 3" in page and "| torch |" in page
    assert capfd.readouterr().out.count("FAILED") == 3


def test_messages_are_timed_between_rank_zero_and_a_rank_of_each_host(monkeypatch):
    monkeypatch.setattr(check, "LONG", 1 << 12)

    def of_rank(communicator):
        names = ["a", "a", "b", "b"]
        return check.timed(communicator, names[communicator.rank])

    first, *others = played(of_rank, 4)
    assert [(each["partner"], each["host"], each["where"]) for each in first] == [
        (1, "a", "the same host"),
        (2, "b", "another host"),
    ]
    assert all(each["latency"] > 0 and each["bandwidth"] > 0 for each in first)
    assert others == [[], [], []]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--output", "."], "--output"),
        (["--output", "nowhere/page.md"], "nowhere"),
        (["--ranks", "1"], "--ranks"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_wrong_words_start_nothing(words, name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    refused = call(words, capfd, "test")
    assert (refused.code, refused.out) == (2, "") and name in refused.err
    assert list(tmp_path.iterdir()) == []
