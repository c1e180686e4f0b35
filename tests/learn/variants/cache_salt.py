"""Variants of `cache_salt`; see `variants` for their form."""

SALT = """
    import hmac
    from hashlib import sha256

    def cache_salt(secret, identity, scope):
        if scope == "user":
            shared = ("user", identity.tenant, identity.user)
        elif scope == "application" and identity.application:
            shared = ("application", identity.application)
        elif scope in ("tenant", "application"):
            shared = ("tenant", identity.tenant)
        elif scope == "global":
            shared = ("global",)
        else:
            raise ValueError(scope)
        message = b""
        for field in shared:
            text = field.encode()
            message += len(text).to_bytes(8, "little") + text
        return hmac.new(secret, message, sha256).hexdigest()
"""

SALT_BY_JSON = """
    import hmac
    import json

    def salt_for(secret, who, scope):
        tenant = {"tenant": who.tenant}
        shared = {
            "user": {**tenant, "user": who.user},
            "tenant": tenant,
            "application": {"application": who.application} if who.application else tenant,
            "global": {},
        }[scope]
        text = json.dumps(shared, sort_keys=True)
        return hmac.digest(secret, text.encode(), "sha512").hex()

    def cache_salt(secret, identity, scope):
        return salt_for(secret, identity, scope)
"""

RIGHT = ("cache_salt", {"as in the lesson": SALT, "json": SALT_BY_JSON})
WRONG = {
    "short": (".hexdigest()", ".hexdigest()[:8]", "long_enough", "8 characters"),
    "bytes": (".hexdigest()", ".digest()", "long_enough", "a salt is text"),
    "random": (
        "hmac.new(secret, message",
        'hmac.new(__import__("os").urandom(8), message',
        "always_the_same",
        "the same caller at another time",
    ),
    "tenant means user": (
        '            shared = ("tenant", identity.tenant)\n',
        '            shared = ("tenant", identity.tenant, identity.user)\n',
        "a_tenant_shares",
        "both are of the tenant",
    ),
    "application within the tenant": (
        '("application", identity.application)\n',
        '("application", identity.tenant, identity.application)\n',
        "an_application_shares",
        "both use the application",
    ),
    "nobody shares": (
        'shared = ("global",)',
        'shared = ("global", identity.tenant)',
        "all_share",
        "everybody",
    ),
    "everybody shares": (
        '            shared = ("tenant", identity.tenant)\n',
        '            shared = ("tenant", "")\n',
        "tenants_are_apart",
        "two tenants",
    ),
    "user names are enough": (
        '("user", identity.tenant, identity.user)',
        '("user", identity.user)',
        "tenants_are_apart",
        "two tenants",
    ),
    "user means tenant": (
        '("user", identity.tenant, identity.user)',
        '("user", identity.tenant)',
        "users_are_apart",
        "two people",
    ),
    "one for all applications": (
        '("application", identity.application)\n',
        '("application",)\n',
        "applications_are_apart",
        "two applications",
    ),
    "no application is one too": (
        'scope == "application" and identity.application:',
        'scope == "application":',
        "without_an_application_it_is_the_tenant",
        "neither has an application",
    ),
    "in a row": (
        'len(text).to_bytes(8, "little") + text',
        "text",
        "fields_are_kept_apart",
        "written in a row",
    ),
    "colons": (
        'len(text).to_bytes(8, "little") + text',
        'b":" + text',
        "fields_are_kept_apart",
        "written in a row",
    ),
    "not typed": (
        "for field in shared:",
        "for field in shared[1:]:",
        "fields_are_typed",
        "the application desk",
    ),
    "no secret": (
        "hmac.new(secret, message, sha256)",
        "sha256(message)",
        "needs_the_secret",
        "could compute the salt",
    ),
    "half the secret": (
        "hmac.new(secret,",
        "hmac.new(secret[:8],",
        "needs_the_secret",
        "could compute the salt",
    ),
    "tenant if in doubt": (
        'elif scope in ("tenant", "application"):',
        'elif scope != "global":',
        "an_unknown_scope_is_refused",
        "there is no scope",
    ),
    "global if in doubt": (
        "raise ValueError(scope)",
        'shared = ("everybody",)',
        "an_unknown_scope_is_refused",
        "there is no scope",
    ),
}
