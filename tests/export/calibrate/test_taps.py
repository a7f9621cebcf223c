"""Every projection of a layer is in a group, whatever the layer is made of."""

from __future__ import annotations

import pytest

from edgerun_export.calibrate.taps import all_groups
from tests.support.bundles import NAMES


@pytest.mark.parametrize("name", NAMES)
def test_no_projection_is_left_to_nobody(name, golden):
    spec = golden(name).spec
    for layer in range(spec.num_layers):
        groups = all_groups(spec, layer)
        paths = [projection.path for group in groups for projection in group]
        assert sorted(paths) == sorted(each.path for each in spec.projections(layer))
        assert all(len({each.in_features for each in group}) == 1 for group in groups)
