"""The model that a pool serves, and its engine."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from penstock_pool.cel import CelRule, FieldErrorReason, checked_by
from penstock_pool.known import TimeModelName
from penstock_pool.pod_spec import PodTemplate, Resources
from penstock_pool.scalars import Count, Duration, Flag, Number, ObjectName, Text, wrong_at
from penstock_pool.spec import Spec
from penstock_pool.time_models import SUFFIX

AUTO = "auto"
"""Value of `timeModel` for a time model that is measured at start."""

NEEDS_BUILT_IN_MODEL = "a simulated engine cannot be measured; write for example llama-3-8b-a100"

GPU = "nvidia.com/gpu"
"""The resource whose number follows from `tensorParallelSize`."""

CACHE_ARGUMENTS = r"^--(no[-_])?enable[-_]prefix[-_]caching"
"""vLLM's arguments for the setting `prefixCaching`."""

CACHED_TOKENS_ARGUMENT = "--enable-prompt-tokens-details"
"""vLLM's argument for `usage.prompt_tokens_details` in answers."""

ALSO_IN_ARGS = "is also set by an argument in args; remove one of them"

PARALLELISM_ARGUMENTS = r"^(--(pipeline|data)[-_]parallel[-_]size|-pp|-dp)"
"""vLLM's arguments by which a replica uses more GPUs than `tensorParallelSize`."""

GPU_COUNT_DIFFERS = (
    f"{GPU} differs from tensorParallelSize, the number of GPUs of one replica: write the same number, "
    f'leave {GPU} out, or write "0" for an engine without such GPUs'
)

DIRECT_NEEDS_TICKETS = "direct needs an engine that checks the sidecar's tickets, of type vllm or simulated"

Argument = Annotated[str, Field(max_length=4096)]
"""One argument of a command."""


class ModelSource(Spec):
    """Source of the weights: exactly one of these. Without any, the hub id is the model's name."""

    model_config = checked_by(
        CelRule(
            "[has(self.hub), has(self.persistentVolumeClaim), has(self.image)].filter(is, is).size() == 1",
            "needs exactly one of hub, persistentVolumeClaim, image",
        )
    )

    hub: Text | None = Field(
        default=None, description="Hugging Face hub id.", examples=["meta-llama/Llama-3.1-8B-Instruct"]
    )
    persistent_volume_claim: ObjectName | None = Field(
        default=None, description="PersistentVolumeClaim with the weights.", examples=["llama3-weights"]
    )
    image: Text | None = Field(
        default=None,
        description="OCI image mounted as a volume with the weights.",
        examples=["registry.example/llama3:1"],
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(source is not None for source in (self.hub, self.persistent_volume_claim, self.image)) != 1:
            raise wrong_at("", "needs exactly one of hub, persistentVolumeClaim, image")
        return self


class ModelSpec(Spec):
    """The model."""

    model_config = checked_by(
        CelRule(
            "self.name == oldSelf.name",
            'cannot change from "{oldSelf.name}": replicas are replaced one by one, and meanwhile clients '
            "would get answers of both models; create a second pool",
            field_path="name",
            reason=FieldErrorReason.UNUSED,
        )
    )

    name: Text = Field(
        description="Name of the model in clients' requests; also the hub id unless `source` names another.",
        examples=["meta-llama/Llama-3.1-8B-Instruct"],
    )
    source: ModelSource | None = Field(default=None, description="Source of the weights.")


class SpeculationSpec(Spec):
    """Speculative decoding."""

    max_tokens: Annotated[Count, Field(le=16)] = Field(
        default=4, description="Most draft tokens of one decode in one step.", examples=[4]
    )
    acceptance: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.7,
        description="Probability that a draft token is accepted, 0 to 1; measured on a live engine.",
        examples=[0.7],
    )


class EngineKey(Spec):
    """Source of the API key between sidecar and engine. Local tools read `PENSTOCK_ENGINE_API_KEY`."""

    secret: ObjectName = Field(
        description="Secret in the pool's namespace: its entry `api-key` is the key.", examples=["engine-key"]
    )


class EngineSpec(Spec):
    """The engine beside every sidecar."""

    model_config = checked_by(
        CelRule(
            f"self.type != 'simulated' || !self.timeModel.matches('^({AUTO}|.*[{SUFFIX[0]}]{SUFFIX[1:]})$')",
            NEEDS_BUILT_IN_MODEL,
            field_path="timeModel",
        ),
        CelRule(
            "self.type != 'openai' || has(self.image)",
            "missing; a cluster needs the engine's container image, for example vllm/vllm-openai:v0.33.0",
            field_path="image",
            reason=FieldErrorReason.MISSING,
        ),
        CelRule(
            "self.type != 'vllm' || !has(self.resources) || !has(self.resources.limits) || "
            f"!('{GPU}' in self.resources.limits) || "
            f"string(self.resources.limits['{GPU}']) in ['0', string(self.tensorParallelSize)] || "
            f"(has(self.args) && self.args.exists(argument, argument.matches('{PARALLELISM_ARGUMENTS}')))",
            GPU_COUNT_DIFFERS,
            field_path="resources.limits",
        ),
        CelRule(
            "!has(self.prefixCaching) || !has(self.args) || "
            f"!self.args.exists(argument, argument.matches('{CACHE_ARGUMENTS}'))",
            ALSO_IN_ARGS,
            field_path="prefixCaching",
        ),
        CelRule(
            "self.type != 'openai' || self.answerPath != 'direct'",
            DIRECT_NEEDS_TICKETS,
            field_path="answerPath",
        ),
    )

    type: Literal["vllm", "openai", "simulated"] = Field(
        description="`vllm` with Penstock's scheduler; `openai`: any OpenAI-compatible engine, unmodified; "
        "`simulated`: a GPU's timing without the GPU.",
        examples=["vllm"],
    )
    image: Text | None = Field(
        default=None,
        description="Container image of the engine. Required in a cluster for engines of type `openai`; for "
        "the other types, absent: the operator's default.",
        examples=["vllm/vllm-openai:v0.33.0"],
    )
    args: Annotated[tuple[Argument, ...], Field(max_length=256)] = Field(
        default=(), description="Arguments of the engine, passed unchanged.", examples=[["--swap-space", "8"]]
    )
    tensor_parallel_size: Count = Field(
        default=1,
        description="GPUs of one replica. An engine of type `vllm` whose `resources` name no device, such as "
        f"`{GPU}` or `google.com/tpu`, gets this many `{GPU}`.",
        examples=[1],
    )
    resources: Resources = Field(
        default_factory=Resources,
        description="Resources of the engine's container. "
        f'`{GPU}: "0"` in `limits` is for vLLM without such GPUs.',
    )
    api_key: EngineKey | None = Field(
        default=None,
        description="API key that the engine requires, so that it serves only its own sidecar.",
        examples=[{"secret": "engine-key"}],
    )
    time_model: TimeModelName = Field(
        default=AUTO,
        description="Duration of an iteration: a built-in model by name, `auto` to measure the engine at "
        "start, or the output of `penstock profile`: a `.json` file beside this one, in a cluster "
        "`NAME.json` for the ConfigMap NAME that has that file as `time-model.json`. It is always corrected "
        "online. A simulated engine requires one.",
        examples=["llama-3-8b-a100"],
    )
    kv_cache_tokens: Count | None = Field(
        default=None,
        description="Capacity of the KV cache in tokens. A live engine reports it.",
        examples=[43296],
    )
    block_tokens: Count = Field(default=16, description="Tokens in one block of the KV cache.", examples=[16])
    prefix_caching: Flag | None = Field(
        default=None,
        description="Whether the engine keeps the KV of prompts for later ones that begin alike. Absent: "
        "vLLM's own default, which is on; off for a simulated engine. Engines of type `vllm` and `simulated` "
        "are started with it; for type `openai` it describes the engine's own setting.",
        examples=[True],
    )
    prefix_isolation: Literal["application", "none"] | None = Field(
        default=None,
        description="Requests that share cached prefixes. `application`: those of one application, so that "
        "no other can infer its prompts from a fast first token; bodies get a `cache_salt`. `none`: those of "
        "the whole pool, except where clients write a `cache_salt`. Absent: `application`; for type `openai` "
        "`none`, because such an engine may refuse the field. Without `applications` it has no effect.",
        examples=["application"],
    )
    answer_path: Literal["sidecar", "direct"] = Field(
        default="sidecar",
        description="Path of answers. `sidecar`: through the sidecar, with TLS where routers and replicas "
        "have it. `direct`: the sidecar admits a request and gives the router a ticket; with it the router "
        "sends the request to the engine's own port, and reads the answer there. An Envoy of the pool sends "
        "requests to the engine's port, and the engine asks the sidecar about each. The operator gives the "
        "engine TLS too. For engines of type `vllm` and `simulated`; behind an InferencePool's Gateway "
        "answers pass the sidecar.",
        examples=["direct"],
    )
    max_model_len: Count = Field(
        default=8192, description="Longest prompt and answer together, in tokens.", examples=[8192]
    )
    speculation: SpeculationSpec | None = Field(
        default=None, description="Speculative decoding; absent: off."
    )
    connect_timeout_s: Duration = Field(
        default=2.0, description="Longest wait for a connection to the engine.", examples=["2s"]
    )
    silence_timeout_s: Duration = Field(
        default=60.0,
        description="Longest delay of a request at the engine against the planner's forecast without any "
        "progress; then it counts as lost.",
        examples=["60s"],
    )
    profile_timeout_s: Duration = Field(
        default=60.0,
        description="With `timeModel: auto`, duration of the engine's measurement before a replica is ready.",
        examples=["60s"],
    )
    pod_template: PodTemplate | None = Field(
        default=None,
        description="Merged into the replica's pod: tolerations, volumes, node selection.",
        examples=[{"spec": {"nodeSelector": {"gpu": "a100"}}}],
    )

    @property
    def direct(self) -> bool:
        """Return whether answers pass routers or Envoys only, not the sidecar."""
        return self.answer_path == "direct"

    @property
    def caches_prefixes(self) -> bool:
        """Return whether the engine has a prefix cache, according to the pool."""
        if self.prefix_caching is not None:
            return self.prefix_caching
        switched = [word for word in self.args if re.match(CACHE_ARGUMENTS, word)]
        return self.type == "vllm" and not any(word.startswith("--no") for word in switched)

    @property
    def isolates_applications(self) -> bool:
        """Return whether each application has cached prefixes of its own."""
        if self.prefix_isolation is None:
            return self.type != "openai"
        return self.prefix_isolation == "application"

    @model_validator(mode="after")
    def _simulated_needs_time_model(self) -> Self:
        if self.type == "simulated" and (self.time_model == AUTO or self.time_model.endswith(SUFFIX)):
            raise wrong_at("timeModel", NEEDS_BUILT_IN_MODEL)
        return self

    @model_validator(mode="after")
    def _gpu_count_matches(self) -> Self:
        given = str(self.resources.limits.get(GPU, "0"))
        more = any(re.match(PARALLELISM_ARGUMENTS, argument) for argument in self.args)
        if self.type == "vllm" and given not in ("0", str(self.tensor_parallel_size)) and not more:
            raise wrong_at("resources.limits", GPU_COUNT_DIFFERS)
        return self

    @model_validator(mode="after")
    def _direct_engine_checks_tickets(self) -> Self:
        if self.type == "openai" and self.direct:
            raise wrong_at("answerPath", DIRECT_NEEDS_TICKETS)
        return self

    @model_validator(mode="after")
    def _prefix_caching_set_once(self) -> Self:
        if self.prefix_caching is not None and any(re.match(CACHE_ARGUMENTS, word) for word in self.args):
            raise wrong_at("prefixCaching", ALSO_IN_ARGS)
        return self


def cache_arguments(spec: EngineSpec) -> tuple[str, ...]:
    """Return vLLM's arguments for the pool's `prefixCaching`; none if it is absent.

    With the cache, answers report how many prompt tokens were cached.
    """
    if spec.prefix_caching is None:
        return ()
    if not spec.prefix_caching:
        return ("--no-enable-prefix-caching",)
    reporting = () if CACHED_TOKENS_ARGUMENT in spec.args else (CACHED_TOKENS_ARGUMENT,)
    return ("--enable-prefix-caching", *reporting)
