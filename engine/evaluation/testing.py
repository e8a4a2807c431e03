"""What detectron2 has in the module of this name."""

from engine.evaluation.results import flatten_results_dict, print_csv_format, verify_results

__all__ = ["flatten_results_dict", "print_csv_format", "verify_results"]
