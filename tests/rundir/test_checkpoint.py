"""The checkpoint file, read by hand with `struct`, and everything that can be wrong with one."""

from __future__ import annotations

import hashlib
import os
import re
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from andread.rundir import checkpoint, files
from andread.rundir.checkpoint import InvalidCheckpoint, file_size, pack_header, read_image
from andread.rundir.errors import DataError
from andread.rundir.staging import Staging
from tests.rundir.helpers import N_PARAMS, STRANGERS, descriptors, image, put_stranger, sha256

GOLDEN = bytes.fromhex(
    "ecb70100"  # step 112,620
    "03000000"  # 3 parameters
    "0000803f 000000c0 db0f4940"  # weights 1, -2, float32(pi)
    "00000000 00000080 0000003f"  # m 0, -0, 0.5
    "01000000 ffff7f7f 0000807f"  # v: the least, the largest, infinity
)


def test_golden_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "step_112620.bin"
    path.write_bytes(GOLDEN)
    staging = Staging(3)
    digest = read_image(path, 112_620, 3, staging.file)
    assert digest == hashlib.sha256(GOLDEN).hexdigest()
    weights, m, v = (struct.unpack("<3f", region) for region in staging.regions)
    assert weights == (1.0, -2.0, 3.1415927410125732)
    assert m == (0.0, 0.0, 0.5) and struct.pack("<f", m[1]) == b"\0\0\0\x80"
    assert v == (2.0**-149, 3.4028234663852886e38, float("inf"))
    assert read_image(path, None, 3) == digest, "checked without keeping"


def read_independently(data: bytes) -> tuple[int, list[float], list[float], list[float]]:
    """Read a checkpoint with nothing but `struct`, as any other program could."""
    step, n = struct.unpack_from("<ii", data, 0)
    assert len(data) == 8 + 12 * n
    regions = [list(struct.unpack_from(f"<{n}f", data, 8 + 4 * n * i)) for i in range(3)]
    return step, regions[0], regions[1], regions[2]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    step=st.integers(0, 2**31 - 1),
    regions=st.integers(1, 9).flatmap(
        lambda n: st.lists(
            st.lists(st.floats(width=32, allow_nan=False), min_size=n, max_size=n),
            min_size=3,
            max_size=3,
        )
    ),
)
def test_independent_reader_agrees(tmp_path: Path, step: int, regions: list[list[float]]) -> None:
    n = len(regions[0])
    data = pack_header(step, n) + b"".join(struct.pack(f"<{n}f", *values) for values in regions)
    assert read_independently(data) == (step, *regions)
    assert len(data) == file_size(n)
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    target = bytearray(file_size(n))
    assert read_image(path, step, n, memoryview(target)) == sha256(data)
    assert target == data


def test_regions_of_many_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", 7)
    path = tmp_path / "x.bin"
    path.write_bytes(image(4))
    target = bytearray(file_size(N_PARAMS))
    assert read_image(path, 4, N_PARAMS, memoryview(target)) == sha256(image(4))
    assert target == image(4)
    assert read_image(path, 4, N_PARAMS) == sha256(image(4)), "the spare chunks take turns"


# ---------------------------------------------------------------- what can be wrong


def verdict(path: Path, data: bytes, step: int | None = 4, n_params: int = N_PARAMS) -> str:
    path.write_bytes(data)
    with pytest.raises(InvalidCheckpoint) as caught:
        read_image(path, step, n_params)
    assert caught.value.message.startswith("step_000004.bin")
    return caught.value.message.removeprefix("step_000004.bin ")


def test_cut_off_at_every_byte_names_the_region(tmp_path: Path) -> None:
    path, data = tmp_path / "step_000004.bin", image(4)
    for size in range(len(data)):
        message = verdict(path, data[:size])
        if size < 8:
            assert message == f"is cut off in its header ({size} bytes)"
        else:
            region = ["weights", "m", "v"][(size - 8) // (4 * N_PARAMS)]
            assert message == (
                f"is cut off in region {region}: {size} bytes where 5 parameters take 68"
            )


def test_each_fault_has_its_own_message(tmp_path: Path) -> None:
    path, data = tmp_path / "step_000004.bin", image(4)
    told = {
        "long": verdict(path, data + b"\0"),
        "negative step": verdict(path, struct.pack("<i", -4) + data[4:]),
        "no parameters": verdict(path, struct.pack("<ii", 4, 0)),
        "negative count": verdict(path, struct.pack("<ii", 4, -5) + data[8:]),
        "absurd count": verdict(path, struct.pack("<ii", 4, 2**31 - 1) + data[8:]),
        "other step": verdict(path, image(5)),
        "other model": verdict(path, image(4, 6)),
        "empty": verdict(path, b""),
        "zeros": verdict(path, bytes(68)),
        "text": verdict(path, b"not a checkpoint but a text of some length"),
    }
    assert told["long"] == "is too long: 69 bytes where 5 parameters take 68"
    assert told["negative step"] == "has a negative step, -4"
    assert told["no parameters"] == "claims 0 parameters"
    assert told["negative count"] == "claims -5 parameters"
    assert "68 bytes where 2,147,483,647 parameters take 25,769,803,772" in told["absurd count"]
    assert told["other step"] == "says it is of step 5"
    assert told["other model"] == "has 6 parameters, the model has 5"
    assert told["empty"] == "is cut off in its header (0 bytes)"
    assert told["zeros"] == "claims 0 parameters"
    assert len(set(told.values())) == len(told) - 1  # two claim 0 parameters


def test_absurd_count_takes_no_memory(tmp_path: Path) -> None:
    """The count is checked against the size of the file before anything is allocated."""
    path = tmp_path / "step_000004.bin"
    path.write_bytes(struct.pack("<ii", 4, 2**31 - 1))
    os.truncate(path, file_size(2**31 - 1))  # sparse: even the size is right
    with pytest.raises(InvalidCheckpoint, match="the model has 5"):
        read_image(path, 4, N_PARAMS)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=120), step=st.none() | st.integers(0, 9))
def test_no_bytes_end_in_another_error(tmp_path: Path, data: bytes, step: int | None) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    try:
        assert read_image(path, step, 3) == sha256(data)
    except InvalidCheckpoint:
        return
    assert len(data) == 44


def test_one_bit_anywhere_changes_the_hash(tmp_path: Path) -> None:
    path, data = tmp_path / "x.bin", image(4)
    for byte in range(8, len(data)):
        flipped = bytearray(data)
        flipped[byte] ^= 1
        path.write_bytes(flipped)
        assert read_image(path, 4, N_PARAMS) not in ("", sha256(data))


@pytest.mark.parametrize("kind", STRANGERS)
def test_no_regular_file_no_checkpoint(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "step_000004.bin"
    path.write_bytes(image(4))
    put_stranger(path, kind)
    held = descriptors()
    with pytest.raises(DataError, match="not a regular file"):
        read_image(path, 4, N_PARAMS)
    assert descriptors() == held


def test_header_of_our_own_making_is_checked() -> None:
    assert pack_header(1, 2) == b"\1\0\0\0\2\0\0\0"
    for step, n_params in ((-1, 1), (2**31, 1), (0, 0), (0, 2**31)):
        with pytest.raises(AssertionError):
            pack_header(step, n_params)


def test_file_size_is_that_of_the_lessons() -> None:
    assert file_size(12_779_520) == 153_354_248
    assert file_size(119_930_880) == 1_439_170_568
    assert re.search(r"8 \+ 12n", checkpoint.__doc__ or "")
