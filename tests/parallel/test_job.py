import os
import subprocess
from dataclasses import replace


def test_a_job_that_is_stopped_can_be_resumed_if_one_process_says_so(job):
    assert job.stop_code is None
    job.stop_with(143)
    assert job.stop_code == 143
    job.stop_with(75)
    assert job.stop_code == 75


def test_processes_are_outside_until_they_have_met_the_others(job):
    job.started(0).write_text("100")
    job.started(1).write_text("101")
    job.joined(1).touch()
    assert job.pids() == {0: 100, 1: 101}
    assert job.pids_outside() == [100]
    assert job.have_met


def test_a_process_that_ended_without_returning_is_found_by_its_rank(job):
    job.started(0).write_text("100")
    job.started(1).write_text("101")
    job.returned(0).touch()
    assert job.find_silent({100}) is None
    assert job.find_silent({100, 101}) == 1
    assert job.describe_progress(2, was_killed=False).endswith(
        "rank 2 had come to the end of the program"
    )


def test_a_process_that_left_is_found_before_it_is_seen_to_have_ended(job):
    job.started(1).write_text("101")
    job.left(1).touch()
    assert job.find_silent(set()) == 1
    job.mistake(1).write_text("told")
    assert job.find_silent(set()) is None
    job.begin(1)
    assert job.find_silent(set()) is None
    assert job.pids() == {1: os.getpid()}


def test_what_a_process_left_is_gone_when_another_takes_its_place(job):
    job.mistake(1).write_text("ConfigError: no")
    for file in (job.returned(1), job.joined(1)):
        file.touch()
    assert job.find_mistake() == "ConfigError: no"
    job.begin(0)
    assert job.find_mistake() == "ConfigError: no"
    job.begin(1)
    assert (job.find_mistake(), job.describe_progress(2, was_killed=False)) == ("", "")


def test_a_job_is_interrupted_from_a_death_on_that_is_no_end(job):
    job = replace(job, max_restarts=1)
    child = subprocess.Popen(["sleep", "60"])
    job.started(0).write_text(str(child.pid))
    assert not job.was_interrupted()
    child.kill()
    child.wait()
    assert job.was_interrupted()
    assert not replace(job, max_restarts=0).was_interrupted()
    job.returned(0).touch()
    assert not job.was_interrupted()
    job.begin(0)
    assert job.was_interrupted()
