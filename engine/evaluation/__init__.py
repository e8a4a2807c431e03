"""Evaluation: the loop over a test set, evaluators, and tables of results."""

from engine.evaluation.classification import ClassificationEvaluator
from engine.evaluation.evaluator import (
    EVALUATOR_REGISTRY,
    DatasetEvaluator,
    DatasetEvaluators,
    inference_context,
    inference_on_dataset,
)
from engine.evaluation.groups import GroupedEvaluator
from engine.evaluation.language_model import LanguageModelEvaluator, count_bigrams
from engine.evaluation.results import (
    check_expected_results,
    flatten_results_dict,
    print_csv_format,
    read_results,
    results_table,
    verify_results,
    write_results,
)
from engine.evaluation.totals import Totals

__all__ = [
    "EVALUATOR_REGISTRY",
    "ClassificationEvaluator",
    "DatasetEvaluator",
    "DatasetEvaluators",
    "GroupedEvaluator",
    "LanguageModelEvaluator",
    "Totals",
    "check_expected_results",
    "count_bigrams",
    "flatten_results_dict",
    "inference_context",
    "inference_on_dataset",
    "print_csv_format",
    "read_results",
    "results_table",
    "verify_results",
    "write_results",
]
