from engine.utils.suggest import did_you_mean, hint_at


def test_the_close_name_is_named():
    assert did_you_mean("BASE_LRR", ["BASE_LR", "MAX_ITER"]) == "did you mean BASE_LR?"


def test_case_does_not_matter():
    assert did_you_mean("adamw", ["SGD", "AdamW"]).startswith("did you mean AdamW")


def test_nothing_close_says_nothing():
    assert did_you_mean("zebra", ["BASE_LR"]) == ""


def test_a_hint_ends_a_message():
    assert hint_at("adamw", ["SGD", "AdamW"]) == "; did you mean AdamW?"
    assert hint_at("zebra", ["BASE_LR"]) == ""
