"""A search that is killed goes on where it stood, tells its loss where a person watches, and leaves no file behind."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from fedspill.cli.terminal import Screen
from fedspill.errors import InputRefused
from fedspill.leaks.inputs.gradient_matching import search_and_save
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.recipes import inverting_gradients
from fedspill.leaks.inputs.search.saved_search import SavedSearches
from fedspill.leaks.inputs.search.search import SearchResult, SearchState, one_hot, reconstruct

STEPS, SHAPE = 400, (2, 1, 6, 6)


def task(seed: int = 0) -> tuple[nn.Module, list[Tensor], Tensor]:
    rng = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.Tanh(), nn.Linear(24, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.3)
    x, targets = torch.rand(SHAPE, generator=rng), one_hot(torch.tensor([1, 4]), 5).float()
    return model, [g[0].detach() for g in gradients_of(model)(x[None], targets[None])], targets


def search(folder: Path | None, seed: int = 0, steps: int = STEPS, seconds: float = 0.0) -> SearchResult:
    model, observed, targets = task(seed)
    rng, recipe = torch.Generator().manual_seed(5), inverting_gradients(steps, 1e-4)
    saves = SavedSearches(folder, seconds) if folder else None
    return search_and_save(recipe, gradients_of(model), observed, SHAPE, 5, rng, targets, saves=saves)


def test_a_killed_search_is_taken_up_where_it_stood_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    script += "import torch; torch.set_num_threads(1)\n"
    script += f"from pathlib import Path\nfrom {Path(__file__).stem} import search\n"
    script += f"search(Path({str(tmp_path)!r}), steps=10**6)\n"  # so long that it must be killed
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not any(tmp_path.glob("*.safetensors")) and time.monotonic() < deadline:
            assert child.poll() is None
            time.sleep(0.05)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    (saved,) = tmp_path.glob("*.safetensors")
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600

    recipe = inverting_gradients(10**6, 1e-4)
    model, observed, targets = task()
    own = SavedSearches(tmp_path).file_of(
        recipe, observed, SHAPE, targets, torch.Generator().manual_seed(5).get_state()
    )
    state = own.read()
    assert state is not None
    assert state.steps > 0

    def go_on(state: SearchState | None, steps: int) -> SearchResult:
        shorter = inverting_gradients(10**6, 1e-4)
        shorter = type(shorter)(shorter.objective, shorter.optimizer, steps, shorter.priors, boxed=True)
        rng = torch.Generator().manual_seed(5)
        return reconstruct(shorter, gradients_of(model), observed, SHAPE, 5, rng=rng, targets=targets, state=state)

    whole, resumed = go_on(None, state.steps + 30), go_on(state, state.steps + 30)
    assert torch.equal(whole.x, resumed.x)
    assert torch.equal(whole.loss, resumed.loss)


def test_it_starts_from_the_file_and_removes_it_at_the_end(tmp_path: Path) -> None:
    model, observed, targets = task()
    recipe = inverting_gradients(STEPS, 1e-4)
    saved = SavedSearches(tmp_path).file_of(
        recipe, observed, SHAPE, targets, torch.Generator().manual_seed(5).get_state()
    )
    saved.write(search(None).state)  # the very end of the search
    seen: list[Tensor] = []
    gradients = gradients_of(model)

    def counted(x: Tensor, soft: Tensor) -> list[Tensor]:
        seen.append(x)
        return gradients(x, soft)

    rng = torch.Generator().manual_seed(5)
    found = search_and_save(recipe, counted, observed, SHAPE, 5, rng, targets, saves=SavedSearches(tmp_path))
    assert not seen  # nothing was left to do
    assert torch.equal(found.x, search(None).x)
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_another_gradient_is_refused(tmp_path: Path) -> None:
    state = search(None).state
    files = []
    for seed in (0, 1):
        _, observed, targets = task(seed)
        generator_state = torch.Generator().manual_seed(5).get_state()
        files.append(
            SavedSearches(tmp_path).file_of(inverting_gradients(STEPS, 1e-4), observed, SHAPE, targets, generator_state)
        )
    files[0].write(state)
    assert files[1].read() is None  # each has a file of its own
    files[0].path.rename(files[1].path)
    with pytest.raises(InputRefused, match="holds something else"):
        files[1].read()
    files[1].path.write_bytes(b"\x80\x04pickled")
    with pytest.raises(InputRefused):
        files[1].read()


def test_the_loss_is_on_a_bar_where_a_person_watches_and_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    search(None, steps=3)
    assert capsys.readouterr() == ("", "")
    screen = Screen()
    screen._err = Console(force_terminal=True, width=100, stderr=True)
    with screen.bar("matching gradients", 10) as bar:
        bar(4, "loss 0.25")
    shown = capsys.readouterr().err
    assert "4/10 loss 0.25" in shown
