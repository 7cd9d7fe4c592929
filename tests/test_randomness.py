import itertools

import pytest
from scipy import stats

from andread import randomness

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def test_mix_is_the_output_function_of_the_reference_splitmix64():
    # The reference advances its state by the golden gamma, then returns mix(state).
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    got = [randomness.mix((1234567 + GOLDEN * turn) & MASK) for turn in range(1, 6)]
    assert got == expected


def test_bits_are_the_reference_stream_seeded_by_the_reference_stream():
    state = randomness.mix((1234567 + GOLDEN) & MASK)
    assert state == 6457827717110365317
    assert randomness.bits(1234567, 0, 2) == randomness.mix((state + 3 * GOLDEN) & MASK)


def test_golden_values():
    # Whoever changes these changes the batches of every run there is.
    assert randomness.key(1, "draw") == 8093191902896737828
    assert randomness.key(1, "epoch", "books", 3) == 13178880315030718922
    assert randomness.bits(42, 0) == 6332618229526065668
    assert randomness.bits(42, 1000, 7) == 550036306764855842
    assert randomness.uniform(42, 5, 1) == 0.6210031988001998
    ten, thousand = randomness.Permutation(10, 42), randomness.Permutation(1000, 42)
    assert [ten(index) for index in range(10)] == [3, 5, 1, 9, 6, 8, 2, 4, 7, 0]
    assert [thousand(index) for index in range(6)] == [76, 593, 584, 875, 689, 982]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 100, 255, 256, 257, 1000, 4097])
@pytest.mark.parametrize("stream", [0, 1, MASK])
def test_a_permutation_is_a_bijection(n, stream):
    permutation = randomness.Permutation(n, stream)
    assert sorted(permutation(index) for index in range(n)) == list(range(n))


def test_a_permutation_depends_on_its_stream():
    first, second = (randomness.Permutation(1000, stream) for stream in (1, 2))
    assert sum(first(index) == second(index) for index in range(1000)) < 20


@pytest.mark.parametrize("index", [-1, 10])
def test_a_permutation_refuses_an_index_outside(index):
    with pytest.raises(ValueError, match="outside"):
        randomness.Permutation(10, 1)(index)


def test_a_permutation_of_nothing_is_refused():
    with pytest.raises(ValueError, match="0 things"):
        randomness.Permutation(0, 1)


@pytest.mark.parametrize("axis", ["step", "slot"])
def test_uniform_is_uniform_along_steps_and_slots(axis):
    counts = [0] * 64
    for place in range(64_000):
        step, slot = (place, 0) if axis == "step" else (0, place)
        counts[int(64 * randomness.uniform(7, step, slot))] += 1
    assert stats.chisquare(counts).pvalue > 1e-3


def test_where_a_permutation_sends_zero_is_uniform_over_streams():
    counts = [0] * 50
    for stream in range(10_000):
        counts[randomness.Permutation(50, randomness.key(stream, "epoch"))(0)] += 1
    assert stats.chisquare(counts).pvalue > 1e-3


def test_neighbours_are_not_kept_together_by_a_permutation():
    permutation = randomness.Permutation(10_000, 3)
    images = [permutation(index) for index in range(10_000)]
    kept = sum(abs(a - b) == 1 for a, b in itertools.pairwise(images))
    assert kept < 12  # 2 are expected


def test_labels_do_not_run_together():
    keys = {randomness.key(1, "ab", "c"), randomness.key(1, "a", "bc"), randomness.key(11, "ab")}
    assert len(keys) == 3
