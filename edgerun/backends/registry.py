"""Finds back-ends by name: the files beside this one, and other packages' entry points."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgerun.discovery import entry_names, import_entry, modules_of
from edgerun.env import settings
from edgerun.errors import InputError, UnsupportedError
from edgerun.values import shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from edgerun.backends.base import Backend, Support

logger = logging.getLogger(__name__)

ROOM = "edgerun.backends"  # a back-end is a module here with a function make()
DEFAULT = ("cpu",)  # take part unasked
SIMULATED = ("virtual", "standin")  # for trials: nobody who does not name them hears of them
ENTRY_POINTS = "edgerun.backends"
NOT_ASKED = "not asked for: --backend {name}"
NO_DEVICE_NAMED = NOT_ASKED + ", or name its device in EDGERUN_{upper}_DEVICE"


@dataclass(frozen=True, slots=True)
class Candidates:
    """Back-ends to plan with.

    Attributes:
        backends: those that run here, best first.
        preferred: name of the one that takes every node it supports; None to go by cost.
        absent: why others take no part, by name.
        prompts: those for rows of prompts whose logits nobody wants, where these go elsewhere.
    """

    backends: tuple[Backend, ...]
    preferred: str | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    prompts: Candidates | None = None

    def every(self) -> tuple[Backend, ...]:
        """All of them, each once."""
        others = self.prompts.backends if self.prompts else ()
        return (*self.backends, *(each for each in others if each not in self.backends))

    def names(self, backend: Backend) -> bool:
        """Whether the caller named one; a device that only the environment names goes by cost."""
        prompts = self.prompts.preferred if self.prompts else None
        return backend.name in (self.preferred, prompts)

    def reusing(self, reused: Sequence[Backend]) -> Candidates:
        """The same, with back-ends that are there already in the place of new ones.

        Those that drive devices begin anew: a device may have failed.
        """
        by_name = {each.name: each for each in reused if not each.companions}
        backends = tuple(by_name.get(each.name, each) for each in self.backends)
        return replace(
            self,
            backends=_acquainted(backends),
            prompts=self.prompts and self.prompts.reusing(reused),
        )


def backend_names() -> list[str]:
    """Names of all back-ends, present or not."""
    return [*entry_names(ROOM, "make"), *(point.name for point in _added_backends())]


def offered_names() -> list[str]:
    """Names of the back-ends that compute with what a machine really has."""
    return [name for name in backend_names() if name not in SIMULATED]


def make_backend(
    name: str, device: str | None = None, given: Mapping[str, Any] = MappingProxyType({})
) -> Backend:
    """Makes the back-end called ``name``.

    Args:
        name: as ``backend_names`` lists it.
        device: which of its devices to use; None for what the environment names, or its own choice.
        given: what the caller chose, see ``Backend.configure``.

    Raises:
        InputError: there is none of that name, or it has no such device.
    """
    backend = _make(name)
    backend.configure(given)
    device = device or settings().devices.get(name)
    if device is not None:
        backend.use_device(device)
    return backend


def _make(name: str) -> Backend:
    backend: Backend
    path = modules_of(ROOM).get(name)
    make = path and getattr(import_entry(path), "make", None)
    if make:
        backend = make()
        return backend
    for point in _added_backends():
        if point.name == name:
            backend = point.load()()
            return backend
    if name.partition(":")[0] in backend_names():
        raise InputError(f"{name!r} is a device and no back-end: write --device {name}")
    raise InputError(f"no back-end is called '{name}': there are {', '.join(offered_names())}")


def _added_backends() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # takes 30 ms to import

    return entry_points(group=ENTRY_POINTS)


def named_backend(name: str | None, device: str | None = None) -> str | None:
    """The back-end that is to run everything: the one named, or the environment's.

    A device that is named wins over the environment, too.

    Raises:
        InputError: there is none of the name in the environment.
    """
    if name is not None or device is not None:
        return name
    name = settings().backend
    if name is not None and name not in backend_names():
        raise InputError(
            f"EDGERUN_BACKEND={shown(name)} names no back-end: there are "
            f"{', '.join(offered_names())}"
        )
    return name


def find_candidates(
    name: str | None = None,
    device: str | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Candidates:
    """Returns the named back-end with its companions, or else those that take part unasked.

    The reference back-end is far too slow to stand in unnoticed, and onnxruntime runs whatever a
    file says without our limits, so both have to be named. Other packages' back-ends take part
    only when they, or a device of theirs, are named: to look for their devices may take long.

    Raises:
        InputError: there is no back-end or device of that name, or a device of no back-end.
        UnsupportedError: the named one does not run here.
    """
    asked = named_backend(name, device)
    if asked is None:
        if device is None:
            return _all_candidates(given)
        asked, _, device = device.partition(":")
        if not device and asked not in backend_names():
            raise InputError(
                f"the device {asked!r} was named without a back-end: add --backend, or write "
                "BACKEND:DEVICE"
            )
        if not device:
            _check_chooses(_make(asked))
    backend, support = _probed(asked, device or None, given)
    if not support:
        raise UnsupportedError(f"the back-end {backend.name!r} does not run here: {support.reason}")
    if not backend.companions:
        return Candidates((backend,))
    choices = {**given, **backend.companion_choices()}
    companions = (make_backend(companion, given=choices) for companion in backend.companions)
    preferred = None if backend.is_simulated else backend.name  # which may name its device
    return Candidates(_acquainted((backend, *companions)), preferred)


def _check_chooses(backend: Backend) -> None:
    """Refuses a back-end whose name stands for no device."""
    from edgerun.backends.base import Backend

    name = backend.name
    if type(backend).use_device is Backend.use_device:
        raise InputError(f"{name!r} is a back-end without devices: write --backend {name}")
    if not backend.chooses_device:
        raise InputError(f"{name!r} is a back-end and names no device: write {name}:DEVICE")


def _acquainted(backends: tuple[Backend, ...]) -> tuple[Backend, ...]:
    """The same back-ends; those with companions know them."""
    for backend in backends:
        if backend.companions:
            backend.use_companions([each for each in backends if each.name in backend.companions])
    return backends


def _all_candidates(given: Mapping[str, Any]) -> Candidates:
    named = [name for name in settings().devices if name not in modules_of(ROOM)]
    probed = {name: _probed(name, None, given) for name in (*DEFAULT, *named)}
    absent = {name: support.reason for name, (_, support) in probed.items() if not support}
    measured = _measured(given, absent)
    for name in set(named).intersection(absent):
        logger.warning("the back-end '%s' takes no part: %s", name, absent[name])
    here = tuple(backend for backend, support in probed.values() if support)
    return Candidates(_acquainted((*here, *measured)), absent=absent)


def _measured(given: Mapping[str, Any], absent: dict[str, str]) -> list[Backend]:
    """The devices that were measured, and are here with the driver that they had then.

    Why others take no part is written into ``absent``.
    """
    from edgerun.machine.devices import title_of
    from edgerun.machine.profile import machine_profile

    profile, present = machine_profile(), []
    for title in dict.fromkeys(map(title_of, profile.devices if profile.complete else ())):
        name, _, device = title.partition(":")
        try:
            backend, support = _probed(name, device, given)
        except InputError as error:  # since then it was uninstalled, or its device taken away
            absent[title] = str(error)
            continue
        if not support:
            absent[title] = support.reason
        elif backend.device_profile():
            present.append(backend)
        else:
            absent[title] = backend.cost_basis()
    return present


def absent_backends(candidates: Candidates) -> dict[str, str]:
    """Why back-ends take no part in a plan, by name, those included that nobody asked for."""
    taking_part = {backend.name.partition(":")[0] for backend in candidates.every()}
    without_devices = modules_of(ROOM)
    others = {
        name: (NOT_ASKED if name in without_devices else NO_DEVICE_NAMED).format(
            name=name, upper=name.upper()
        )
        for name in offered_names()
        if name not in taking_part
    }
    return {**others, **candidates.absent}


def _probed(name: str, device: str | None, given: Mapping[str, Any]) -> tuple[Backend, Support]:
    backend = make_backend(name, device, given)
    return backend, backend.probe()
