from engine.config import config_differences, get_cfg


def test_equal_configs_have_no_differences():
    assert config_differences(get_cfg().dump(), get_cfg().dump()) == ""


def test_each_setting_that_differs_is_a_row_with_both_values():
    saved, now = get_cfg(), get_cfg()
    saved.SOLVER.BASE_LR = 0.1
    saved.MODEL.ARGS.width = 8
    now.SOLVER.MAX_ITER = "3 epoch"
    rows = [line.split() for line in config_differences(saved.dump(), now.dump()).splitlines()[2:]]
    assert rows == [
        ["MODEL.ARGS.width", "8", "-"],
        ["SOLVER.BASE_LR", "0.1", "0.001"],
        ["SOLVER.MAX_ITER", "40000", "3", "epoch"],
    ]
