"""Every data set is read from tiny files in the format that its makers publish."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import original_formats as made
import pytest
import torch
from scipy.io import savemat

from fedspill.data.adult import Adult
from fedspill.data.android_permissions import AndroidPermissions
from fedspill.data.celeba_attributes import CelebaAttributes
from fedspill.data.celeba_images import CelebaImages
from fedspill.data.cifar10 import Cifar10
from fedspill.data.cifar100 import Cifar100
from fedspill.data.cop_mode import CopMode
from fedspill.data.digits import Digits
from fedspill.data.fashion_mnist import FashionMnist
from fedspill.data.fer2013 import Fer2013
from fedspill.data.ham10000 import Ham10000
from fedspill.data.image_folder import ImageFolder
from fedspill.data.location30 import Location30
from fedspill.data.matlab import read_matlab
from fedspill.data.mnist import Mnist
from fedspill.data.splits import split
from fedspill.data.yale import Yale
from fedspill.errors import DataMissing, FedspillError, InputRefused, UnknownName, UsageError
from fedspill.registry import entries, make


def as_bytes(x: torch.Tensor) -> np.ndarray:
    return (x * 255).round().to(torch.uint8).numpy()


@pytest.mark.parametrize("name", made.WRITERS)
def test_reads_the_original_format(tmp_path: Path, name: str) -> None:
    folder, write = made.WRITERS[name]
    write(tmp_path / folder)
    dataset = make("datasets", name).load(tmp_path)
    assert dataset.name == name
    assert len(dataset.train) > 0
    assert dataset.train.x.dtype == torch.float32
    assert dataset.train.y.dtype == torch.int64
    assert dataset.train.x.shape[1:] == dataset.test.x.shape[1:]


@pytest.mark.parametrize("entry", entries("datasets"), ids=lambda entry: entry.name)
def test_describes_itself_and_names_what_is_missing(tmp_path: Path, entry) -> None:  # type: ignore[no-untyped-def]
    source = make("datasets", entry.name)
    assert entry.title
    assert entry.about
    assert entry.paper or entry.name in ("csv", "custom", "image-folder")
    assert source.source
    if source.folder:
        with pytest.raises(DataMissing) as caught:
            source.load(tmp_path)
        assert str(tmp_path) in caught.value.problem
        assert "expected" in caught.value.problem
        assert source.source in caught.value.remedy


@pytest.mark.parametrize(
    ("source", "folder", "packed"), [(Mnist(), "mnist", False), (FashionMnist(), "fashion_mnist", True)]
)
def test_idx(tmp_path: Path, source: Mnist | FashionMnist, folder: str, packed: bool) -> None:
    images, labels = made.write_idx(tmp_path / folder, packed=packed)
    dataset = source.load(tmp_path)
    assert dataset.shape == (1, 28, 28)
    assert (as_bytes(dataset.train.x[:, 0]) == images).all()
    assert (dataset.train.y.numpy() == labels).all()
    assert len(dataset.test) == 2
    assert "7 of the original 70,000" in dataset.note


def test_one_absent_file_of_four_is_named(tmp_path: Path) -> None:
    made.write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataMissing, match=r"expected t10k-labels-idx1-ubyte \(each"):
        Mnist().load(tmp_path)


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_cifar10_binary(tmp_path: Path, inner: str) -> None:
    images, labels = made.write_cifar10(tmp_path / "cifar10" / inner)
    dataset = Cifar10().load(tmp_path)
    assert (as_bytes(dataset.train.x) == images).all()
    assert (dataset.train.y.numpy() == labels).all()
    assert len(dataset.test) == 2


def test_cifar100_binary_has_fine_labels(tmp_path: Path) -> None:
    images, fine = made.write_cifar100(tmp_path / "cifar100" / "cifar-100-binary")
    dataset = Cifar100().load(tmp_path)
    assert (as_bytes(dataset.train.x) == images).all()
    assert (dataset.train.y.numpy() == fine).all()
    assert len(dataset.classes) == 100
    assert (dataset.classes[0], dataset.classes[99]) == ("apple", "worm")


def test_normalize_gives_every_channel_mean_0_and_deviation_1_over_the_training_images(tmp_path: Path) -> None:
    made.write_cifar10(tmp_path / "cifar10")
    plain, scaled = Cifar10().load(tmp_path), Cifar10(normalize=True).load(tmp_path)
    assert torch.allclose(scaled.train.x.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(scaled.train.x.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-5)
    mean, deviation = plain.train.x[:, 1].mean(), plain.train.x[:, 1].std()
    assert torch.allclose(scaled.test.x[:, 1], (plain.test.x[:, 1] - mean) / deviation, atol=1e-5)


def test_fer_table_and_its_usages(tmp_path: Path) -> None:
    images = made.write_fer(tmp_path / "fer2013")
    dataset = Fer2013().load(tmp_path)
    assert (as_bytes(dataset.train.x[:, 0]) == images[:2]).all()
    assert dataset.test.y.tolist() == [2, 3]
    assert Fer2013(public_in_train=True).load(tmp_path).train.y.tolist() == [0, 1, 2]


def test_fer_npz_drops_ambiguous_labels(tmp_path: Path) -> None:
    (tmp_path / "fer2013").mkdir()
    x, y = np.zeros((6, 48, 48), np.uint8), np.arange(6, dtype=np.uint8)
    usage, ambiguous = np.array([0, 0, 0, 1, 2, 0], np.uint8), np.array([0, 1, 0, 0, 0, 0], bool)
    np.savez(tmp_path / "fer2013" / "part.npz", x=x, y=y, usage=usage, label_ambiguous=ambiguous)
    dataset = Fer2013().load(tmp_path)
    assert (dataset.train.y.tolist(), dataset.test.y.tolist()) == ([0, 2, 5], [3, 4])


def test_ham_table_keeps_a_lesion_on_one_side(tmp_path: Path) -> None:
    images = made.write_ham(tmp_path / "ham10000").transpose(0, 3, 1, 2)
    dataset = Ham10000().load(tmp_path)
    assert (len(dataset.train), len(dataset.test)) == (28, 12)
    row_of = {image.astype(np.uint8).tobytes(): row for row, image in enumerate(images)}
    sides = [{row_of[image.tobytes()] // 2 for image in as_bytes(part.x)} for part in (dataset.train, dataset.test)]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 20
    assert dataset.train.y.unique().tolist() == [4, 6]


def test_ham_table_must_agree_with_its_metadata(tmp_path: Path) -> None:
    made.write_ham(tmp_path / "ham10000")
    metadata = tmp_path / "ham10000" / "HAM10000_metadata.csv"
    metadata.write_text(metadata.read_text().replace(",mel,", ",nv,", 1))
    with pytest.raises(InputRefused, match="same diagnoses"):
        Ham10000().load(tmp_path)


def test_celeba_lists(tmp_path: Path) -> None:
    attributes = made.write_celeba_lists(tmp_path / "celeba")
    dataset = CelebaAttributes().load(tmp_path)
    assert dataset.columns == ("Male", "Smiling", "Young")
    assert (dataset.train.x.numpy() == attributes[:6, 1:]).all()
    assert (dataset.train.y.numpy() == attributes[:6, 0]).all()
    assert (dataset.test.y.numpy() == attributes[6:, 0]).all()
    assert dataset.train.users is not None
    assert dataset.train.users.tolist() == [100, 100, 101, 101, 102, 102]


def test_celeba_label_and_features_are_options(tmp_path: Path) -> None:
    attributes = made.write_celeba_lists(tmp_path / "celeba", identity=False)
    dataset = CelebaAttributes(label="Young", features=("Smiling", "Attractive")).load(tmp_path)
    assert (dataset.train.x.numpy() == attributes[:6][:, [2, 0]]).all()
    assert (dataset.train.y.numpy() == attributes[:6, 3]).all()
    assert dataset.train.users is None
    with pytest.raises(UnknownName, match="Young"):
        CelebaAttributes(label="Yung").load(tmp_path)
    with pytest.raises(UsageError, match="must not be among"):
        CelebaAttributes(label="Young", features=("Young",)).load(tmp_path)


def test_celeba_images_in_a_folder_keep_the_official_split(tmp_path: Path) -> None:
    attributes = made.write_celeba_lists(tmp_path / "celeba")
    made.write_celeba_images(tmp_path / "celeba")
    dataset = CelebaImages(label="Male", size=16).load(tmp_path)
    assert dataset.shape == (3, 16, 16)
    assert (len(dataset.train), len(dataset.test)) == (6, 4)
    brightness = torch.cat([dataset.train.x, dataset.test.x]).mean(dim=(1, 2, 3)) * 255
    assert torch.allclose(brightness, 20.0 * torch.arange(10), atol=2)
    assert (dataset.test.y.numpy() == attributes[6:, 1]).all()
    assert CelebaImages(size=None).load(tmp_path).shape == (3, 218, 178)


def test_celeba_images_of_one_side_are_split_by_person(tmp_path: Path) -> None:
    made.write_celeba_lists(tmp_path / "celeba", rows=24)
    made.write_celeba_images(tmp_path / "celeba")
    with zipfile.ZipFile(tmp_path / "celeba" / "img_align_celeba.zip", "w") as archive:
        for path in sorted((tmp_path / "celeba" / "img_align_celeba").iterdir()):
            archive.write(path, f"img_align_celeba/{path.name}")
            path.unlink()
    (tmp_path / "celeba" / "img_align_celeba").rmdir()
    dataset = CelebaImages(size=8).load(tmp_path)
    assert dataset.train.users is not None
    assert dataset.test.users is not None
    assert (len(dataset.train), len(dataset.test)) == (8, 2)
    assert not set(dataset.train.users.tolist()) & set(dataset.test.users.tolist())
    assert "one side" in dataset.note
    assert len(CelebaImages(size=8, limit=4).load(tmp_path).train) == 4


@pytest.mark.parametrize("packed", [False, True])
def test_adult_text(tmp_path: Path, packed: bool) -> None:
    made.write_adult(tmp_path / "adult", packed=packed)
    dataset = Adult().load(tmp_path)
    assert (dataset.train.y.tolist(), dataset.test.y.tolist()) == ([0, 1, 0], [0, 1])
    assert len(dataset.groups) == 8
    for group in dataset.groups:
        assert (dataset.train.x[:, list(group)].sum(dim=1) == 1).all()
    assert torch.allclose(dataset.train.x[:, :6].mean(dim=0), torch.zeros(6), atol=1e-6)
    assert torch.allclose(dataset.test.x[0, 0], torch.tensor((25 - 127 / 3) / np.std([39, 50, 38])).float())
    told = {dataset.columns[index] for index in dataset.train.x[2, 6:].nonzero().ravel() + 6}
    assert {"workclass=?", "sex=Female", "race=Black", "native-country=?"} < told


def test_adult_rows_with_missing_values_can_be_dropped(tmp_path: Path) -> None:
    made.write_adult(tmp_path / "adult")
    dataset = Adult(missing_values="drop").load(tmp_path)
    assert (len(dataset.train), len(dataset.test)) == (2, 2)
    assert not any(column.endswith("=?") for column in dataset.columns)


def test_yale_matlab_images_stand_upright(tmp_path: Path) -> None:
    images = made.write_yale_mat(tmp_path / "yale_faces")
    dataset = Yale(test_share=0).load(tmp_path)
    assert (as_bytes(dataset.train.x[:, 0]) == images).all()
    assert dataset.train.y.tolist() == np.repeat(np.arange(15), 2).tolist()
    halves = Yale(test_share=0.5).load(tmp_path)
    assert sorted(halves.train.y.tolist()) == sorted(halves.test.y.tolist()) == list(range(15))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "int16", "float32", "float64"])
def test_matlab_reader_agrees_with_what_scipy_writes(tmp_path: Path, kind: str, compressed: bool) -> None:
    arrays = {
        "a": made.rng().integers(0, 100, (5, 3)).astype(kind),
        "b": np.array([[7.0]]),
        "other": np.array(["text"]),
    }
    savemat(tmp_path / "x.mat", arrays, do_compression=compressed)
    one, other = read_matlab(tmp_path / "x.mat", "a", "b")
    assert (one == arrays["a"]).all()
    assert other.tolist() == [[7.0]]
    with pytest.raises(InputRefused, match="c not there"):
        read_matlab(tmp_path / "x.mat", "a", "c")


def test_location_archive(tmp_path: Path) -> None:
    features = made.write_location(tmp_path / "location30", name="../../outside")
    dataset = Location30(test_share=0).load(tmp_path)
    assert (dataset.train.x.numpy() == features).all()
    assert dataset.train.y.tolist() == [row % 30 for row in range(60)]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["dataset_location.tgz", "location30"]


def test_android_permissions_table(tmp_path: Path) -> None:
    made.write_android(tmp_path / "android_permissions")
    dataset = AndroidPermissions().load(tmp_path)
    assert dataset.shape == (86,)
    assert dataset.columns[85] == "android.permission.P85"
    assert len(dataset.train) + len(dataset.test) == 30


def test_cop_mode_table(tmp_path: Path) -> None:
    made.write_cop_mode(tmp_path / "cop_mode", made.COP_MODE_ROWS)
    dataset = CopMode(test_share=0).load(tmp_path)
    assert dataset.train.y.tolist() == [1, 0, 1, 0]  # Android's 0 is granted
    assert dataset.train.users is not None
    assert dataset.train.users.tolist() == [0, 0, 0, 1]
    told = {column for column in dataset.columns if "=" in column}
    assert told == {
        "networkStatus=METERED",
        "networkStatus=NOT_METERED",
        "checkedPermissionGroup=CAMERA",
        "checkedPermissionGroup=CONTACTS",
        "checkedPermissionGroup=STORAGE",
        "selectedSemanticLoc=Home",
        "selectedSemanticLoc=Work",
        "category=COMMUNICATION",
        "category=GAME",
        "category=SOCIAL",
    }
    hours = dataset.train.x[:, dataset.columns.index("hour")]
    assert torch.allclose(hours, torch.tensor([9.0, 21, 0, 23]) / 23)
    assert dataset.train.x[:, dataset.columns.index("isWeekend")].tolist() == [0, 1, 1, 0]
    assert "17 inputs, where the original has 53" in dataset.note


def test_cop_mode_refuses_an_unknown_answer(tmp_path: Path) -> None:
    rows = [row.replace(",-1,", ",7,") for row in made.COP_MODE_ROWS]
    made.write_cop_mode(tmp_path / "cop_mode", rows)
    with pytest.raises(InputRefused, match="grantResult"):
        CopMode().load(tmp_path)


def test_image_folder(tmp_path: Path) -> None:
    made.write_images(tmp_path / "shapes")
    dataset = ImageFolder(path="shapes", size=12).load(tmp_path)
    assert dataset.classes == ("blue", "red")
    assert dataset.shape == (3, 12, 12)
    assert (len(dataset.train), len(dataset.test)) == (16, 4)
    reds = dataset.train.x[dataset.train.y == 1]
    assert (reds[:, 1:] == 0).all()
    assert reds[:, 0].max() > 0.5
    assert ImageFolder(path="shapes", channels=1).load(tmp_path).shape == (1, 64, 64)
    assert len(ImageFolder(path="shapes", per_class=3, test_share=0).load(tmp_path).train) == 6


def test_image_folder_keeps_a_split_that_is_there(tmp_path: Path) -> None:
    made.write_images(tmp_path / "Linnaeus 5 64X64" / "train")
    made.write_images(tmp_path / "Linnaeus 5 64X64" / "test")
    (tmp_path / "Linnaeus 5 64X64" / "test" / "red" / "9.png").unlink()
    (tmp_path / "Linnaeus 5 64X64" / "train" / ".DS_Store").write_bytes(b"no image")
    dataset = ImageFolder(path=str(tmp_path / "Linnaeus 5 64X64")).load(Path("elsewhere"))
    assert (len(dataset.train), len(dataset.test)) == (20, 19)
    assert dataset.classes == ("blue", "red")


def test_zip_of_images_with_class_folders_or_class_prefixes(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "folders.zip", "w") as archive:
        archive.writestr("cat/1.JPEG", made.image_bytes((9, 9, 9), kind="JPEG"))
        archive.writestr("dog/1.JPEG", made.image_bytes((9, 9, 9), kind="JPEG"))
        archive.writestr("__MACOSX/dog/._1.JPEG", b"no image")
    with zipfile.ZipFile(tmp_path / "prefixes.zip", "w") as archive:
        archive.writestr("n01_tench_a.JPEG", made.image_bytes((9, 9, 9), kind="JPEG"))
        archive.writestr("n01_tench_b.JPEG", made.image_bytes((9, 9, 9), kind="JPEG"))
        archive.writestr("n02_shark.JPEG", made.image_bytes((9, 9, 9), kind="JPEG"))
    assert ImageFolder(path="folders.zip").load(tmp_path).classes == ("cat", "dog")
    dataset = ImageFolder(path="prefixes.zip", test_share=0).load(tmp_path)
    assert dataset.classes == ("n01", "n02")
    assert dataset.train.y.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "options", [{"channels": 2}, {"size": 0}, {"per_class": 0}, {"test_share": 1.0}, {"test_share": -0.1}]
)
def test_impossible_options_are_refused_by_name(tmp_path: Path, options: dict[str, float]) -> None:
    made.write_images(tmp_path / "images")
    with pytest.raises(UsageError, match=next(iter(options))):
        make("datasets", "image-folder", options).load(tmp_path)


def test_too_many_images_for_the_memory_are_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.write_images(tmp_path / "images")
    monkeypatch.setattr("fedspill.data.images.MEMORY", 1000)
    with pytest.raises(UsageError, match="20 images of shape"):
        ImageFolder().load(tmp_path)


def test_digits_need_no_files() -> None:
    dataset = Digits().load()
    assert dataset.shape == (1, 8, 8)
    assert (len(dataset.train), len(dataset.test)) == (1438, 359)
    every = torch.cat([dataset.train.x, dataset.test.x])
    assert (float(every.min()), float(every.max())) == (0, 1)
    assert (every * 16 == (every * 16).round()).all()
    shares = dataset.test.y.bincount() / (dataset.test.y.bincount() + dataset.train.y.bincount())
    assert (shares - 0.2).abs().max() < 0.01
    assert torch.equal(dataset.test.x, Digits().load().test.x)


def test_split_takes_its_share_of_every_class_and_nothing_twice() -> None:
    labels = np.array([0] * 50 + [1] * 10 + [2] * 5)
    train, test = split(labels, 0.2)
    assert np.bincount(labels[test]).tolist() == [10, 2, 1]
    assert sorted([*train, *test]) == list(range(65))
    groups = np.arange(65) // 3  # some lie across two classes
    train, test = split(labels, 0.4, together=groups)
    assert not set(groups[train]) & set(groups[test])
    assert len(test) > 15


def test_text_with_a_byte_order_mark_and_windows_line_ends_is_read(tmp_path: Path) -> None:
    made.write_fer(tmp_path / "fer2013")
    path = tmp_path / "fer2013" / "fer2013.csv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(Fer2013().load(tmp_path).train) == 2


@pytest.mark.parametrize("name", made.WRITERS)
@pytest.mark.parametrize("seed", range(8))
def test_a_mangled_file_is_refused_or_read_and_nothing_else(tmp_path: Path, name: str, seed: int) -> None:
    folder, write = made.WRITERS[name]
    write(tmp_path / folder)
    rng = np.random.default_rng(seed)
    files = sorted(path for path in (tmp_path / folder).rglob("*") if path.is_file())
    path = files[rng.integers(len(files))]
    data = bytearray(path.read_bytes())
    if seed % 2:
        data = data[: rng.integers(len(data))]
    else:
        for place in rng.integers(len(data), size=1 + len(data) // 200):
            data[place] = rng.integers(256)
    path.write_bytes(data)
    try:
        dataset = make("datasets", name).load(tmp_path)
    except FedspillError:
        return
    assert torch.isfinite(dataset.train.x).all()


def test_npz_layout_is_checked_before_use(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    file = io.BytesIO()
    good = {"x_train": np.zeros((4, 3, 32, 32), np.uint8), "x_test": np.zeros((2, 3, 32, 32), np.uint8)}
    good |= {"y_train": np.zeros(4, np.uint8), "y_test": np.zeros(2, np.int64)}
    for change, told in (
        ({"x_train": np.zeros((4, 3, 32, 31), np.uint8)}, r"'x_train' must be uint8 of shape \(4, 3, 32, 32\)"),
        ({"x_train": np.zeros((4, 3, 32, 32), np.float32)}, "got float32"),
        ({"y_train": np.zeros(5, np.uint8)}, r"'y_train' must be integer of shape \(4\)"),
        ({"y_test": np.array(["a", "b"])}, "'y_test' must be integer"),
    ):
        file = tmp_path / "cifar10" / "part.npz"
        np.savez(file, **good | change)
        with pytest.raises(InputRefused, match=told):
            Cifar10().load(tmp_path)
    np.savez(file, x_train=good["x_train"])
    with pytest.raises(InputRefused, match="expected an array 'y_train', got x_train"):
        Cifar10().load(tmp_path)
    np.savez_compressed(file, **good)
    assert len(Cifar10().load(tmp_path).train) == 4
    np.savez(
        file, **good | {"x_train": np.asfortranarray(np.arange(4 * 3 * 32 * 32).reshape(4, 3, 32, 32) % 256, np.uint8)}
    )
    assert as_bytes(Cifar10().load(tmp_path).train.x)[0, 0, 0].tolist() == list(range(32))
