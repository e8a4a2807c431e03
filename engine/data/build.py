"""What detectron2 has in the module of this name."""

from engine.data.loader import (
    build_batch_data_loader,
    trivial_batch_collator,
    worker_init_reset_seed,
)

__all__ = ["build_batch_data_loader", "trivial_batch_collator", "worker_init_reset_seed"]
