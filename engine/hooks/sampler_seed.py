"""SamplerSeedHook: another order of samples in each epoch."""

from engine.hooks.base import HookBase, Priority


class SamplerSeedHook(HookBase):
    """Tells the sampler of the trainer's loader which epoch begins, by its `set_epoch`.

    Torch's DistributedSampler needs it to shuffle anew; the samplers of `engine.data` do not.
    """

    priority = Priority.VERY_HIGH  # before anything reads from the loader

    def before_epoch(self) -> None:
        loader = self.trainer.data_loader  # type: ignore[attr-defined]
        epoch = self.trainer.epoch_of(self.trainer.iter)
        for owner in (loader, getattr(loader, "batch_sampler", None)):
            set_epoch = getattr(getattr(owner, "sampler", None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
