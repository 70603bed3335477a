"""At a producer's first contact the brokers of another cluster answer, for a moment or for good."""

from __future__ import annotations

import pytest
from virtual import Life, World


class TwoClusters(World):
    """Two clusters with the same addresses, which lead to one of them at a time. Both have the topic."""

    def __init__(self, brokers: int = 1) -> None:
        super().__init__(brokers)
        self._states: dict[str, dict[str, object]] = {}
        self.cluster.create_topic("orders", 1)

    def lead_to(self, cluster_id: str) -> None:
        handler = self.cluster._handler
        self._states[self.cluster.cluster_id] = dict(vars(handler))
        self.cluster.replace(cluster_id)
        if cluster_id in self._states:
            vars(handler).update(self._states[cluster_id])
        else:
            self.cluster.create_topic("orders", 1)

    def deliver(self, life: Life, value: bytes) -> None:
        parcel = life.send("orders", 0, [value])
        assert self.run(60, lambda: parcel.done)


@pytest.mark.parametrize("bound", [False, True], ids=["new", "bound"])
@pytest.mark.parametrize("brokers", [1, 3])
def test_brokers_of_another_cluster_that_know_no_brokers_do_not_bar_the_right_ones(brokers, bound):
    """1. The address leads to a broker of another cluster that has just started. It reports its cluster, but no brokers.
    2. The address leads to the right cluster.
    """
    world = TwoClusters(brokers)
    if bound:
        life = world.start()
        world.deliver(life, b"0")
        world.kill(life)
    world.lead_to("other")
    for broker in world.centre.brokers.values():
        broker.fenced = True
    life = world.start()
    parcel = life.send("orders", 0, [b"1"])
    world.run(2)
    assert life.context.own_cluster.cluster_id is None
    world.lead_to("fake-cluster")
    assert world.run(60, lambda: parcel.done)
    assert world.log("orders", 0) == ([b"0", b"1"] if bound else [b"1"])
    assert life.context.own_cluster.cluster_id == life.context.directory.cluster_id() == "fake-cluster"
