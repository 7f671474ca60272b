"""Applications: clients of the pool, identified by API keys, and the tiers that each may use."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from penstock_pool.cel import CelRule, FieldErrorReason, checked_by
from penstock_pool.scalars import Count, Name, ObjectName, Text, wrong_at
from penstock_pool.spec import Spec


class KeySource(Spec):
    """Source of an application's API keys: exactly one of these."""

    model_config = checked_by(
        CelRule(
            "has(self.secret) != has(self.file)",
            "needs exactly one of secret, file",
        ),
        CelRule(
            "!has(self.file)",
            "is for local tools; a cluster reads keys from a Secret of its own: write secret",
            field_path="file",
            reason=FieldErrorReason.UNUSED,
        ),
    )

    secret: ObjectName | None = Field(
        default=None,
        description="Secret in the pool's namespace: its entry `keys` has one key per line. For a cluster.",
        examples=["ide-keys"],
    )
    file: Text | None = Field(
        default=None,
        description="File with one key per line, beside the pool file. For local tools only.",
        examples=["keys.txt"],
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.secret is None) == (self.file is None):
            raise wrong_at("", "needs exactly one of secret, file")
        return self


class ApplicationLimits(Spec):
    """Limits on one application's use of the pool, over all routers. An absent limit does not apply."""

    concurrent_requests: Count | None = Field(
        default=None, description="Most requests in progress at once.", examples=[64]
    )
    requests_per_minute: Count | None = Field(
        default=None, description="Most requests in any 60 seconds.", examples=[600]
    )
    tokens_per_minute: Count | None = Field(
        default=None,
        description="Most tokens in any 60 seconds, of prompts and answers. A request counts with its prompt "
        "and its `max_tokens` when it arrives, and with the tokens that it used once it has ended.",
        examples=[100000],
    )


class Application(Spec):
    """A client of the pool."""

    name: Name = Field(description="Unique in the pool.", examples=["ide"])
    tier: Name = Field(description="Tier of its requests that do not name one.", examples=["coder"])
    allow: Annotated[tuple[Name, ...], Field(max_length=16)] = Field(
        default=(), description="Other tiers that it may use.", examples=[["batch"]]
    )
    keys: KeySource = Field(description="Its API keys.")
    limits: ApplicationLimits = Field(
        default=ApplicationLimits(),
        description="Its limits; requests beyond them are answered 429. Absent: no limits.",
    )

    def may_use(self, tier: str) -> bool:
        """Return whether a key of this application may use this tier."""
        return tier == self.tier or tier in self.allow
