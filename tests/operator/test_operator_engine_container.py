"""The engine in a replica's pod, by type."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.objects.render_context import UnsupportedPool
from penstock_operator.settings import OperatorSettings

Want = Callable[..., dict[str, Manifest]]
PodOf = Callable[..., Any]
TIME = {"timeModel": "llama-3-8b-a100"}


@pytest.fixture
def pod_of(want: Want) -> PodOf:
    """Return the spec of a replica's pod with this engine."""

    def pod(kind: str, *, model: dict[str, Any] | None = None, **engine: Any) -> Any:
        parts = {"engine": {"type": kind, **TIME, **engine}, **({"model": model} if model else {})}
        return want(**parts)["StatefulSet/llama-replica"]["spec"]["template"]["spec"]

    return pod


@pytest.mark.parametrize("kind", ["simulated", "vllm", "openai"])
def test_the_engine_outlives_its_sidecar_on_termination(pod_of: PodOf, kind: str) -> None:
    pod = pod_of(kind, image="engine:1")
    assert engine_of(pod)["restartPolicy"] == "Always"  # an init container that keeps running stops last
    assert [container["name"] for container in pod["containers"]] == ["sidecar"]
    assert pod["initContainers"][-1]["name"] == "engine"


@pytest.mark.parametrize("kind", ["simulated", "vllm", "openai"])
def test_the_engine_is_probed_from_start_to_end(pod_of: PodOf, kind: str) -> None:
    engine = engine_of(pod_of(kind, image="engine:1"))
    assert engine["ports"] == [{"name": "engine", "containerPort": 8000}]
    assert engine["startupProbe"]["httpGet"] == engine["livenessProbe"]["httpGet"]
    waits_s = engine["startupProbe"]["periodSeconds"] * engine["startupProbe"]["failureThreshold"]
    assert waits_s == (120 if kind == "simulated" else 1800)


def test_a_simulated_engine_runs_penstocks_image_and_reports_to_its_sidecar(pod_of: PodOf) -> None:
    pod = pod_of("simulated", args=["--seed", "7"], resources={"limits": {"nvidia.com/gpu": "1"}})
    engine = engine_of(pod)
    assert (engine["image"], engine["command"]) == ("simulator:1", ["penstock-engine"])
    assert engine["args"][-2:] == ["--seed", "7"]
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert engine["resources"]["requests"]["cpu"]
    assert "/run/penstock/telemetry.sock" in engine["args"]
    assert shared(pod, "/run/penstock") == "telemetry"


def test_the_vllm_image_is_unchanged_and_the_plug_in_is_mounted(pod_of: PodOf) -> None:
    pod = pod_of("vllm", image="vllm/vllm-openai:v0.33.0")
    copy, engine = pod["initContainers"]
    assert (copy["image"], engine["image"]) == ("plugin:1", "vllm/vllm-openai:v0.33.0")
    assert "restartPolicy" not in copy
    folder = copy["volumeMounts"][0]["mountPath"]
    assert copy["command"][-1] == variables(engine)["PYTHONPATH"] == folder
    assert after(engine, "--scheduler-cls") == "penstock_vllm.scheduler.PenstockScheduler"
    assert variables(engine)["PENSTOCK_TELEMETRY"] == "/run/penstock/telemetry.sock"
    assert shared(pod, "/run/penstock") == "telemetry"


def test_a_pool_without_a_vllm_image_gets_the_operators(pod_of: PodOf) -> None:
    assert engine_of(pod_of("vllm"))["image"] == "vllm:1"


def test_vllm_has_flags_from_the_pool(want: Want) -> None:
    objects = want(
        model={"name": "served", "source": {"hub": "org/model"}},
        engine={
            "type": "vllm",
            "image": "vllm:1",
            "tensorParallelSize": 4,
            "maxModelLen": 4096,
            "args": ["--swap-space=8"],
            "prefixCaching": True,
            "speculation": {"acceptance": 0.5},
            **TIME,
        },
        scheduling={"policy": "sola", "maxBatchTokens": 512, "maxRunning": 64, "agingTimeout": "10s"},
    )
    engine = engine_of(objects["StatefulSet/llama-replica"]["spec"]["template"]["spec"])
    reported = {
        flag: after(engine, f"--{flag}")
        for flag in ("served-model-name", "tensor-parallel-size", "max-model-len", "max-num-seqs", "port")
    }
    assert (engine["args"][0], engine["args"][-1]) == ("org/model", "--swap-space=8")
    assert reported == {
        "served-model-name": "served",
        "tensor-parallel-size": "4",
        "max-model-len": "4096",
        "max-num-seqs": "64",
        "port": "8000",
    }
    assert after(engine, "--max-num-batched-tokens") == "512"
    assert engine["args"][-3:-1] == ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    assert (
        variables(engine).items()
        >= {
            "PENSTOCK_POLICY": "sola",
            "PENSTOCK_TIME_MODEL": "llama-3-8b-a100",
            "PENSTOCK_AGING_S": "10",
            "PENSTOCK_ACCEPTANCE": "0.5",
        }.items()
    )


def test_vllms_prefix_cache_is_disabled_or_left_at_its_default(pod_of: PodOf) -> None:
    assert engine_of(pod_of("vllm", prefixCaching=False))["args"][-1] == "--no-enable-prefix-caching"
    assert not [word for word in engine_of(pod_of("vllm"))["args"] if "caching" in word]
    for kind in ("simulated", "openai"):
        pod = pod_of(kind, image="engine:1", prefixCaching=True)
        assert not [word for word in engine_of(pod).get("args", []) if "caching" in word]


@pytest.mark.parametrize(
    ("model", "loaded", "volume"),
    [
        ({"name": "org/m"}, "org/m", None),
        ({"name": "m", "source": {"hub": "org/m"}}, "org/m", None),
        (
            {"name": "m", "source": {"persistentVolumeClaim": "weights"}},
            "/model",
            {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}},
        ),
        (
            {"name": "m", "source": {"image": "weights:1"}},
            "/model",
            {"image": {"reference": "weights:1", "pullPolicy": "IfNotPresent"}},
        ),
    ],
    ids=["name", "hub", "claim", "image"],
)
def test_weights_are_read_from_the_pools_source(
    pod_of: PodOf, model: dict[str, Any], loaded: str, volume: dict[str, Any] | None
) -> None:
    pod = pod_of("vllm", model=model, image="vllm:1")
    mounted = [each for each in pod["volumes"] if each["name"] == "model"]
    assert engine_of(pod)["args"][0] == loaded
    assert mounted == ([] if volume is None else [{"name": "model", **volume}])
    assert any(mount["mountPath"] == "/model" for mount in engine_of(pod)["volumeMounts"]) is bool(mounted)


def test_an_external_engine_gets_only_its_image_and_arguments(pod_of: PodOf) -> None:
    engine = engine_of(pod_of("openai", image="sglang:1", args=["--port", "8000"]))
    assert (engine["image"], engine["args"]) == ("sglang:1", ["--port", "8000"])
    assert "command" not in engine


def test_external_engines_have_shared_memory_and_a_home(pod_of: PodOf) -> None:
    pod = pod_of("openai", image="sglang:1")
    mounts = {mount["mountPath"]: mount["name"] for mount in engine_of(pod)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}
    assert variables(engine_of(pod))["HOME"] in mounts


def test_an_external_engine_without_an_image_is_refused_by_its_field(pod_of: PodOf) -> None:
    with pytest.raises(UnsupportedPool, match=r"spec\.engine\.image: missing"):
        pod_of("openai")


def test_vllm_waits_for_a_time_model_to_be_measured(pod_of: PodOf) -> None:
    reported = variables(engine_of(pod_of("vllm", image="vllm:1", timeModel="auto")))
    assert reported["PENSTOCK_TIME_MODEL"] == "auto"
    assert reported["PENSTOCK_TELEMETRY"]


def test_a_measured_time_model_is_mounted_in_all_containers_that_read_it(want: Want) -> None:
    objects = want(engine={"type": "vllm", "image": "vllm:1", "timeModel": "our-a100.json"})
    source = {"name": "our-a100", "items": [{"key": "time-model.json", "path": "our-a100.json"}]}
    for workload in ("StatefulSet/llama-replica", "Deployment/llama-router"):
        pod = objects[workload]["spec"]["template"]["spec"]
        (config,) = (volume for volume in pod["volumes"] if volume["name"] == "config")
        assert {"configMap": source} in config["projected"]["sources"]
    engine = engine_of(objects["StatefulSet/llama-replica"]["spec"]["template"]["spec"])
    assert variables(engine)["PENSTOCK_TIME_MODEL"] == "/etc/penstock/our-a100.json"
    assert any(mount["mountPath"] == "/etc/penstock" for mount in engine["volumeMounts"])


def test_a_sidecar_that_measures_its_engine_gets_the_time_for_it(want: Want) -> None:
    def seconds(time_model: str) -> int:
        engine = {"type": "openai", "image": "e:1", "timeModel": time_model, "profileTimeout": "3m"}
        (sidecar,) = want(engine=engine)["StatefulSet/llama-replica"]["spec"]["template"]["spec"][
            "containers"
        ]
        return int(sidecar["startupProbe"]["failureThreshold"])

    assert seconds("auto") == seconds("llama-3-8b-a100") + 180


def test_a_template_for_the_engine_is_merged(pod_of: PodOf) -> None:
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    patch = {
        "spec": {
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "containers": [{"name": "engine", "env": [token], "securityContext": {"runAsUser": 0}}],
            "volumes": [
                {"name": "engine-cache", "emptyDir": None, "persistentVolumeClaim": {"claimName": "c"}}
            ],
        }
    }
    plain = pod_of("vllm", image="vllm:1")
    patched = pod_of("vllm", image="vllm:1", podTemplate=patch)
    before, after = engine_of(plain), engine_of(patched)
    assert after["env"] == [*before["env"], token]
    assert after["securityContext"] == {**before["securityContext"], "runAsUser": 0}
    assert {k: after[k] for k in ("ports", "startupProbe", "volumeMounts", "args")} == {
        k: before[k] for k in ("ports", "startupProbe", "volumeMounts", "args")
    }
    assert patched["containers"] == plain["containers"]
    assert {"name": "engine-cache", "persistentVolumeClaim": {"claimName": "c"}} in patched["volumes"]


@pytest.mark.parametrize(
    ("resources", "limits"),
    [
        ({}, {"nvidia.com/gpu": "2"}),
        (
            {"limits": {"memory": "64Gi"}, "requests": {"cpu": "8"}},
            {"memory": "64Gi", "nvidia.com/gpu": "2"},
        ),
        ({"limits": {"nvidia.com/gpu": 2}}, {"nvidia.com/gpu": 2}),
        ({"limits": {"nvidia.com/gpu": "0"}}, {"nvidia.com/gpu": "0"}),
        ({"limits": {"google.com/tpu": "4"}}, {"google.com/tpu": "4"}),
        ({"limits": {"nvidia.com/mig-3g.40gb": 2}}, {"nvidia.com/mig-3g.40gb": 2}),
    ],
    ids=["nothing", "memory", "as many", "none", "another device", "parts of GPUs"],
)
def test_vllm_gets_the_gpus_that_it_spans_if_no_device_is_named(
    pod_of: PodOf, resources: dict[str, Any], limits: dict[str, Any]
) -> None:
    engine = engine_of(pod_of("vllm", tensorParallelSize=2, resources=resources))
    assert engine["resources"]["limits"] == limits
    assert engine["resources"]["requests"] == resources.get("requests")


@pytest.mark.parametrize("kind", ["simulated", "openai"])
def test_engines_without_gpus_in_the_spec_request_no_gpu(pod_of: PodOf, kind: str) -> None:
    assert "limits" not in {k: v for k, v in engine_of(pod_of(kind, image="e:1"))["resources"].items() if v}


@pytest.mark.parametrize(
    ("engine", "runtime_class"),
    [
        ({"type": "vllm"}, "nvidia"),
        ({"type": "openai", "image": "e:1", "resources": {"limits": {"nvidia.com/gpu": 1}}}, "nvidia"),
        ({"type": "vllm", "resources": {"limits": {"nvidia.com/gpu": "0"}}}, None),
        ({"type": "vllm", "resources": {"limits": {"google.com/tpu": "4"}}}, None),
        ({"type": "simulated"}, None),
        ({"type": "vllm", "podTemplate": {"spec": {"runtimeClassName": "other"}}}, "other"),
        ({"type": "vllm", "podTemplate": {"spec": {"runtimeClassName": None}}}, None),
    ],
    ids=["spans", "asks", "none", "another device", "simulated", "its own", "removed"],
)
def test_replicas_with_gpus_have_the_runtime_class_of_the_installation(
    want: Want, settings: OperatorSettings, engine: dict[str, Any], runtime_class: str | None
) -> None:
    reported = dataclasses.replace(settings, gpu_runtime_class="nvidia")
    objects = want(settings=reported, engine={**TIME, **engine})
    pod = objects["StatefulSet/llama-replica"]["spec"]["template"]["spec"]
    assert pod.get("runtimeClassName") == runtime_class
    assert "runtimeClassName" not in objects["Deployment/llama-router"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("kind", ["simulated", "vllm", "openai"])
@pytest.mark.parametrize("restart", [{}, {"restartPolicy": "Always"}], ids=["ends", "keeps running"])
def test_init_containers_of_a_template_start_before_the_engine(
    pod_of: PodOf, kind: str, restart: dict[str, str]
) -> None:
    fetch = {"name": "fetch", "image": "fetch:1", **restart}
    patch = {"spec": {"initContainers": [{"name": "engine", "tty": True}, fetch, {"name": "unpack"}]}}
    plain = [container["name"] for container in pod_of(kind, image="e:1")["initContainers"]]
    patched = pod_of(kind, image="e:1", podTemplate=patch)["initContainers"]
    assert [container["name"] for container in patched] == [*plain[:-1], "fetch", "unpack", "engine"]
    assert patched[-1]["tty"]


def test_an_init_container_without_a_name_is_left_to_the_api_server(pod_of: PodOf) -> None:
    patched = pod_of("vllm", image="e:1", podTemplate={"spec": {"initContainers": [{"image": "fetch:1"}]}})
    assert patched["initContainers"] == [{"image": "fetch:1"}]


def test_without_tls_engines_are_the_same(pod_of: PodOf, want: Want, settings: OperatorSettings) -> None:
    plain = want(settings=dataclasses.replace(settings, tls=False))["StatefulSet/llama-replica"]
    assert engine_of(plain["spec"]["template"]["spec"]) == engine_of(pod_of("simulated"))


def test_the_engine_never_sees_the_sidecars_key(pod_of: PodOf) -> None:
    for path in ("sidecar", "direct"):
        engine = engine_of(pod_of("simulated", answerPath=path))
        assert all(mount["name"] != "tls" for mount in engine["volumeMounts"])


def engine_of(pod: Any) -> Any:
    (found,) = (container for container in pod["initContainers"] if container["name"] == "engine")
    return found


def variables(container: Any) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def after(container: Any, flag: str) -> str:
    return str(container["args"][container["args"].index(flag) + 1])


def shared(pod: Any, path: str) -> str:
    """Return the volume that engine and sidecar both mount at this path."""
    (name,) = {
        mount["name"]
        for container in (engine_of(pod), pod["containers"][0])
        for mount in container["volumeMounts"]
        if mount["mountPath"] == path
    }
    return str(name)


def test_vllm_writes_its_termination_message_where_kubernetes_reads_it(pod_of: PodOf) -> None:
    reported = {entry["name"]: entry["value"] for entry in engine_of(pod_of("vllm", image="e:1"))["env"]}
    assert reported["PENSTOCK_TERMINATION_LOG"] == "/dev/termination-log"


@pytest.mark.parametrize(("catches", "ends"), [("signal.SIGTERM", True), ("signal.SIGUSR2", False)])
def test_vllm_is_stopped_after_it_has_installed_its_signal_handler(
    pod_of: PodOf, catches: str, ends: bool
) -> None:
    engine = engine_of(pod_of("vllm", image="e:1"))
    (shell, flag, waits) = engine["lifecycle"]["preStop"]["exec"]["command"]
    code = f"import signal, sys; signal.signal({catches}, print); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()
        requested = waits.replace("/proc/1/", f"/proc/{first.pid}/").replace("sleep 0.2", "exit 1")
        assert (subprocess.run([shell, flag, requested], check=False).returncode == 0) is ends


@pytest.mark.parametrize("kind", ["simulated", "openai"])
def test_other_engines_have_no_stop_hook(pod_of: PodOf, kind: str) -> None:
    assert "lifecycle" not in engine_of(pod_of(kind, image="e:1"))


@pytest.mark.parametrize("kind", ["simulated", "vllm", "openai"])
def test_engine_and_sidecar_get_the_key_between_them_from_its_secret(pod_of: PodOf, kind: str) -> None:
    pod = pod_of(kind, image="engine:1", apiKey={"secret": "mine"})
    key = {"secretKeyRef": {"name": "mine", "key": "api-key"}}
    (sidecar,) = pod["containers"]
    for container, variables in (
        (engine_of(pod), {"PENSTOCK_ENGINE_API_KEY", "VLLM_API_KEY"}),
        (sidecar, {"PENSTOCK_ENGINE_API_KEY"}),
    ):
        reported = {one["name"] for one in container["env"] if one.get("valueFrom") == key}
        assert reported == variables


@pytest.mark.parametrize("kind", ["simulated", "vllm", "openai"])
def test_without_a_key_the_container_has_no_key_settings(pod_of: PodOf, kind: str) -> None:
    pod = pod_of(kind, image="engine:1")
    assert "API_KEY" not in str(pod)
