"""Tiles and column groups: nothing lost, nothing twice, wrong grids refused by name."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedspill.errors import UsageError
from fedspill.partitions.tiles import column_groups, image_tiles, join_tiles

size = st.integers(1, 4)


@given(n=st.integers(0, 3), c=size, h=size, w=size, g=size)
def test_round_trip(n: int, c: int, h: int, w: int, g: int) -> None:
    x = torch.arange(n * c * g * h * g * w, dtype=torch.float32).reshape(n, c, g * h, g * w)
    tiles = image_tiles(x, g * g)
    assert len(tiles) == g * g
    assert all(tile.shape == (n, c, h, w) for tile in tiles)
    assert torch.equal(join_tiles(tiles), x)


def test_mnists_quadrants() -> None:
    x = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    top_left, top_right, bottom_left, bottom_right = image_tiles(x, 4)
    assert torch.equal(top_left, x[:, :, :14, :14])
    assert torch.equal(top_right, x[:, :, :14, 14:])
    assert torch.equal(bottom_left, x[:, :, 14:, :14])
    assert torch.equal(bottom_right, x[:, :, 14:, 14:])


def test_sixteen_tiles_of_a_colour_image() -> None:
    x = torch.rand(2, 3, 32, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(image_tiles(x, 16)[6], x[:, :, 8:16, 32:48])


@pytest.mark.parametrize("parties", [-4, 0, 2, 3, 8, 15])
def test_no_square(parties: int) -> None:
    with pytest.raises(UsageError, match=f"square grid: .* got {parties}"):
        image_tiles(torch.zeros(1, 1, 24, 24), parties)


@pytest.mark.parametrize("shape", [(1, 1, 28, 30), (1, 1, 30, 28)])
def test_grid_must_divide(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=f"4 by 4 grid, which does not divide images of {shape[2]} by {shape[3]}"):
        image_tiles(torch.zeros(shape), 16)


def test_only_images() -> None:
    with pytest.raises(UsageError, match="need images"):
        image_tiles(torch.zeros(10, 20), 4)


@pytest.mark.parametrize(
    "tiles",
    [
        [],
        [torch.zeros(1, 1, 2, 2)] * 3,
        [torch.zeros(1, 1, 2, 2)] * 3 + [torch.zeros(1, 1, 1, 2)],
        [torch.zeros(4)] * 4,
    ],
)
def test_tiles_that_do_not_fit(tiles: list[torch.Tensor]) -> None:
    with pytest.raises(UsageError, match="Tiles"):
        join_tiles(tiles)


def test_groups_stay_together() -> None:
    columns = ["age", "red", "green", "blue", "height", "yes", "no"]
    groups = ((1, 2, 3), (5, 6))
    assert column_groups(columns, 1, groups) == ((0, 1, 2, 3, 4, 5, 6),)
    assert column_groups(columns, 2, groups) == ((0, 1, 2, 3), (4, 5, 6))
    assert column_groups(columns, 4, groups) == ((0,), (1, 2, 3), (4,), (5, 6))
    assert column_groups(columns, 7) == ((0,), (1,), (2,), (3,), (4,), (5,), (6,))


@given(
    kinds=st.lists(st.integers(0, 5), min_size=1, max_size=20),  # column i belongs to attribute kinds[i]
    parties=st.integers(1, 20),
)
def test_every_column_once_and_no_group_split(kinds: list[int], parties: int) -> None:
    groups = [[i for i, kind in enumerate(kinds) if kind == k] for k in sorted(set(kinds))]
    given_groups = [group for group in groups if len(group) > 1]
    columns = [f"column {i}" for i in range(len(kinds))]
    if parties > len(groups):
        with pytest.raises(UsageError, match=f"1 to {len(groups)} parties"):
            column_groups(columns, parties, given_groups)
        return
    shares = column_groups(columns, parties, given_groups)
    assert len(shares) == parties
    assert sorted(column for share in shares for column in share) == list(range(len(kinds)))
    attributes = [{kinds[column] for column in share} for share in shares]
    assert sum(map(len, attributes)) == len(groups)
    assert max(map(len, attributes)) - min(map(len, attributes)) <= 1


@pytest.mark.parametrize("groups", [[[0, 1], [1, 2]], [[0, 3]], [[-1, 0]], [[]], [[1, 1]]])
def test_bad_groups(groups: list[list[int]]) -> None:
    with pytest.raises(UsageError, match="within the 3 columns"):
        column_groups(["a", "b", "c"], 2, groups)


def test_no_parties() -> None:
    with pytest.raises(UsageError, match=r"1 to 3 parties, .* got 0"):
        column_groups(["a", "b", "c"], 0)
