"""Why a reconstruction does not go through; caught inside this leak, where the reason becomes a note of the guess."""

from __future__ import annotations

from typing import final

from fedspill.errors import NotApplicable


@final
class CannotRecover(NotApplicable):
    """The network, or what was observed of it, does not allow this way of recovering inputs."""


@final
class UnsoundMessage(NotApplicable):
    """A message cannot be what it says it is, so it is left out."""
