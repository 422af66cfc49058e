"""The plan of benchmarks.controls.convolutions: its cells, its controls, and what decides on the learning rate."""

import io
import tarfile


def test_every_cell_has_a_file_of_its_own_and_all_seeds_of_all_rows_are_there():
    from benchmarks.controls.convolutions_plan import Cell, cells, rate_rows, rows

    names = [Cell(row, 0).name for row in rate_rows()] + [cell.name for cell in cells()]
    assert len(set(names)) == len(names)
    assert sorted(cell.name for cell in cells()) == sorted(Cell(row, seed).name for row in rows() for seed in row.seeds)
    assert all(0 in row.seeds for row in rows())


def test_only_what_a_narrow_network_has_less_of_differs_from_the_whole_one():
    from benchmarks.controls.convolutions_plan import RESNET, THIN

    assert THIN.settings(4) == THIN.settings() | {"model.dense": "[128,128]"}
    assert RESNET.settings(2) == RESNET.settings() | {"model.inner": "[8,16,32]"}


def test_the_rate_of_a_family_is_the_best_in_the_mean_and_unknown_while_a_cell_is_missing():
    from benchmarks.controls.convolutions_plan import RATES, best_rate, rate_rows

    methods = list(dict.fromkeys(row.method for row in rate_rows() if row.network.family == "vgg"))
    best_of_one = {RATES[0]: 0.9, RATES[1]: 0.5, RATES[2]: 0.1}  # the others agree on another one
    others = {RATES[0]: 0.1, RATES[1]: 0.5, RATES[2]: 0.4}

    def accuracy(cell):
        return (best_of_one if cell.row.method == methods[0] else others)[cell.row.rate]

    assert best_rate("vgg", accuracy) == RATES[1]
    assert best_rate("vgg", lambda cell: None if cell.row.method == methods[-1] else accuracy(cell)) is None


def test_no_image_for_testing_decides_on_the_rate_and_none_is_on_both_sides():
    from benchmarks.controls.convolutions import TRAIN, VALIDATION
    from benchmarks.controls.small_images import take_images

    raw, made = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name in [f"set/{part}/cat/{number:03}.jpg" for part in ("train", "test") for number in range(100)]:
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()))
    raw.seek(0)
    with tarfile.open(fileobj=raw) as source, tarfile.open(fileobj=made, mode="w") as target:
        take_images(source, target, TRAIN, VALIDATION, test_from="train")
    made.seek(0)
    with tarfile.open(fileobj=made) as archive:
        found = {one.name: archive.extractfile(one).read().decode() for one in archive.getmembers()}
    train = {content for name, content in found.items() if "/train/" in name}
    test = {content for name, content in found.items() if "/test/" in name}
    assert (len(train), len(test)) == (20, 4) and not train & test
    assert all("/train/" in content for content in train | test)
