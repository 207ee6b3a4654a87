"""A real Ray cluster of two nodes on this machine, one of which can be killed."""

from __future__ import annotations

import json
import subprocess
import sys

# A program of its own, since Ray leaves sockets and child processes to the garbage collector.
CLUSTER = """
import json, sys
from ray.cluster_utils import Cluster

common = {"num_gpus": int(sys.argv[2]), "object_store_memory": 100_000_000}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": int(sys.argv[1]), **common})
second = cluster.add_node(num_cpus=1, **common)
print(json.dumps({"address": cluster.address}), flush=True)
for line in sys.stdin:
    if line.strip() == "kill":
        cluster.remove_node(second, allow_graceful=False)
        print("killed", flush=True)
    else:
        break
cluster.shutdown()
"""


class RayCluster:
    """A cluster of two nodes; the driver connects to the one that stays.

    Args:
        cpus: CPUs of the node that stays; the other one has one.
        gpus: GPUs that Ray counts on each node, whether or not this machine has any.
    """

    def __init__(self, cpus: int = 1, gpus: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER, str(cpus), str(gpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self._next_line("address")

    def kill_second_node(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()
        self._next_line("killed")

    def stop(self) -> None:
        self._process.communicate("stop\n", timeout=60)

    def _next_line(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return str(json.loads(line)[word])
            if line.strip() == word:
                return word
        raise AssertionError("the cluster has ended")
