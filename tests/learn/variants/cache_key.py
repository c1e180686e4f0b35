"""Variants of `cache_key`; see `variants` for their form."""

KEY = """
    import hashlib
    import json
    import unicodedata
    from dataclasses import asdict

    def cache_key(query):
        form = asdict(query)
        identity = form.pop("identity")
        if query.scope != "public":
            form["tenant"] = identity["tenant"]
            form["roles"] = sorted(identity["roles"])
        if query.scope == "subject":
            form["subject"] = identity["subject"]
        for message in form["messages"]:
            message["content"] = unicodedata.normalize("NFC", message["content"])
        text = json.dumps(form, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
"""

KEY_BY_HAND = """
    from dataclasses import fields, is_dataclass
    from hashlib import blake2b
    from unicodedata import normalize

    def written(value):
        "Typed, and as long as it says: nothing can slide."
        if is_dataclass(value):
            value = {f.name: getattr(value, f.name) for f in fields(value)}
        if isinstance(value, dict):
            value = [[name, value[name]] for name in sorted(value)]
        if isinstance(value, (list, tuple)):
            body = b"".join(written(item) for item in value)
            return b"list %d:" % len(value) + body
        body = str(value).encode("utf-8", "surrogatepass")
        return b"%s %d:" % (type(value).__name__.encode(), len(body)) + body

    def cache_key(query):
        identity = query.identity
        company = (identity.tenant, sorted(identity.roles))
        person = (*company, identity.subject)
        who = {"public": (), "tenant": company, "subject": person}[query.scope]
        turns = [(m.role, normalize("NFC", m.content), m.extra) for m in query.messages]
        names = [f.name for f in fields(query) if f.name not in ("identity", "messages")]
        rest = [(name, getattr(query, name)) for name in names]
        return blake2b(written([who, turns, rest])).hexdigest()
"""

RIGHT = ("cache_key", {"over JSON": KEY, "by hand": KEY_BY_HAND})
WRONG = {
    "bytes": (
        ".hexdigest()",
        ".digest()",
        "same_request_same_key",
        "a key is some text; this is b",
    ),
    "the question alone": (
        "text = json.dumps(form, sort_keys=True)",
        "text = query.question",
        "tenants_are_separate",
        "two tenants ask, and yet both have one key",
    ),
    "no tenant": (
        'form["tenant"] = identity["tenant"]',
        "pass",
        "tenants_are_separate",
        "two tenants ask, and yet both have one key",
    ),
    "no roles": (
        'form["roles"] = sorted(identity["roles"])',
        "pass",
        "scope_says_who_shares",
        "an admin may be told more",
    ),
    "no subject": (
        'form["subject"] = identity["subject"]',
        "pass",
        "scope_says_who_shares",
        "each has answers of their own in this scope",
    ),
    "who asks, always": (
        'if query.scope == "subject":',
        "if True:",
        "scope_says_who_shares",
        "they share answers in this scope",
    ),
    **{
        f"without {name}": (
            "text = json",
            f'form{place}.pop("{name}"); text = json',
            "every_field_separates",
            f"{name} differs",
        )
        for place, names in {
            '["decoding"]': ("seed", "max_tokens", "stop", "top_p"),
            '["model"]': ("revision", "tokenizer", "template", "adapter"),
            "": (
                *("tools", "tool_state", "prompt_version", "policy_version"),
                *("corpus_snapshot", "locale"),
            ),
        }.items()
        for name in names
    },
    "joined": (
        "json.dumps(form, sort_keys=True)",
        '"|".join(str(value) for value in form.values())',
        "fields_do_not_slide",
        "policy version and corpus differ",
    ),
    "a default temperature": (
        "text = json",
        'form["decoding"]["temperature"] = query.decoding.temperature or 0.0; text = json',
        "types_count",
        "omitted is not 0",
    ),
    "str() of a field": (
        "text = json",
        'form["locale"] = str(form["locale"]); text = json',
        "types_count",
        "the locales differ",
    ),
    "text as it came": (
        'unicodedata.normalize("NFC", message["content"])',
        'message["content"]',
        "nfc_is_one_spelling",
        "one text, spelt in two ways",
    ),
    "NFKC": (
        '"NFC"',
        '"NFKC"',
        "different_questions_stay_apart",
        "the questions differ",
    ),
    "lower case": (
        'message["content"])',
        'message["content"].lower())',
        "different_questions_stay_apart",
        "the questions differ",
    ),
    "JSON as it came": (
        "sort_keys=True",
        "sort_keys=False",
        "json_order_means_nothing",
        "the tools are equal",
    ),
    "hash()": (
        "hashlib.sha256(text.encode()).hexdigest()",
        "str(hash(text))",
        "same_in_every_process",
        "which every process salts anew",
    ),
}
