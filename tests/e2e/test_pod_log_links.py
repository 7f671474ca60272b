"""Logs of deleted pods that the end-to-end test keeps."""

import shutil
from pathlib import Path

from pool_on_cluster.diagnostics import PodLogLinks, link_logs


def test_a_log_outlives_its_pod_up_to_its_last_line(tmp_path: Path) -> None:
    pod = tmp_path / "node1" / "log" / "pods" / "e2e_chat-router-1_uid"
    (pod / "router").mkdir(parents=True)
    log = pod / "router" / "0.log"
    log.write_text("ready\n")
    with PodLogLinks(tmp_path):
        link_logs(tmp_path)
        with log.open("a") as more:
            more.write("stopped\n")
        link_logs(tmp_path)
        shutil.rmtree(pod)
        link_logs(tmp_path)
    (kept,) = (tmp_path / "pod-logs").iterdir()
    assert kept.name == "e2e_chat-router-1_uid_router_0.log"
    assert kept.read_text() == "ready\nstopped\n"
