import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events.media import as_image, as_samples, as_uint8, summarize_histogram

PICTURE = torch.arange(3 * 8 * 6, dtype=torch.uint8).reshape(3, 8, 6) + 100  # CHW


def written(image) -> torch.Tensor:
    """The image as writers get it."""
    return as_uint8(as_image("cat", image))


def histogram(values, bins=10) -> dict:
    return summarize_histogram("weights", as_samples("weights", values), bins, step=7)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("container", ["torch", "numpy"])
@pytest.mark.parametrize("kind", ["uint8", "float01", "float255", "double01", "half01"])
def test_a_picture_comes_out_the_same_however_it_was_put(layout, container, kind):
    image = PICTURE if layout == "CHW" else PICTURE.permute(1, 2, 0)
    image = {
        "uint8": lambda: image,
        "float01": lambda: image / 255,
        "float255": lambda: image.float(),
        "double01": lambda: image.double() / 255,
        "half01": lambda: (image / 255).half(),
    }[kind]()
    out = written(image if container == "torch" else image.numpy())
    assert out.dtype == torch.uint8
    assert torch.equal(out, PICTURE)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_grey_rgb_and_rgba_are_taken_in_both_layouts(channels):
    assert written(torch.zeros(channels, 8, 6)).shape == (channels, 8, 6)
    assert written(torch.zeros(8, 6, channels)).shape == (channels, 8, 6)


def test_where_both_layouts_are_possible_it_is_chw():
    assert written(torch.zeros(3, 6, 4)).shape == (3, 6, 4)


@pytest.mark.parametrize("shape", [(), (8,), (8, 6), (2, 8, 6), (8, 6, 5), (1, 3, 8, 6)])
def test_a_shape_that_is_no_image_is_refused(shape):
    with pytest.raises(ValueError, match=r"image 'cat' must have the shape CHW or HWC .* got \("):
        as_image("cat", torch.zeros(shape))


@pytest.mark.parametrize("shape", [(3, 0, 6), (8, 0, 3)])
def test_an_image_without_pixels_is_refused(shape):
    with pytest.raises(ValueError, match="image 'cat' is empty"):
        as_image("cat", torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_a_dtype_that_is_no_image_is_refused(dtype):
    with pytest.raises(ValueError, match=f"image 'cat' must be uint8, or float .* got {dtype}"):
        as_image("cat", torch.zeros(3, 8, 6, dtype=dtype))


def test_an_image_is_a_copy_of_that_moment():
    image = PICTURE.clone()
    kept = as_image("cat", image)
    image.zero_()
    assert torch.equal(as_uint8(kept), PICTURE)


def test_numpy_views_that_torch_cannot_share_are_images_too():
    flipped = PICTURE.permute(1, 2, 0).numpy()[:, :, ::-1]  # from BGR to RGB
    assert torch.equal(written(flipped), PICTURE.flip(0))
    read_only = PICTURE.numpy().copy()
    read_only.flags.writeable = False  # as what PIL hands out
    assert torch.equal(written(read_only), PICTURE)


def test_an_image_that_requires_grad_is_kept_without_its_graph():
    assert not as_image("cat", torch.rand(3, 8, 6, requires_grad=True) * 1.0).requires_grad


def test_pixels_out_of_range_or_nan_stay_within_a_byte():
    image = torch.tensor([[[-0.5, 0.0, 1.0, 1.2, math.nan]]])
    assert written(image).flatten().tolist() == [0, 0, 255, 255, 0]
    assert written(torch.tensor([[[-9.0, 300.0, 128.4]]])).flatten().tolist() == [0, 255, 128]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=30))
def test_no_shade_is_lost_by_going_through_floats(shades):
    grey = torch.tensor([[shades]], dtype=torch.uint8)
    assert torch.equal(written(grey / 255), grey)
    if max(shades) > 1:
        assert torch.equal(written(grey.float()), grey)


@pytest.mark.parametrize(
    "values",
    [
        torch.arange(20.0).reshape(4, 5),
        torch.arange(20).reshape(2, 2, 5),
        torch.arange(20, dtype=torch.uint8),
        torch.arange(20.0, dtype=torch.bfloat16),
        torch.arange(20.0, requires_grad=True),
        np.arange(20).reshape(4, 5),
        np.arange(20)[::-1],
    ],
    ids=lambda values: f"{type(values).__name__} {values.dtype} {tuple(values.shape)}",
)
def test_a_histogram_counts_every_element(values):
    summary = histogram(values)
    assert (summary["tag"], summary["global_step"]) == ("weights", 7)
    assert (summary["min"], summary["max"]) == (0.0, 19.0)
    assert summary["num"] == sum(summary["bucket_counts"]) == 20
    assert summary["sum"] == 190.0
    assert summary["sum_squares"] == sum(i * i for i in range(20))
    assert summary["bucket_counts"] == [2.0] * 10
    assert summary["bucket_limits"] == pytest.approx([1.9 * i for i in range(1, 11)])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(width=32), min_size=1, max_size=50),
    st.integers(1, 40),
)
def test_a_histogram_holds_all_finite_values_and_nothing_else(values, bins):
    finite = [value for value in values if math.isfinite(value)]
    summary = histogram(torch.tensor(values, dtype=torch.float32), bins)
    assert summary["num"] == sum(summary["bucket_counts"]) == len(finite)
    assert len(summary["bucket_limits"]) == len(summary["bucket_counts"]) == bins
    assert summary["bucket_limits"] == sorted(summary["bucket_limits"])
    if finite:
        assert (summary["min"], summary["max"]) == (min(finite), max(finite))
        assert summary["bucket_limits"][-1] >= max(finite)


def test_booleans_make_a_histogram_of_zeros_and_ones():
    summary = histogram(torch.tensor([True, False, True]), bins=2)
    assert summary["bucket_counts"] == [1.0, 2.0]


@pytest.mark.parametrize("values", [torch.zeros(0), torch.zeros(3, 0), torch.tensor([1j])])
def test_a_histogram_of_nothing_or_of_complex_numbers_is_refused(values):
    with pytest.raises(ValueError, match="histogram 'weights' needs at least one real value"):
        as_samples("weights", values)


def test_a_histogram_is_of_the_values_of_that_moment():
    weights = torch.ones(4)
    samples = as_samples("weights", weights)
    weights.zero_()
    assert samples.tolist() == [1.0] * 4
