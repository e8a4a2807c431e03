"""SamplerSeedHook: another order of samples in each epoch."""

from math import ceil

from engine.hooks.base import HookBase, Priority


class SamplerSeedHook(HookBase):
    """Tells the sampler of the trainer's loader which epoch begins, by its `set_epoch`.

    Torch's DistributedSampler needs it to shuffle anew; the samplers of `engine.data` do not.
    """

    priority = Priority.VERY_HIGH  # before anything reads from the loader

    def before_epoch(self) -> None:
        self._set_epoch(self.trainer.epoch_of(self.trainer.iter))

    def before_step(self) -> None:
        # With `accumulate` the loader may start again within this step.
        iteration, length = self.trainer.iter, self.trainer.epoch_length
        if length is not None:
            # Of its last batch. Of 21 / 1.4, a little more than 15 comes out.
            epoch = ceil((iteration + 1) / length - 1e-9) - 1
            if epoch != self.trainer.epoch_of(iteration):
                self._set_epoch(epoch)

    def _set_epoch(self, epoch: int | None) -> None:
        loader = self.trainer.data_loader  # type: ignore[attr-defined]
        for owner in (loader, getattr(loader, "batch_sampler", None)):
            set_epoch = getattr(getattr(owner, "sampler", None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
