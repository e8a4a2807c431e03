import runpy
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "benchmark_saving.py"


def test_a_save_is_measured_against_a_copy(log):
    figures = runpy.run_path(str(TOOL))["measure_saving"](rounds=1)
    assert figures["megabytes"] == 200
    assert figures["copy_ms"] > 0
    # Noise or not, the training thread does not write the file.
    assert figures["save / copy"] < figures["torch.save / copy"]
