from plimsoll.base.gpus import capability, named


def test_names():
    names = {
        "H200": (9, 0),
        "NVIDIA H100 80GB HBM3": (9, 0),
        "A100-80GB": (8, 0),
        "A10": (8, 6),
        "a10g": (8, 6),
        "L4": (8, 9),
        "RTX 4090": (8, 9),
        "GeForce RTX 3090": (8, 6),
        "T4": (7, 5),
        "B200": (10, 0),
        "RTX 5090": (12, 0),
        "V100": (7, 0),
        "4090": (8, 9),
        "H100": (9, 0),
        "B300": (10, 3),
        "NVIDIA A800-SXM4-80GB": (8, 0),
        "Tesla P100-PCIE-16GB": (6, 0),
    }
    assert {name: capability(name) for name in names} == names
    assert capability("22GiB") is None


def test_what_a_script_is_told_of_a_card():
    found = named("RTX 4090")
    assert found.multiprocessors == 128 and 23 << 30 < found.memory < 24 << 30
