import io
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from strategies import keep_arrays

from kvreclaim import InputError, KeepMask, audit, load_keep_masks, save_keep_masks
from kvreclaim.keep import MaskMetadata

KINDS = [".npz", ".npy", ".safetensors"]
METADATA = MaskMetadata(model="smollm2-135m", policy="snapkv", ratio=0.5, prompt_length=1024)


@pytest.mark.parametrize(
    ("shape", "expected"), [((8,), (1, 1, 8)), ((2, 8), (1, 2, 8)), ((3, 2, 8), (3, 2, 8))]
)
def test_ranks(shape, expected):
    mask = KeepMask(np.ones(shape, bool))
    assert mask.array.shape == (mask.layers, mask.kv_heads, mask.tokens) == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint16])
def test_integers_zero_and_one_are_taken(dtype):
    assert KeepMask(np.array([0, 1, 1], dtype)).array.tolist() == [[[False, True, True]]]


def test_lists_and_array_likes_are_taken():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            return np.array([True, False])

    class Exporter:
        """DLPack without __array__."""

        def __init__(self):
            self.held = np.array([1, 0, 1], np.uint8)

        def __dlpack__(self, **options):
            return self.held.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.held.__dlpack_device__()

    assert KeepMask([True, False]).tokens == 2
    assert KeepMask(Tensor()).array.tolist() == [[[True, False]]]
    assert KeepMask(Exporter()).array.tolist() == [[[True, False, True]]]


def test_an_array_that_is_not_in_cpu_memory_is_refused():
    class OnDevice:
        def __array__(self, dtype=None, copy=None):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

    with pytest.raises(InputError, match="not an array in CPU memory"):
        KeepMask(OnDevice())


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((1, 1, 1, 1), bool), "rank 4"),
        (True, "rank 0"),
        (np.ones((0, 4), bool), "empty"),
        ([], "empty"),
        (np.array([0, 2], np.uint8), "0 and 1"),
        (np.array([0, -1]), "0 and 1"),
        (np.array([0.0, 1.0]), "float64"),
        (np.array([np.nan]), "float64"),
        (["a"], "values must be bool"),
        ([[True], [True, False]], "not an array"),
    ],
)
def test_what_is_no_keep_mask_is_refused_in_one_line(array, message):
    with pytest.raises(InputError, match=message) as caught:
        KeepMask(array, name="mine")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError):
        audit(array)


def test_the_mask_is_read_only_and_not_a_copy():
    array = np.ones((2, 2, 8), bool)
    mask = KeepMask(array)
    assert np.shares_memory(mask.array, array)
    assert array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        mask.array[0] = False


@pytest.mark.parametrize(
    "fields", [{"ratio": 1.5}, {"ratio": float("nan")}, {"prompt_length": 0}, {"model": 3}]
)
def test_bad_metadata(fields):
    with pytest.raises(InputError):
        MaskMetadata(**fields)


@pytest.mark.parametrize("kind", KINDS)
@given(array=keep_arrays())
def test_files_give_back_what_was_saved(tmp_path_factory, kind, array):
    path = tmp_path_factory.mktemp("masks") / f"one{kind}"
    KeepMask(array, "one").save(path)
    assert np.array_equal(KeepMask.load(path).array, array)


@pytest.mark.parametrize("kind", [".npz", ".safetensors"])
def test_names_metadata_and_sizes_survive(tmp_path, kind):
    path = tmp_path / f"masks{kind}"
    masks = [KeepMask(np.ones((2, 1, 8), bool), "a/../b", METADATA), KeepMask(np.zeros(5, bool), "file")]
    save_keep_masks(path, masks)
    found = {mask.name: mask for mask in load_keep_masks(path)}
    assert found["a/../b"].metadata == METADATA
    assert found["a/../b"].policy == "snapkv"
    assert found["file"].array.shape == (1, 1, 5)
    assert KeepMask.load(path, "file").tokens == 5
    for wrong in None, "fil":
        with pytest.raises(InputError, match=r"pass the name of one: 'a/\.\./b', 'file'$"):
            KeepMask.load(path, wrong)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", KINDS)
def test_equal_masks_make_equal_files(tmp_path, kind):
    paths = [tmp_path / f"{name}{kind}" for name in "ab"]
    for path in paths:
        KeepMask(np.arange(100) % 3 == 0, "m", METADATA).save(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_plain_files_of_others_are_read(tmp_path):
    from safetensors.numpy import save_file

    np.savez_compressed(tmp_path / "theirs.npz", snapkv=np.ones((2, 3, 8), np.uint8))
    np.save(tmp_path / "theirs.npy", np.ones(8, bool))
    save_file({"snapkv": np.ones((2, 3, 8), bool)}, tmp_path / "theirs.safetensors")
    assert [load_keep_masks(tmp_path / f"theirs{kind}")[0].name for kind in KINDS] == [
        "snapkv",
        "theirs",
        "snapkv",
    ]


def test_a_mask_without_a_name_is_called_by_its_file(tmp_path):
    mask = np.ones((2, 4), bool)
    np.savez(tmp_path / "ours.npz", mask)
    KeepMask(mask).save(tmp_path / "theirs.npz")
    KeepMask(mask, metadata=MaskMetadata(policy="h2o")).save(tmp_path / "known.npz")
    np.savez(tmp_path / "two.npz", mask, mask)
    assert KeepMask.load(tmp_path / "ours.npz").name == "ours"
    assert KeepMask.load(tmp_path / "theirs.npz").name == "theirs"
    assert KeepMask.load(tmp_path / "known.npz").policy == "h2o"
    assert [mask.name for mask in load_keep_masks(tmp_path / "two.npz")] == ["arr_0", "arr_1"]


def test_files_that_are_no_keep_masks(tmp_path):
    def refused(name, content, message):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            load_keep_masks(path)
        assert "\n" not in str(caught.value)

    whole = io.BytesIO()
    np.savez_compressed(whole, mask=np.random.default_rng(0).random(5000) < 0.5)
    pickled = io.BytesIO()
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    in_zip = io.BytesIO()
    with zipfile.ZipFile(in_zip, "w") as archive:
        archive.writestr("mask.npy", pickled.getvalue())
    refused("truncated.npz", whole.getvalue()[:-200], "not a whole")
    refused("short.npy", b"\x93NUMPY", "not a whole")
    refused("empty.npz", b"", "not a whole")
    refused("pickled.npy", pickled.getvalue(), "never loaded")
    refused("pickled.npz", in_zip.getvalue(), "never loaded")
    refused("raw.npy", pickle.dumps([1]), "never loaded")
    refused("noise.safetensors", b"\xff" * 64, "not a whole")
    refused("masks.txt", b"1 0 1", "unknown kind of file")
    floats = io.BytesIO()
    np.save(floats, np.array([0.5]))
    refused("floats.npy", floats.getvalue(), "values must be bool")


def test_no_file_and_directories(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_keep_masks(tmp_path / "none.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(InputError, match="is a directory"):
        load_keep_masks(tmp_path / "folder.npz")


@pytest.mark.parametrize(
    "header", ["{", '{"format": "other", "version": 1, "masks": {}}', '{"format": 3}', "[]"]
)
def test_a_damaged_or_foreign_header_is_refused(tmp_path, header):
    np.savez(
        tmp_path / "m.npz", mask=np.ones(4, bool), __kvreclaim__=np.frombuffer(header.encode(), np.uint8)
    )
    with pytest.raises(InputError, match="header"):
        load_keep_masks(tmp_path / "m.npz")


def test_what_cannot_be_saved(tmp_path):
    mask = KeepMask(np.ones(4, bool), "m")
    with pytest.raises(InputError, match="name of its own"):
        save_keep_masks(tmp_path / "m.npz", [mask, mask])
    with pytest.raises(InputError, match="one mask"):
        save_keep_masks(tmp_path / "m.npy", [mask, KeepMask(np.ones(4, bool), "n")])
    with pytest.raises(InputError, match="unknown kind"):
        mask.save(tmp_path / "m.pt")
    with pytest.raises(InputError, match="at least one mask"):
        save_keep_masks(tmp_path / "m.npz", [])
    with pytest.raises(InputError, match="can't be written"):
        mask.save(tmp_path / "no" / "m.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("masks", [None, 3, "ab", [np.ones(4, bool)], np.ones((2, 4), bool)])
def test_what_is_no_list_of_masks(tmp_path, masks):
    with pytest.raises(InputError, match="where a KeepMask is needed"):
        save_keep_masks(tmp_path / "m.npz", masks)


@pytest.mark.parametrize("metadata", [None, {"policy": "a"}])
def test_what_is_no_metadata(metadata):
    with pytest.raises(InputError, match="pass a MaskMetadata"):
        KeepMask(np.ones(4, bool), "a", metadata)


@pytest.mark.parametrize("path", [None, 3, b"m.npz", ""])
def test_what_is_no_path(path):
    with pytest.raises(InputError, match="names no file"):
        KeepMask.load(path)
    with pytest.raises(InputError, match="names no file"):
        KeepMask(np.ones(4, bool)).save(path)


def test_a_name_too_long_for_the_file_system(tmp_path):
    with pytest.raises(InputError, match="File name too long"):
        KeepMask.load(tmp_path / f"{'a' * 300}.npz")


UNSTORABLE = ["nul\0", "half \udcff", "long" * 20_000]


@pytest.mark.parametrize("kind", [".npz", ".safetensors"])
@pytest.mark.parametrize("name", [*UNSTORABLE, "__kvreclaim__"])
def test_names_that_a_file_cannot_give_back(tmp_path, kind, name):
    with pytest.raises(InputError, match=r"can't hold the name|none of them named"):
        KeepMask(np.ones(4, bool), name).save(tmp_path / f"m{kind}")
    assert not list(tmp_path.iterdir())


def test_the_name_that_safetensors_reserve(tmp_path):
    mask = KeepMask(np.ones(4, bool), "__metadata__")
    with pytest.raises(InputError, match="none of them named __kvreclaim__ or __metadata__"):
        mask.save(tmp_path / "m.safetensors")
    mask.save(tmp_path / "m.npz")
    assert KeepMask.load(tmp_path / "m.npz").name == "__metadata__"


def test_an_array_of_an_empty_name_among_others(tmp_path):
    np.savez(tmp_path / "m.npz", **{"": np.ones(4, bool), "b": np.ones(4, bool)})
    assert [mask.name for mask in load_keep_masks(tmp_path / "m.npz")] == ["mask", "b"]


@pytest.mark.parametrize("names", [("a.npy", "a.npy"), ("a.npy", "a"), (".npy", "mask.npy")])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_one_name_are_refused(tmp_path, names):
    array = io.BytesIO()
    np.save(array, np.ones(4, bool))
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        for name in names:
            archive.writestr(name, array.getvalue())
    with pytest.raises(InputError, match=r"m\.npz: holds two arrays of the name") as caught:
        load_keep_masks(tmp_path / "m.npz")
    assert "not a whole" not in str(caught.value)


def test_bytes_that_are_no_array_are_not_called_a_pickle(tmp_path):
    (tmp_path / "m.npy").write_bytes(np.random.default_rng(0).bytes(200))
    with pytest.raises(InputError, match="does not begin as a NumPy array does"):
        load_keep_masks(tmp_path / "m.npy")
    header = b"{'descr': '|b1', 'fortran_order': False, 'shape': f()}".ljust(117) + b"\n"
    (tmp_path / "m.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(InputError, match="its header is damaged"):
        load_keep_masks(tmp_path / "m.npy")
