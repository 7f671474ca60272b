"""Selection of a request's application and tier.

The tier header takes precedence, and an unknown tier there is an error. Next is the application that the API
key belongs to. If a pool has no applications, the header of an inference objective or the body's
`service_tier` may name a tier. Clients also use other values there (`auto`, `flex`), so unknown ones select
the default tier.
"""

from penstock_core.domain.slo import Targets, Tier
from penstock_pool import Application
from penstock_runtime.openai_errors import ApiError

from penstock_routing.applications.api_keys import Keys
from penstock_routing.request import request_head
from penstock_routing.settings import Settings


def application_of(keys: Keys, head: request_head.Head) -> Application | None:
    """Return the application of the request's key; None if the pool has none. Raises ApiError (401)."""
    if not keys.required:
        return None
    key = request_head.api_key(head)
    application = keys.application(key)
    if application is None:
        message = (
            "no API key was given; send 'Authorization: Bearer KEY'" if key is None else "unknown API key"
        )
        raise ApiError(
            401,
            message,
            param="authorization",
            code="invalid_api_key",
            headers=(("www-authenticate", "Bearer"),),
        )
    return application


def check_model(settings: Settings, requested: str) -> None:
    """Raise ApiError (404) in OpenAI's format if the pool does not serve the model."""
    if requested != settings.model:
        raise unknown_model(requested, settings.model)


def unknown_model(requested: str, served: str) -> ApiError:
    """Return the error (404) of a request for another model."""
    return ApiError(
        404,
        f"the model '{requested[:128]}' does not exist; this pool serves '{served}'",
        param="model",
        code="model_not_found",
    )


def tier_for(
    settings: Settings, application: Application | None, head: request_head.Head, service_tier: str | None
) -> Tier:
    """Return a request's tier, by its headers, its key and its body. Raises ApiError (400, 403)."""
    hint = request_head.objective(head) or service_tier
    return select_tier(settings, application, request_head.tier_name(head), hint)


def select_tier(
    settings: Settings, application: Application | None, header: str | None, hint: str | None
) -> Tier:
    """Return the tier that the header names, else the application's, else the one that the hint names.

    hint: the inference objective or `service_tier`. An unknown one selects the default tier. Raises ApiError:
    400 if the header names an unknown tier, 403 if the application may not use it.
    """
    if header is not None:
        return _by_header(settings, application, header)
    if application is not None:
        return settings.tiers[application.tier]
    return settings.tiers.get(hint or "", settings.tiers[settings.default_tier])


def _by_header(settings: Settings, application: Application | None, header: str) -> Tier:
    tier = settings.tiers.get(header)
    if tier is None:
        raise ApiError(
            400,
            f"{request_head.TIER}: unknown tier '{header[:64]}'; this pool has {', '.join(settings.tiers)}",
            param=request_head.TIER,
            code="unknown_tier",
        )
    if application is not None and not application.may_use(tier.name):
        allowed = ", ".join((application.tier, *application.allow))
        raise ApiError(
            403,
            f"{request_head.TIER}: this API key may not use tier '{tier.name}'; it may use {allowed}",
            type="permission_error",
            param=request_head.TIER,
            code="tier_not_allowed",
        )
    return tier


def own_targets(tier: Tier, head: request_head.Head) -> Targets:
    """Return the request's own targets. Raises ApiError (400) if they are invalid or not allowed.

    A tier that does not allow them rejects the request instead of ignoring them: clients rely on them.
    """
    targets = request_head.targets(head)
    if (name := request_head.targets_header(head)) is not None and not tier.allow_request_targets:
        raise ApiError(
            400,
            f"{name}: tier '{tier.name}' does not accept targets from requests",
            param=name,
            code="not_allowed",
        )
    return targets
