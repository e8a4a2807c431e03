"""A page that shows what runs have left in their folders: `build_page(read_runs(folders))`."""

from engine.report.curves import Curve, make_curve, thin
from engine.report.metrics import read_metrics
from engine.report.page import build_page
from engine.report.runs import Run, read_runs

__all__ = ["Curve", "Run", "build_page", "make_curve", "read_metrics", "read_runs", "thin"]
