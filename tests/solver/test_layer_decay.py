import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.solver.layer_decay import LayerDecay

VIT = ["cls_token", "patch_embed.weight", "blocks.0.mlp.weight", "blocks.1.mlp.0.weight"]
VIT += ["blocks.1.norm.weight", "norm.weight", "head.0.weight"]


def test_factors_fall_from_the_head_to_the_embeddings():
    assert LayerDecay(rate=0.5).factors(VIT) == {
        "cls_token": 0.125,
        "patch_embed.weight": 0.125,
        "blocks.0.mlp.weight": 0.25,
        "blocks.1.mlp.0.weight": 0.5,
        "blocks.1.norm.weight": 0.5,
        "norm.weight": 1.0,
        "head.0.weight": 1.0,
    }


@pytest.mark.parametrize(
    ("name", "layer", "stage"),
    [
        ("2.weight", "2", "2"),
        ("2.0.weight", "2", "2"),
        ("blocks.2.mlp.0.weight", "blocks.2", "blocks.2"),
        ("encoder.layers.2.0.fn.weight", "encoder.layers.2", "encoder.layers.2"),
        ("transformer.h.11.attn.weight", "transformer.h.11", "transformer.h.11"),
        ("bert.encoder.layer.3.output.weight", "bert.encoder.layer.3", "bert.encoder.layer.3"),
        ("stages.2.5.dwconv.weight", "stages.2.5", "stages.2"),
        ("stages.2.blocks.5.dwconv.weight", "stages.2.blocks.5", "stages.2"),
        ("layers.2.blocks.5.attn.weight", "layers.2.blocks.5", "layers.2"),
        ("layer2.5.conv1.weight", "layer2.5", "layer2"),
        ("features.2.5.block.0.weight", "features.2.5", "features.2"),
        ("head.0.weight", "", ""),
        ("downsample_layers.1.0.weight", "", ""),
        ("conv1.weight", "", ""),
    ],
)
def test_common_names_are_understood(name, layer, stage):
    assert LayerDecay(type="layer_wise")._layer(name) == layer
    assert LayerDecay(type="stage_wise")._layer(name) == stage


def test_stage_wise_gives_one_factor_to_all_blocks_of_a_stage():
    names = ["stem.weight", "stages.0.0.w", "stages.0.1.w", "stages.1.0.w", "head.weight"]
    assert [*LayerDecay(rate=0.5, type="stage_wise").factors(names).values()] == [
        0.125,
        0.25,
        0.25,
        0.5,
        1.0,
    ]


def test_without_a_head_the_last_layer_has_factor_one():
    assert LayerDecay(rate=0.5).factors(["0.weight", "2.weight"]) == {
        "0.weight": 0.5,
        "2.weight": 1.0,
    }


def test_only_what_is_under_the_prefix_decays():
    names = ["neck.weight", "backbone.stem.w", "backbone.layers.0.w", "backbone2.w"]
    names += ["head.layers.0.w"]
    assert LayerDecay(rate=0.5, prefix="backbone").factors(names) == {
        "neck.weight": 1.0,
        "backbone.stem.w": 0.25,
        "backbone.layers.0.w": 0.5,
        "backbone2.w": 1.0,
        "head.layers.0.w": 1.0,
    }


def test_the_number_of_layers_spreads_the_layers_found():
    names = [f"blocks.{i}.w" for i in range(6)]
    ids = LayerDecay(num_layers=3).layer_ids([*names, "head.w"])
    assert [*ids.values()] == [1, 1, 2, 2, 3, 3, 4]


def test_a_pattern_of_ones_own_finds_other_names():
    names = ["body.res2.conv.w", "body.res3.conv.w", "head.w"]
    assert LayerDecay(rate=0.5, pattern=r"\.res\d+\.").factors(names) == {
        "body.res2.conv.w": 0.25,
        "body.res3.conv.w": 0.5,
        "head.w": 1.0,
    }


@given(
    depth=st.integers(1, 30),
    rate=st.floats(0.1, 1.0),
    num_layers=st.integers(0, 40),
    head=st.booleans(),
)
def test_factors_rise_with_depth_to_one(depth, rate, num_layers, head):
    names = ["stem.w", *(f"layers.{i}.w" for i in range(depth)), *(["head.w"] if head else [])]
    factors = [*LayerDecay(rate=rate, num_layers=num_layers).factors(names).values()]
    assert factors == sorted(factors)
    assert factors[-1] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": 0.0}, "above 0 and at most 1, got 0.0"),
        ({"rate": 1.5}, "above 0 and at most 1, got 1.5"),
        ({"num_layers": -1}, "-1; 0 counts them"),
        ({"type": "block_wise"}, "'block_wise', not one of stage_wise, layer_wise"),
        ({"pattern": "("}, r"'\(' is not a regular expression"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LayerDecay(**arguments)


def test_a_model_without_layers_is_refused():
    with pytest.raises(ValueError, match=r"found no layers: none of the names fc.weight.*PREFIX"):
        LayerDecay().factors(["fc.weight", "fc.bias"])


@pytest.mark.parametrize("model", ["", "model."])
def test_a_head_before_the_backbone_and_what_is_beside_it_do_not_decay(model):
    names = ["temperature", f"{model}decode_head.w", f"{model}backbone.patch_embed.w"]
    names += [f"{model}backbone.layers.{number}.w" for number in range(2)]
    factors = LayerDecay(rate=0.5).factors(names)
    assert [*factors.values()] == [1.0, 1.0, 0.125, 0.25, 0.5]


def test_a_head_before_layers_without_a_backbone_does_not_decay():
    names = ["head.w", "logit_scale", "embeddings.w", "encoder.layer.0.w", "encoder.layer.1.w"]
    factors = LayerDecay(rate=0.5).factors(names)
    assert [*factors.values()] == [1.0, 1.0, 0.125, 0.25, 0.5]
