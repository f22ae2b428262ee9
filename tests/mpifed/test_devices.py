"""Every method keeps its tensors on the device of the run."""

from __future__ import annotations

import pytest
import torch
from pretend_device import OnDevice, pretended
from test_algorithms import engine_of, every_case

from mpifed import state as states


def elsewhere(engine):
    """The tensors of a state that are not on the device, but for counters."""
    is_rows = engine.setup.exchange.shared_is_rows
    found = states.tensors(engine.state, is_rows)
    return [n for n, t, _ in found if t.is_floating_point() and not isinstance(t, OnDevice)]


def two_rounds(name, exchange, device, **more):
    engine = engine_of(name, exchange, device=device, **more)
    with torch.no_grad():
        engine.prepare()
    for _ in range(2):
        engine.advance()
        engine.agree(False)
    engine.evaluate(None, None)
    return engine


@pytest.mark.parametrize("participation", [1.0, 0.5])
@every_case
def test_a_run_on_a_device_keeps_its_state_there(name, exchange, participation):
    on_cpu = two_rounds(name, exchange, "cpu", participation=participation)
    with pretended():
        engine = two_rounds(name, exchange, "cuda", participation=participation)
        assert engine.digest() == on_cpu.digest()
        assert not elsewhere(engine)
