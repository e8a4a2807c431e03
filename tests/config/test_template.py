from engine.config import config_template, get_cfg


def test_the_template_is_a_config_file_with_the_defaults(tmp_path):
    file = tmp_path / "template.yaml"
    file.write_text(config_template())
    cfg = get_cfg()
    cfg.merge_from_list(["SEED=7", "SOLVER.STEPS=[1]", "EMA.START=2 epoch"])
    cfg.merge_from_file(str(file))
    assert cfg == get_cfg()


def test_every_key_has_its_comment_above_it():
    lines = [line for line in config_template().splitlines() if line]
    keys = [i for i, line in enumerate(lines) if not line.lstrip().startswith("#")]
    assert len(keys) == len(list(get_cfg().keys_of_tree()))
    bare = [lines[i] for i in keys if not lines[i - 1].lstrip().startswith("# ")]
    assert bare == []


def test_comments_are_indented_with_their_keys():
    template = config_template()
    assert '  # Length of training: iterations, or "90 epoch".\n  MAX_ITER: 40000\n' in template
    assert "\n\n# Optimization.\nSOLVER:\n" in template
