"""A run of DefaultTrainer from its config to its files: outputs, resume, evaluation, bad input."""

import json
import multiprocessing

import pytest
import torch
import yaml
from torch.utils.data import IterableDataset

from engine.config import ConfigError, get_cfg
from engine.data import DatasetCatalog, MetadataCatalog, get_dataset
from engine.defaults import DefaultTrainer
from engine.evaluation import DatasetEvaluator
from engine.hooks import CallbackHook
from engine.modeling import build_model

pytestmark = pytest.mark.usefixtures("log")


def train(cfg, resume=False, kill_at=None, weights_seed=0):
    """Run the config; with `kill_at`, an exception ends it in that iteration."""

    def kill(trainer):
        if trainer.iter == kill_at:
            raise InterruptedError("killed")

    torch.manual_seed(weights_seed)
    trainer = DefaultTrainer(cfg)
    trainer.register_hooks([CallbackHook(before_step=kill)])
    trainer.resume_or_load(resume)
    trainer.train()
    return trainer


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]


def assert_same_weights(first, second):
    for name, value in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], value), name


@pytest.fixture
def register():
    """Registers a data set for the time of a test."""
    registered = []

    def add(name, data, **metadata):
        DatasetCatalog.register(name, lambda: data)
        MetadataCatalog.get(name).set(**metadata)
        registered.append(name)

    yield add
    for name in registered:
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)


# --- resuming -----------------------------------------------------------------------------------

EXTRAS = (
    "EMA.ENABLED=True",
    "SOLVER.ACCUMULATE=2",
    "SOLVER.WARMUP_ITERS=5",
    "SOLVER.CLIP_GRADIENTS.ENABLED=True",
    "DATALOADER.MAPPER=engine.zoo.digits:augment",
    "CHECKPOINT.BEST_METRIC=+classification/accuracy",
    "TEST.EVAL_PERIOD=4",
)


@pytest.mark.parametrize("options", [(), EXTRAS], ids=["plain", "with everything on"])
def test_a_resumed_run_is_the_uninterrupted_run(digits_cfg, tmp_path, options, log):
    straight = train(digits_cfg(*options, "OUTPUT_DIR", str(tmp_path / "straight")))
    cfg = digits_cfg(*options, "OUTPUT_DIR", str(tmp_path / "killed"))
    with pytest.raises(InterruptedError):
        train(cfg, kill_at=17)
    assert lines(tmp_path / "killed")[-1]["iteration"] >= 16
    log.clear()
    resumed = train(cfg, resume=True, weights_seed=99)  # those of the new model must not matter

    assert "Resumed from" in log.text
    assert "model_0000009.pth" in log.text
    assert resumed.start_iter == 10
    assert_same_weights(straight.model, resumed.model)
    assert resumed.last_eval_results == straight.last_eval_results
    iterations = [line["iteration"] for line in lines(tmp_path / "killed")]
    assert iterations == [line["iteration"] for line in lines(tmp_path / "straight")]
    assert iterations[:20] == list(range(20))
    for one, other in zip(lines(tmp_path / "straight"), lines(tmp_path / "killed"), strict=True):
        kept = {name for name in one if "time" not in name and "eta" not in name}
        assert {name: one[name] for name in kept} == {name: other[name] for name in kept}


def test_a_resumed_run_with_no_seed_keeps_the_order_it_drew(digits_cfg, tmp_path):
    cfg = digits_cfg("SEED", -1)
    first = train(cfg)
    torch.manual_seed(5)
    again = DefaultTrainer(cfg)
    assert again.data_loader.seed != first.data_loader.seed
    again.resume_or_load(resume=True)
    assert again.data_loader.seed == first.data_loader.seed
    assert again.data_loader.sampler.seed == first.data_loader.sampler.seed


def test_resume_with_nothing_to_resume_says_where_it_looked_and_starts_fresh(
    digits_cfg, tmp_path, log
):
    trainer = train(digits_cfg("SOLVER.MAX_ITER", 2), resume=True)
    assert f"Nothing to resume: no checkpoint in {tmp_path / 'run'}" in log.text
    assert (trainer.start_iter, trainer.iter) == (0, 2)


def test_a_finished_run_that_is_resumed_does_nothing(digits_cfg, tmp_path, log):
    cfg = digits_cfg("TEST.EXPECTED_RESULTS", "[[classification, accuracy, 50, 50]]")
    train(cfg)
    before = (tmp_path / "run" / "metrics.json").read_text()
    log.clear()
    trainer = train(cfg, resume=True)
    assert trainer.last_eval_results == {}
    assert "Nothing to train: iteration 20 of 20 is reached" in log.text
    assert (tmp_path / "run" / "metrics.json").read_text() == before


def test_detectron2s_name_of_the_last_results_is_there_after_an_evaluation(digits_cfg):
    trainer = DefaultTrainer(digits_cfg("SOLVER.MAX_ITER", 2))
    assert not hasattr(trainer, "_last_eval_results")
    assert trainer.last_eval_results == {}
    assert trainer.train() == trainer._last_eval_results == trainer.last_eval_results != {}
    trainer._last_eval_results = {"of": "a subclass"}
    assert trainer.last_eval_results == {"of": "a subclass"}


def test_a_finished_run_can_be_trained_further(digits_cfg, tmp_path):
    train(digits_cfg())
    trainer = train(digits_cfg("SOLVER.MAX_ITER", 25), resume=True)
    assert (trainer.start_iter, trainer.iter) == (20, 25)
    with pytest.raises(ValueError, match=r"SOLVER.MAX_ITER is 24, but 25 iterations .*/run: raise"):
        train(digits_cfg("SOLVER.MAX_ITER", 24), resume=True)
    assert [line["iteration"] for line in lines(tmp_path / "run")][:25] == list(range(25))


def test_auto_resume_resumes_without_being_asked(digits_cfg):
    train(digits_cfg("SOLVER.MAX_ITER", 10))
    trainer = train(digits_cfg("CHECKPOINT.AUTO_RESUME", True), resume=False)
    assert trainer.start_iter == 10


def test_without_resume_only_the_weights_are_taken(digits_cfg, tmp_path):
    first = train(digits_cfg())
    weights = str(tmp_path / "run" / "model_final.pth")
    trainer = DefaultTrainer(digits_cfg("MODEL.WEIGHTS", weights))
    trainer.resume_or_load(resume=False)
    assert_same_weights(first.model, trainer.model)
    assert (trainer.start_iter, trainer.optimizer.state) == (0, {})


# --- evaluation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("EMA.ENABLED=True", "EMA.DECAY=0.9")])
def test_evaluating_the_final_checkpoint_gives_the_results_of_the_run(
    digits_cfg, tmp_path, options
):
    cfg = digits_cfg(*options)
    trained = train(cfg).last_eval_results
    model = build_model(cfg)
    DefaultTrainer.load_weights(cfg, model, resume=True)
    assert DefaultTrainer.test(cfg, model) == trained
    stored = json.loads((tmp_path / "run" / "results.json").read_text())
    assert stored == {"digits_test": trained}


def test_evaluations_use_the_average_of_the_weights(digits_cfg, tmp_path):
    averaged = train(digits_cfg("EMA.ENABLED=True", "EMA.DECAY=0.9"))
    plain = DefaultTrainer.test(digits_cfg(), averaged.model)
    assert plain != averaged.last_eval_results
    assert plain == train(digits_cfg()).last_eval_results  # training itself is left alone


def test_groups_of_test_sets_have_their_own_results(digits_cfg):
    cfg = digits_cfg("DATASETS.TEST_GROUPS", "{all: [digits_train, digits_test], one: digits_test}")
    results = DefaultTrainer.test(cfg, build_model(cfg))
    assert list(results) == ["digits_test", "all", "one"]
    assert results["one"] == results["digits_test"]


def test_the_loss_of_a_group_is_that_of_all_its_samples(digits_cfg):
    cfg = digits_cfg(
        "DATASETS.TEST", "[digits_test, digits_train]",
        "DATASETS.TEST_GROUPS", "{all: [digits_train, digits_test]}",
    )  # fmt: skip
    results = DefaultTrainer.test(cfg, build_model(cfg))
    loss = {name: result["classification"]["loss"] for name, result in results.items()}
    mean = (loss["digits_test"] * 360 + loss["digits_train"] * 1437) / 1797
    assert loss["all"] == pytest.approx(mean, rel=1e-5)


def test_validation_sets_are_for_the_run_and_test_sets_for_its_end(digits_cfg, tmp_path):
    trainer = train(digits_cfg("DATASETS.VAL", "[digits_train]", "TEST.EVAL_PERIOD", 10))
    model = trainer.model
    on_test = DefaultTrainer.test(digits_cfg(), model)
    on_train = DefaultTrainer.test(digits_cfg("DATASETS.TEST", "[digits_train]"), model)
    assert trainer.last_eval_results == on_test
    assert trainer.storage.count_samples("classification/loss") == 2
    assert trainer.storage.latest()["classification/loss"][0] == on_train["classification"]["loss"]


def test_with_validation_sets_alone_their_results_are_those_of_the_run(digits_cfg):
    trainer = train(digits_cfg("DATASETS.VAL", "[digits_train]", "DATASETS.TEST", "[]"))
    assert trainer.last_eval_results["classification"]["accuracy"] > 0


def test_the_average_of_the_weights_is_also_tested_after_validation(digits_cfg):
    options = "EMA.ENABLED=True", "EMA.DECAY=0.9"
    validated = train(digits_cfg("DATASETS.VAL", "[digits_train]", *options))
    tested = train(digits_cfg(*options))
    assert validated.last_eval_results == tested.last_eval_results
    assert_same_weights(validated.model, tested.model)  # taken back afterwards


def test_raw_predictions_are_stored_on_request(digits_cfg, tmp_path):
    cfg = digits_cfg("TEST.SAVE_PREDICTIONS", True)
    results = DefaultTrainer.test(cfg, build_model(cfg))
    saved = torch.load(tmp_path / "run" / "predictions" / "digits_test.pt", weights_only=True)
    right = (saved["label"] == saved["predicted"]).float().mean().item() * 100
    assert right == pytest.approx(results["classification"]["accuracy"])


def test_a_test_set_without_an_evaluator_is_named_and_passed_over(digits_cfg, register, log):
    register("nameless", get_dataset("digits_test"))
    cfg = digits_cfg("DATASETS.TEST", "[nameless, digits_test]")
    results = DefaultTrainer.test(cfg, build_model(cfg))
    assert results["nameless"] == {}
    assert results["digits_test"]["classification"]
    assert "nameless is not evaluated" in log.text
    assert "override build_evaluator" in log.text


class CountsSamples(DatasetEvaluator):
    def __init__(self, cfg, dataset_name):
        self.name = f"{dataset_name}, batches of {cfg.TEST.BATCH_SIZE}"

    def reset(self):
        self.count = 0

    def process(self, inputs, outputs):
        self.count += len(inputs["label"])

    def evaluate(self):
        return {self.name: {"samples": self.count}}


def test_a_data_set_names_an_evaluator_of_ones_own(digits_cfg, register):
    register("mine", get_dataset("digits_test"), evaluator_type=f"{__name__}:CountsSamples")
    cfg = digits_cfg("DATASETS.TEST", "[mine]", "TEST.BATCH_SIZE", 100)
    results = DefaultTrainer.test(cfg, build_model(cfg))
    assert results == {"mine, batches of 100": {"samples": 360}}


class DrawsNumbers(CountsSamples):
    def evaluate(self):
        return {"drawn": {"number": torch.rand(()).item()}}


@pytest.mark.parametrize("seed", [-1, 3])
def test_evaluations_with_a_seed_draw_the_same_and_training_its_own(digits_cfg, register, seed):
    register("mine", get_dataset("digits_test"), evaluator_type=f"{__name__}:DrawsNumbers")
    cfg = digits_cfg("DATASETS.TEST", "[mine]", "TEST.SEED", seed, "TEST.EVAL_PERIOD", 5)
    undisturbed = []

    class Trainer(DefaultTrainer):
        @classmethod
        def test(cls, cfg, model, evaluators=None):
            before = torch.get_rng_state()
            results = super().test(cfg, model, evaluators)
            undisturbed.append(torch.equal(torch.get_rng_state(), before))
            return results

    trainer = Trainer(cfg)
    trainer.train()
    drawn = {value for value, _ in trainer.storage.history("drawn/number").values()}
    assert len(drawn) == (4 if seed < 0 else 1)
    assert undisturbed == [seed >= 0] * 4


def test_results_as_expected_let_the_run_end_well(digits_cfg, log):
    train(digits_cfg("TEST.EXPECTED_RESULTS", "[[classification, loss, 2, 2]]"))
    assert "Results are as expected" in log.text


def test_other_results_than_expected_end_the_process_with_1(digits_cfg, log):
    cfg = digits_cfg("TEST.EXPECTED_RESULTS", "[[classification, accuracy, 200, 1]]")
    with pytest.raises(SystemExit) as exit_info:
        train(cfg)
    assert exit_info.value.code == 1
    assert "Results are not as expected" in log.text
    with pytest.raises(SystemExit):  # as after a restart
        train(cfg, resume=True)


def test_expected_results_without_any_evaluation_end_the_process_with_1(digits_cfg):
    cfg = digits_cfg(
        "TEST.EXPECTED_RESULTS", "[[classification, loss, 2, 2]]",
        "DEFAULT_HOOKS.EvalHook.ENABLED", False,
    )  # fmt: skip
    with pytest.raises(SystemExit):
        train(cfg)


# --- unread settings ----------------------------------------------------------------------------


def unread_lines(log):
    return [r.getMessage() for r in log.records if "nothing has read" in r.getMessage()]


def test_the_workers_of_the_training_data_end_with_the_run(digits_cfg):
    DefaultTrainer(digits_cfg("DATALOADER.NUM_WORKERS", 2, "SOLVER.MAX_ITER", 3)).train()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("options", [(), (*EXTRAS, "DATALOADER.TEST_MAPPER=builtins:dict")])
def test_a_normal_config_has_no_unread_settings(digits_cfg, log, options):
    train(digits_cfg(*options, "CHECKPOINT.AUTO_RESUME=True"), resume=True)
    assert unread_lines(log) == []


def test_settings_that_nothing_reads_are_listed_once(digits_cfg, log):
    cfg = digits_cfg("EMA.DECAY", 0.5, "SOLVER.POWER", 2.0, "DATALOADER.REPEAT_THRESHOLD", 0.1)
    train(cfg)
    (line,) = unread_lines(log)
    assert line.endswith(": DATALOADER.REPEAT_THRESHOLD, SOLVER.POWER, EMA.DECAY")


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (("MODEL.META_ARCHITECTURE", "engine.zoo.digits:DigitMLP"), ImportError, "DigitsMLP"),
        (("MODEL.META_ARCHITECTURE", "DigitMLP"), KeyError, "DigitMLP.*DigitsMLP"),
        (("SOLVER.OPTIMIZER.NAME", "AdamWW"), Exception, "AdamWW.*AdamW"),
        (("DATASETS.TRAIN", "[digit_train]"), KeyError, "digit_train.*digits_train"),
        (("DATASETS.TEST", "[digit_test]"), KeyError, "digit_test.*digits_test"),
        (("DATASETS.TEST_GROUPS", "{a: [digit_test]}"), KeyError, "digit_test.*digits_test"),
        (("DATASETS.TEST_GROUPS", "{digits_test: [digits_train]}"), ValueError, "TEST as well"),
        (("DATASETS.VAL", "[a]", "DATASETS.TEST_GROUPS", "{a: [digits_test]}"), ValueError, "VAL"),
        (("DATASETS.TEST_GROUPS", "{a: []}"), ValueError, "group 'a'.* names no data set"),
        (("DATASETS.TRAIN", "[]"), ValueError, "DATASETS.TRAIN is empty"),
        (("SOLVER.LR_SCHEDULER_NAME", "WarmupCosine"), Exception, "WarmupCosineLR"),
        (("SOLVER.NONFINITE", "skp"), ValueError, "skip"),
        (("SOLVER.MAX_ITER", 0), ValueError, "MAX_ITER must be at least 1"),
        (("DATALOADER.SAMPLER_TRAIN", "TrainingSample"), KeyError, "TrainingSampler"),
        (("DATALOADER.TRAIN_LOADER", "build_loader"), KeyError, "build_train_loader"),
        (("MODEL.ARGS.hiden", 3), ValueError, "did you mean hidden"),
    ],
)
def test_what_is_not_there_is_named_at_the_start(digits_cfg, options, error, message):
    import engine.zoo  # noqa: F401  registers its models

    with pytest.raises(error, match=message):
        DefaultTrainer(digits_cfg(*options))


def test_an_empty_data_set_is_refused(digits_cfg, register):
    register("void", [])
    with pytest.raises(ConfigError, match="the data set void is empty"):
        DefaultTrainer(digits_cfg("DATASETS.TRAIN", "[void]"))


class EmptyStream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize("data", [[], EmptyStream()], ids=["list", "stream"])
def test_an_empty_test_set_is_named(digits_cfg, register, data):
    register("void", data, evaluator_type="classification")
    cfg = digits_cfg("DATASETS.TEST", "[digits_test, void]")
    with pytest.raises(ConfigError, match=r"the data set void.* empty"):
        DefaultTrainer.test(cfg, DefaultTrainer.build_model(cfg))


def test_an_epoch_of_unknown_length_is_refused_as_a_length(digits_cfg, register):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([{"image": torch.zeros(1, 8, 8), "label": 0}] * 64)

    register("stream", Stream())
    with pytest.raises(ValueError, match="'2 epoch' needs the length of an epoch"):
        DefaultTrainer(digits_cfg("DATASETS.TRAIN", "[stream]", "SOLVER.MAX_ITER", "2 epoch"))
    assert train(digits_cfg("DATASETS.TRAIN", "[stream]")).iter == 20


def test_weights_of_another_architecture_are_refused_with_a_table(digits_cfg, tmp_path):
    torch.save({"model": {"other.weight": torch.zeros(3)}}, tmp_path / "other.pth")
    trainer = DefaultTrainer(digits_cfg("MODEL.WEIGHTS", str(tmp_path / "other.pth")))
    with pytest.raises(ValueError, match=r"another architecture[\s\S]*other.weight"):
        trainer.resume_or_load(resume=False)


def test_a_string_where_a_number_belongs_is_refused(digits_cfg):
    with pytest.raises(ConfigError, match=r"command line: SOLVER\.BASE_LR is 'fast'"):
        digits_cfg("SOLVER.BASE_LR", "fast")


def test_the_config_is_kept_frozen_and_the_callers_is_left_alone(digits_cfg):
    cfg = digits_cfg("SOLVER.MAX_ITER", "1 epoch")
    trainer = DefaultTrainer(cfg)
    assert trainer.cfg.is_frozen()
    assert cfg.SOLVER.MAX_ITER == "1 epoch"
    assert get_cfg().SOLVER.MAX_ITER == 40000
    assert yaml.safe_load(trainer.cfg.dump())["SOLVER"]["MAX_ITER"] == 89
