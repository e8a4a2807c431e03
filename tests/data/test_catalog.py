import copy
import pickle
from functools import partial

import pytest
from torch.utils.data import ConcatDataset, IterableDataset

from engine.data import (
    DatasetCatalog,
    DatasetFromList,
    MapDataset,
    Metadata,
    MetadataCatalog,
    SampleError,
    get_dataset,
)


@pytest.fixture
def numbers():
    DatasetCatalog.register("numbers_train", lambda: [1, 2])
    DatasetCatalog.register("numbers_test", lambda: [3])
    yield
    for name in ("numbers_train", "numbers_test"):
        DatasetCatalog.remove(name)


def test_a_registered_data_set_is_found_by_name(numbers):
    assert DatasetCatalog.get("numbers_train") == [1, 2]
    assert "numbers_train" in DatasetCatalog
    assert DatasetCatalog.list() == sorted(DatasetCatalog)


def test_a_removed_data_set_is_gone():
    DatasetCatalog.register("gone", list)
    DatasetCatalog.remove("gone")
    assert "gone" not in DatasetCatalog.list()


def test_an_unknown_name_is_answered_with_the_nearest(numbers):
    with pytest.raises(KeyError, match=r"'number_train'; did you mean numbers_train"):
        DatasetCatalog.get("number_train")


def test_a_name_is_registered_once(numbers):
    with pytest.raises(ValueError, match=r"call DatasetCatalog.remove\('numbers_test'\) first"):
        DatasetCatalog.register("numbers_test", list)


def test_what_detectron2_asserts_can_be_caught_as_such(numbers, metadata):
    with pytest.raises(AssertionError, match="registered already"):
        DatasetCatalog.register("numbers_test", list)
    metadata.classes = ["a"]
    with pytest.raises(AssertionError, match="cannot become"):
        metadata.classes = ["b"]


def test_a_data_set_itself_cannot_be_registered():
    with pytest.raises(TypeError, match=r"'numbers' must be registered with a function.*got list"):
        DatasetCatalog.register("numbers", [1, 2])


def test_several_data_sets_become_one(numbers):
    assert list(get_dataset(["numbers_train", "numbers_test"])) == [1, 2, 3]
    assert get_dataset("numbers_test") == get_dataset(["numbers_test"]) == [3]
    with pytest.raises(ValueError, match="no data set is named"):
        get_dataset([])


class Stream(IterableDataset):
    def __init__(self, samples: list) -> None:
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


def test_iterable_data_sets_follow_each_other():
    for name, samples in {"first": [1, 2], "second": [3]}.items():
        DatasetCatalog.register(name, partial(Stream, samples))
    try:
        assert list(get_dataset(["first", "second"])) == [1, 2, 3]
    finally:
        DatasetCatalog.remove("first")
        DatasetCatalog.remove("second")


@pytest.fixture
def metadata():
    yield MetadataCatalog.get("numbers_train")
    MetadataCatalog.remove("numbers_train")


def test_metadata_are_kept_by_name(metadata):
    metadata.classes = ["odd", "even"]
    assert MetadataCatalog.get("numbers_train").classes == ["odd", "even"]
    assert MetadataCatalog.get("numbers_train").set(source="here").get("source") == "here"
    assert metadata.get("absent", 5) == 5
    assert metadata.as_dict() == {
        "name": "numbers_train",
        "classes": ["odd", "even"],
        "source": "here",
    }
    assert "numbers_train" in MetadataCatalog.list()


def test_a_value_once_set_cannot_change(metadata):
    metadata.set(classes=["a"]).set(classes=["a"])
    with pytest.raises(ValueError, match=r"'classes' of data set 'numbers_train' is \['a'\]"):
        metadata.classes = ["b"]


def test_an_unknown_key_is_answered_with_the_nearest(metadata):
    metadata.classes = ["a"]
    with pytest.raises(AttributeError, match=r"no 'clases'; did you mean classes\?"):
        metadata.clases  # noqa: B018


def test_a_mistyped_data_set_is_suspected_where_nothing_is_known_of_it():
    with pytest.raises(AttributeError, match=r"no 'classes'; did you mean digits_t.*nothing"):
        Metadata("digits_trian").classes  # noqa: B018


def test_metadata_can_be_copied_and_pickled():
    metadata = Metadata("x").set(classes=["a"])
    for clone in (copy.deepcopy(metadata), pickle.loads(pickle.dumps(metadata))):
        assert clone.as_dict() == metadata.as_dict()


def test_an_error_names_the_sample_by_its_data_set_and_its_index_there():
    def refuse_two(sample):
        return 1 / (sample - 2)

    DatasetCatalog.register("a_list", lambda: [0, 1, 3])
    DatasetCatalog.register("two_ranges", lambda: ConcatDataset([range(10, 12), range(4)]))
    try:
        joined = MapDataset(get_dataset(["a_list", "two_ranges"]), refuse_two)
        alone = MapDataset(DatasetFromList(get_dataset("a_list")), lambda sample: 1 / sample)
    finally:
        DatasetCatalog.remove("a_list")
        DatasetCatalog.remove("two_ranges")
    with pytest.raises(SampleError, match=r"^sample 4 of two_ranges: ZeroDivisionError"):
        joined[7]
    with pytest.raises(SampleError, match=r"^sample 0 of a_list: ZeroDivisionError"):
        alone[0]
