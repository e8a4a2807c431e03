"""EarlyStopping: ends a run that no longer improves."""

from typing import Any

from engine.hooks.base import HookBase, Priority
from engine.hooks.best import Best, Mode
from engine.parallel import comm


class EarlyStopping(HookBase):
    """Stops the run when a metric has not improved for `patience` evaluations that have it.

    `metric` and `mode` are those of `Best`: "+accuracy", "-loss", or a name with a mode.
    """

    priority = Priority.LOW  # after evaluations, and hooks that look at their results

    def __init__(
        self, metric: str, patience: int = 5, mode: Mode | None = None, min_delta: float = 0.0
    ) -> None:
        if patience < 1:
            raise ValueError(f"patience must be 1 evaluation or more, got {patience}")
        self.best = Best(metric, mode, min_delta, without="EarlyStopping cannot act")
        self.patience = patience
        self.waited = 0

    def after_eval(self, results: dict[str, Any]) -> None:
        if not comm.is_main_process():  # others may have no results, or other ones
            return
        if self.best.name_in(results) is None:  # of another evaluation, unless it never comes
            if results and self.best.value is None:
                self.best.update(results, self.trainer.iter)  # warns
            return
        self.waited = 0 if self.best.update(results, self.trainer.iter) else self.waited + 1
        # A run that stops evaluates once more, which is no reason to stop it again.
        if self.waited >= self.patience and not self.trainer.stop_reasons:
            self.trainer.stop(f"{self.best.metric} has not improved for {self.waited} evaluations")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.state_dict(), "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best.load_state_dict(state_dict["best"])
        self.waited = state_dict["waited"]
