"""The rules of `cache_salt(secret, identity, scope)`."""

from __future__ import annotations

from collections.abc import Callable

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, returned, showing
from minserve.learn.prefix import Caller

Salt = Callable[[bytes, Caller, str], str]
SHARE, APART = "share", "apart"
SECRET = b"a secret of the server"


class Asked:
    """Salts of one candidate, written down."""

    def __init__(self, salt: Salt) -> None:
        self._salt = salt
        self.lines: list[str] = []

    def salt(self, who: Caller, scope: str, secret: bytes = SECRET) -> str:
        """The candidate's salt, checked to be text."""
        app = f", application={who.application!r}" if who.application else ""
        hidden = "secret" if secret == SECRET else "another secret"
        self.lines.append(
            f"cache_salt({hidden}, Caller({who.tenant!r}, {who.user!r}{app}), {scope!r})"
        )
        with showing(self.lines):
            salt = self._salt(secret, who, scope)
        self.lines[-1] += f"   # -> {salt if len(repr(salt)) < 14 else repr(salt)[:11] + '...'}"
        if not isinstance(salt, str):
            self.fail(f"a salt is text, as from hexdigest(); this is {returned(salt)[:60]}")
        return salt

    def same(self, one: Caller, other: Caller, scope: str, why: str) -> None:
        """The two may share."""
        if self.salt(one, scope) != self.salt(other, scope):
            self.fail(f"{why}, so they have one salt")

    def differ(
        self, one: Caller, other: Caller, scope: str, why: str, other_scope: str = ""
    ) -> None:
        """The two must not share."""
        if self.salt(one, scope) == self.salt(other, other_scope or scope):
            self.fail(f"{why}, so their salts must differ")

    def fail(self, what: str) -> None:
        """The rule is broken."""
        raise BrokenRule(what, self.lines)


def _long_enough(salt: Salt) -> None:
    for scope in ("tenant", "global"):
        asked = Asked(salt)
        text = asked.salt(Caller("acme", "anna"), scope)
        if len(text) < 32:
            asked.fail(f"{len(text)} characters can be tried out one by one: give 32 or more")


def _always_the_same(salt: Salt) -> None:
    for scope in ("user", "tenant"):
        why = "the same caller at another time"
        Asked(salt).same(Caller("acme", "anna"), Caller("acme", "anna"), scope, why)


def _a_tenant_shares(salt: Salt) -> None:
    anna, ben = Caller("acme", "anna", "desk"), Caller("acme", "ben")
    Asked(salt).same(anna, ben, "tenant", "both are of the tenant acme")


def _an_application_shares(salt: Salt) -> None:
    anna, mona = Caller("acme", "anna", "desk"), Caller("bolt", "mona", "desk")
    Asked(salt).same(anna, mona, "application", "both use the application desk")


def _all_share(salt: Salt) -> None:
    anna, mona = Caller("acme", "anna", "desk"), Caller("bolt", "mona")
    Asked(salt).same(anna, mona, "global", "global means everybody")


def _tenants_are_apart(salt: Salt) -> None:
    for scope in ("tenant", "user"):
        anna, other = Caller("acme", "anna"), Caller("bolt", "anna")
        Asked(salt).differ(anna, other, scope, "they are of two tenants")


def _users_are_apart(salt: Salt) -> None:
    anna, ben = Caller("acme", "anna"), Caller("acme", "ben")
    Asked(salt).differ(anna, ben, "user", "they are two people")


def _applications_are_apart(salt: Salt) -> None:
    anna, same = Caller("acme", "anna", "desk"), Caller("acme", "anna", "shop")
    Asked(salt).differ(anna, same, "application", "they use two applications")


def _without_an_application_it_is_the_tenant(salt: Salt) -> None:
    anna, mona = Caller("acme", "anna"), Caller("bolt", "mona")
    why = "neither has an application, and they are of two tenants"
    Asked(salt).differ(anna, mona, "application", why)
    why = "neither has an application, and both are of the tenant acme"
    Asked(salt).same(anna, Caller("acme", "ben"), "application", why)


def _fields_are_kept_apart(salt: Salt) -> None:
    for one, other in (
        (("ab", "c"), ("a", "bc")),
        *((("a", f"b{mark}c"), (f"a{mark}b", "c")) for mark in ":/|,;- \n\0"),
        (("a", "', 'b"), ("a', '", "b")),
    ):
        why = "tenant and user differ, and only look the same when written in a row"
        Asked(salt).differ(Caller(*one), Caller(*other), "user", why)


def _fields_are_typed(salt: Salt) -> None:
    tenant, user = Caller("desk", "anna"), Caller("acme", "anna", "desk")
    why = "one shares with the tenant desk, the other with the application desk"
    Asked(salt).differ(tenant, user, "application", why)
    why = "one shares with the tenant desk, the other with the application desk"
    Asked(salt).differ(tenant, user, "tenant", why, "application")
    for name in ("", "global"):
        why = f"one shares with the tenant {name!r}, the other with everybody"
        Asked(salt).differ(Caller(name, "anna"), Caller(name, "anna"), "tenant", why, "global")


def _needs_the_secret(salt: Salt) -> None:
    for other in (b"a secret of the serves", b"b secret of the server", SECRET + b"!"):
        for scope in ("user", "tenant", "global"):
            asked = Asked(salt)
            anna = Caller("acme", "anna")
            if asked.salt(anna, scope) == asked.salt(anna, scope, other):
                asked.fail(
                    "whoever knows the names could compute the salt: it must depend on all of "
                    "the secret"
                )


def _an_unknown_scope_is_refused(salt: Salt) -> None:
    for scope in ("everybody", "", "Tenant"):
        asked = Asked(salt)
        try:
            asked.salt(Caller("acme", "anna", "desk"), scope)
        except NotImplementedError:
            raise
        except BrokenRule:
            pass  # no text came back: it said nothing, and so it was not refused
        except Exception:
            continue
        asked.fail(f"there is no scope {scope!r}: raise an error, and let nobody share by accident")


RULES = (
    Rule(
        "long_enough",
        SHARE,
        "A salt is text of 32 characters or more.",
        "hmac.new(secret, message, hashlib.sha256).hexdigest()",
        _long_enough,
    ),
    Rule(
        "always_the_same",
        SHARE,
        "The same caller has the same salt at any time.",
        "No random number and no time in it: else nothing is ever reused.",
        _always_the_same,
    ),
    Rule(
        "a_tenant_shares",
        SHARE,
        "Scope tenant: all people of one tenant share.",
        "Only the tenant goes into the message.",
        _a_tenant_shares,
    ),
    Rule(
        "an_application_shares",
        SHARE,
        "Scope application: all who use one application share, across tenants.",
        "Only the application goes into the message.",
        _an_application_shares,
    ),
    Rule(
        "all_share",
        SHARE,
        "Scope global: everybody shares.",
        "Nothing of the identity goes into the message.",
        _all_share,
    ),
    Rule(
        "tenants_are_apart",
        APART,
        "Scopes user and tenant: two tenants never share.",
        "The tenant goes into the message, for user as well.",
        _tenants_are_apart,
    ),
    Rule(
        "users_are_apart",
        APART,
        "Scope user: two people never share.",
        "Tenant and user go into the message.",
        _users_are_apart,
    ),
    Rule(
        "applications_are_apart",
        APART,
        "Scope application: two applications never share.",
        "identity.application goes into the message.",
        _applications_are_apart,
    ),
    Rule(
        "without_an_application_it_is_the_tenant",
        APART,
        "A caller without an application shares with its tenant only.",
        "An empty application is nobody's: fall back to the tenant.",
        _without_an_application_it_is_the_tenant,
    ),
    Rule(
        "fields_are_kept_apart",
        APART,
        "It is clear where one field ends and the next begins.",
        "Write each field's length before it: names may contain any separator.",
        _fields_are_kept_apart,
    ),
    Rule(
        "fields_are_typed",
        APART,
        "A tenant and an application of the same name are not the same.",
        "Put what it is first: 'tenant', 'application', 'global'.",
        _fields_are_typed,
    ),
    Rule(
        "needs_the_secret",
        APART,
        "Without the whole secret nobody can compute a salt.",
        "hmac.new(secret, ...), with all of it.",
        _needs_the_secret,
    ),
    Rule(
        "an_unknown_scope_is_refused",
        APART,
        "A scope that does not exist raises an error.",
        "End the chain of ifs with `else: raise ValueError(scope)`.",
        _an_unknown_scope_is_refused,
    ),
)

SUITE = Suite(
    "cache_salt",
    (SHARE, APART),
    RULES,
    {
        SHARE: Ladder(
            drawing="""\
scope          who shares with anna of acme, who uses desk
  user         anna
  tenant       everybody of acme
  application  everybody who uses desk, of any tenant
  global       everybody""",
            pseudocode="""\
shared = what those who may share have in common, by scope
return the HMAC of it under the secret, in hex""",
            near_miss="""\
- return secrets.token_hex(16)                       # nobody ever shares, not even with herself
+ return hmac.new(secret, message, hashlib.sha256).hexdigest()""",
        ),
        APART: Ladder(
            drawing="""\
                  written in a row      with lengths
  ("ab", "c")     abc                   2 ab 1 c
  ("a", "bc")     abc                   1 a  2 bc""",
            pseudocode="""\
user:         ("user", tenant, user)
application:  ("application", application)    if there is one, else as tenant
tenant:       ("tenant", tenant)
global:       ("global",)
anything else: an error
message: each field as bytes, its length in 8 bytes before it""",
            near_miss="""\
- message = ":".join(shared).encode()
+ message = b"".join(len(f.encode()).to_bytes(8, "little") + f.encode() for f in shared)""",
        ),
    },
)
