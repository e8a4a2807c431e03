from datetime import timedelta

import pytest

from engine.parallel.job import Job


@pytest.fixture
def job(tmp_path):
    """The second of two machines, with two processes."""
    return Job(
        main_func=print,
        args=(),
        num_processes=2,
        num_machines=2,
        machine_rank=1,
        host="here",
        port=1,
        address="here",
        timeout=timedelta(minutes=1),
        max_restarts=0,
        folder=str(tmp_path),
    )
