from collections import Counter
from itertools import islice

import pytest
import torch
from torch.utils.data import IterableDataset

from engine.config import ConfigError
from engine.data import TRAIN_LOADER_REGISTRY, DatasetCatalog, from_config, get_dataset
from engine.data.samplers import RandomSubsetTrainingSampler, RepeatFactorTrainingSampler

train_loader = from_config.train_loader_from_config
loader_of_test_set = from_config.test_loader_from_config


@pytest.fixture
def register():
    """Registers data sets for the time of a test."""
    names = []

    def add(**data_sets):
        for name, data in data_sets.items():
            DatasetCatalog.register(name, lambda data=data: data)
            names.append(name)

    yield add
    for name in names:
        DatasetCatalog.remove(name)


def drawn(loader, batches):
    """How often each number was drawn in so many batches."""
    return Counter(torch.cat(list(islice(loader, batches))).tolist())


def invert(sample):
    return {**sample, "image": 1 - sample["image"]}


def test_a_pass_holds_every_sample_of_all_data_sets_once(digits_cfg, register):
    register(small=[0, 1, 2, 3], large=list(range(4, 12)))
    cfg = digits_cfg("DATASETS.TRAIN", "[small, large]", "SOLVER.IMS_PER_BATCH", 3)
    loader = train_loader(cfg)
    assert loader.epoch_length == 4
    assert drawn(loader, 4) == dict.fromkeys(range(12), 1)


def test_the_seed_of_the_config_sets_the_order(digits_cfg):
    def first_labels(seed):
        return next(iter(train_loader(digits_cfg("SEED", seed))))["label"].tolist()

    assert first_labels(1) == first_labels(1) != first_labels(2)
    assert first_labels(-1) != first_labels(-1)


def test_options_of_the_loader_are_taken(digits_cfg):
    cfg = digits_cfg("DATALOADER.NUM_FOLDS", 3, "SOLVER.IMS_PER_BATCH", 1437)
    assert train_loader(cfg).epoch_length == 3


def test_a_mapper_changes_training_samples_and_another_one_test_samples(digits_cfg, monkeypatch):
    import engine.zoo.digits as digits

    monkeypatch.setattr(digits, "invert", invert, raising=False)
    for kind, make in (
        ("MAPPER", train_loader),
        ("TEST_MAPPER", lambda cfg: loader_of_test_set(cfg, "digits_test")),
    ):
        plain = next(iter(make(digits_cfg())))
        mapped = next(iter(make(digits_cfg(f"DATALOADER.{kind}", "engine.zoo.digits:invert"))))
        torch.testing.assert_close(mapped["image"], 1 - plain["image"])
        assert torch.equal(mapped["label"], plain["label"])


def test_a_test_loader_reads_each_sample_once_and_groups_are_joined(digits_cfg):
    cfg = digits_cfg(
        "DATASETS.TEST_GROUPS", "{all: [digits_train, digits_test], alone: digits_test}",
        "TEST.BATCH_SIZE", 100,
    )  # fmt: skip

    def sizes(name):
        return [len(batch["label"]) for batch in loader_of_test_set(cfg, name)]

    assert sizes("digits_test") == sizes("alone") == [100, 100, 100, 60]
    assert sum(sizes("all")) == 1437 + 360


def test_repeat_factors_of_data_sets(digits_cfg, register):
    register(rare=[0, 1], common=[2, 3, 4, 5])
    cfg = digits_cfg(
        "DATASETS.TRAIN", "[rare, common]",
        "DATASETS.TRAIN_REPEAT_FACTOR", "[[rare, 3.0]]",
        "SOLVER.IMS_PER_BATCH", 5,
    )  # fmt: skip
    assert drawn(train_loader(cfg), 2) == {0: 3, 1: 3, 2: 1, 3: 1, 4: 1, 5: 1}


def test_repeat_factors_of_rare_categories(digits_cfg, register):
    register(labelled=[{"label": 0}] + [{"label": 1}] * 9)
    cfg = digits_cfg(
        "DATASETS.TRAIN", "[labelled]",
        "DATALOADER.SAMPLER_TRAIN", "RepeatFactorTrainingSampler",
        "DATALOADER.REPEAT_THRESHOLD", 0.4,
    )  # fmt: skip
    sampler = train_loader(cfg).sampler
    assert isinstance(sampler, RepeatFactorTrainingSampler)
    assert sampler.repeat_factors.tolist() == pytest.approx([2.0] + [1.0] * 9)  # √(0.4 / 0.1)


def test_a_random_share_of_the_data(digits_cfg):
    cfg = digits_cfg(
        "DATALOADER.SAMPLER_TRAIN", "RandomSubsetTrainingSampler",
        "DATALOADER.RANDOM_SUBSET_RATIO", 0.5,
    )  # fmt: skip
    sampler = train_loader(cfg).sampler
    assert isinstance(sampler, RandomSubsetTrainingSampler)
    assert sampler.epoch_size == 718


def test_an_iterable_data_set_chooses_its_samples_itself(digits_cfg, register):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(100))

    register(stream=Stream())
    loader = train_loader(digits_cfg("DATASETS.TRAIN", "[stream]", "SOLVER.IMS_PER_BATCH", 4))
    assert next(iter(loader)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("DATASETS.TRAIN_REPEAT_FACTOR", "[[digits_tset, 2.0]]"), "names digits_tset, not in"),
        (("DATASETS.TRAIN_REPEAT_FACTOR", "[2.0]"), r"like \[\[digits_train, 2.0\]\], got \[2.0\]"),
        (("DATASETS.TRAIN_REPEAT_FACTOR", "[[digits_train, x]]"), "is like .*, got"),
        (("DATASETS.TRAIN_REPEAT_FACTOR", "[[digits_train, 0]]"), "FACTOR is .* leaves no samples"),
        (("DATASETS.TRAIN_REPEAT_FACTOR", "[[digits_train, -1]]"), "FACTOR of digits_train is -1"),
        (("DATASETS.TRAIN_REPEAT_FACTOR", "[[digits_train, .nan]]"), "digits_train is nan; expec"),
        (("DATASETS.TRAIN", "[3]"), "DATASETS.TRAIN: expected the name of a data set, got 3"),
        (("DATALOADER.SAMPLER_TRAIN", "math:sqrt"), "SAMPLER_TRAIN: math:sqrt is no class"),
        (
            (
                "DATASETS.TRAIN_REPEAT_FACTOR", "[[digits_train, 2.0]]",
                "DATALOADER.SAMPLER_TRAIN", "RandomSubsetTrainingSampler",
            ),
            "does not go with the sampler RandomSubsetTrainingSampler",
        ),
        (
            (
                "DATALOADER.RANDOM_SUBSET_RATIO", 1e-9,
                "DATALOADER.SAMPLER_TRAIN", "RandomSubsetTrainingSampler",
            ),
            "DATALOADER.RANDOM_SUBSET_RATIO: .* leaves none: use a larger ratio",
        ),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(digits_cfg, options, message):
    with pytest.raises(ConfigError, match=message):
        train_loader(digits_cfg(*options))


def test_one_of_several_data_sets_may_be_left_out_by_its_factor(digits_cfg, register):
    register(small=[0, 1], large=[2, 3, 4])
    factors = ("DATASETS.TRAIN_REPEAT_FACTOR", "[[small, 0]]", "SOLVER.IMS_PER_BATCH", 3)
    loader = train_loader(digits_cfg("DATASETS.TRAIN", "[small, large]", *factors))
    assert drawn(loader, 1) == {2: 1, 3: 1, 4: 1}


def test_an_unknown_mapper_is_answered_with_the_nearest(digits_cfg):
    with pytest.raises(ImportError, match=r"DATALOADER.MAPPER: .*did you mean augment"):
        train_loader(digits_cfg("DATALOADER.MAPPER", "engine.zoo.digits:augmant"))


@pytest.mark.parametrize("key", ["MAPPER", "COLLATE", "TRAIN_LOADER", "SAMPLER_TRAIN"])
def test_what_cannot_be_called_is_refused_with_its_key(digits_cfg, key):
    with pytest.raises(ImportError, match=f"DATALOADER.{key}: 'math:pi' is no class or function"):
        train_loader(digits_cfg(f"DATALOADER.{key}", "math:pi"))


@pytest.mark.parametrize(("key", "value"), [("TEST", "[3]"), ("TEST_GROUPS", "{a: 3}")])
def test_a_test_set_is_named_by_text(digits_cfg, key, value):
    with pytest.raises(ConfigError, match=f"DATASETS.{key}: expected the name of a data set"):
        from_config.check_test_sets(digits_cfg(f"DATASETS.{key}", value))


def test_the_members_of_a_group(digits_cfg):
    cfg = digits_cfg("DATASETS.TEST_GROUPS", "{both: [a, b], one: c, none: []}")
    assert from_config.members_of(cfg, "both") == ["a", "b"]
    assert from_config.members_of(cfg, "one") == ["c"]
    assert from_config.members_of(cfg, "digits_test") == ["digits_test"]
    with pytest.raises(ConfigError, match=r"the group 'none' of .*TEST_GROUPS .*, got \[\]: name"):
        from_config.members_of(cfg, "none")


def test_the_data_of_the_loader_is_that_of_the_catalog(digits_cfg):
    assert len(train_loader(digits_cfg()).dataset) == len(get_dataset("digits_train"))


def test_a_mapper_of_the_caller_takes_the_place_of_the_configs(digits_cfg):
    cfg = digits_cfg("DATALOADER.MAPPER", "nowhere:f", "DATALOADER.TEST_MAPPER", "nowhere:f")

    def only_label(sample):
        return int(sample["label"])

    assert next(iter(train_loader(cfg, mapper=only_label))).ndim == 1
    assert next(iter(loader_of_test_set(cfg, "digits_test", mapper=only_label))).ndim == 1


def test_a_collate_function_may_leave_batches_the_lists_they_are(digits_cfg):
    collate = ("DATALOADER.COLLATE", "engine.data:trivial_batch_collator")
    cfg = digits_cfg(*collate, "SOLVER.IMS_PER_BATCH", 4, "TEST.BATCH_SIZE", 3)
    for loader, size in ((train_loader(cfg), 4), (loader_of_test_set(cfg, "digits_test"), 3)):
        batch = next(iter(loader))
        assert [type(sample) for sample in batch] == [dict] * size


def test_a_builder_of_the_users_own_need_not_know_collate_functions(digits_cfg):
    @TRAIN_LOADER_REGISTRY.register()
    def build_short_list(dataset, **options):
        return sorted(options)

    cfg = digits_cfg("DATALOADER.TRAIN_LOADER", "build_short_list")
    assert "collate_fn" not in train_loader(cfg)
