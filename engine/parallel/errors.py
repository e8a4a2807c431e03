"""StrategyError: what PARALLEL says cannot be done with this model, or on this device."""


class StrategyError(ValueError):
    """A setting of PARALLEL that does not fit the model or the device; names the key."""
