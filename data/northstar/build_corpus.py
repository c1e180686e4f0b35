"""Write the Northstar corpus: tenants, keys, policies in two versions, accounts, questions.

    python data/northstar/build_corpus.py

Deterministic. Product names and values come from the eighth of all texts that northstar-nano's
training never sees (``northstar_tasks.is_held_out``). Prose files (system_prompt.txt, tools.json,
documents.json, tasks.json) are written by hand.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "data/models")]

from northstar_tasks import (  # noqa: E402
    ACCOUNT_ATTRIBUTES,
    POLICY_ATTRIBUTES,
    draw_value,
    is_held_out,
    words,
)

from minserve.northstar import prompts  # noqa: E402

COMMON = ["monthly price", "refund window", "notice period", "support hours", "response time"]
TENANTS = {
    "kestrel": dict(
        name="Kestrel Software",
        products=["Lumora Basic", "Lumora Plus", "Galdor Cloud", "Galdor Team", "Cinder Pass"],
        attributes=[*COMMON, "seat limit", "storage limit", "data region", "trial length"],
        users=["Thora Gray", "Viggo Unger", "Emil Garner", "Mona Irving"],
    ),
    "alder": dict(
        name="Alder Mutual",
        products=["Jorvik Cover", "Jorvik Care", "Elstow Home", "Elstow Travel", "Cinder Pass"],
        attributes=[*COMMON, "coverage limit", "deposit", "form number", "review date"],
        users=["Gustav Hobbs", "Edda Radley", "Nils Anders", "Zara Tan"],
    ),
    "marlow": dict(
        name="Marlow Retail",
        products=["Larkin Saver", "Larkin Express", "Umber Store", "Umber Club", "Cinder Pass"],
        attributes=[*COMMON, "return period", "late fee", "payment method", "warranty period"],
        users=["Hugo Gray", "Milo Hobbs", "Thora Unger", "Emil Radley"],
    ),
}
OWN_ALWAYS = ["open balance", "renewal date", "account manager", "customer number"]
HELD_OUT_WORDS = words(
    "Juniper Flint Drift Nova Gray Unger Garner Hobbs Irving Radley Anders Larkin Umber Galdor "
    "Jorvik Elstow Lumora Thora Viggo Emil Gustav Mona Nils Edda Hugo Milo Zara Cinder"
)


def held_out_value(rng: random.Random, kind: str, used: set[str]) -> str:
    """A value that training never sees and that nothing else in the tenant's corpus has."""
    while True:
        value = draw_value(rng, kind, lambda r: r.choice(HELD_OUT_WORDS))
        if is_held_out(value) and value not in used:
            used.add(value)
            return value


def slug(text: str) -> str:
    return text.lower().replace(" ", "-")


def write(name: str, content: object) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (HERE / name).write_text(text, encoding="utf-8")


def main() -> None:
    rng = random.Random(2031)
    documents = json.loads((HERE / "documents.json").read_text("utf-8"))["documents"]
    tenants, keys, accounts = [], {}, []
    versions: dict[str, list] = {"v1": [], "v2": []}
    for tenant, about in TENANTS.items():
        users, used = [], set()
        for name in about["users"]:
            assert is_held_out(name.split()[0])
            user = f"{tenant}-{slug(name)}"
            keys[user] = f"demo-{user}-{rng.randrange(16**6):06x}"
            hashed = hashlib.sha256(keys[user].encode()).hexdigest()
            users.append(dict(id=user, name=name, key_sha256=hashed))
            others = [a for a in ACCOUNT_ATTRIBUTES if a not in OWN_ALWAYS]
            for attribute in OWN_ALWAYS + rng.sample(others, 3):
                value = held_out_value(rng, ACCOUNT_ATTRIBUTES[attribute], used)
                accounts.append(
                    dict(
                        id=f"{user}/{slug(attribute)}",
                        tenant=tenant,
                        user=user,
                        attribute=attribute,
                        value=value,
                    )
                )
        tenants.append(dict(id=tenant, name=about["name"], users=users))
        for product in about["products"]:
            assert is_held_out(product.split()[0])
            for attribute in about["attributes"]:
                fact = dict(
                    id=f"{tenant}/{slug(product)}/{slug(attribute)}",
                    tenant=tenant,
                    entity=product,
                    attribute=attribute,
                )
                kind = POLICY_ATTRIBUTES[attribute]
                old = held_out_value(rng, kind, used)
                new = held_out_value(rng, kind, used) if rng.random() < 0.45 else old
                versions["v1"].append(fact | dict(value=old))
                versions["v2"].append(fact | dict(value=new))
    write("tenants.json", dict(tenants=tenants))
    write(
        "demo_keys.json",
        dict(
            README="Invented keys of invented people, for demos and tests. They open nothing real. "
            "tenants.json holds the SHA-256 of each; the server compares hashes.",
            keys=keys,
        ),
    )
    for version, facts in versions.items():
        write(f"policies_{version}.json", dict(version=version, facts=facts))
    write("accounts.json", dict(facts=accounts))
    write("questions.json", dict(questions=questions(rng, versions["v1"], accounts, documents)))


def questions(rng, policies, accounts, documents) -> list[dict]:
    """Each question names the facts it asks for and the evidence lines, in the order shown."""
    made: list[dict] = []
    of = lambda facts, **want: [f for f in facts if all(f[k] == v for k, v in want.items())]  # noqa: E731

    def add(kind, tenant, user, text, facts, distractors, follows=None):
        evidence = [f["id"] for f in facts + [d for d in distractors if d not in facts]]
        rng.shuffle(evidence)
        number = 1 + sum(q["kind"] == kind for q in made)
        made.append(
            dict(
                id=f"{kind}-{number:03}",
                kind=kind,
                tenant=tenant,
                user=user,
                text=text,
                facts=[f["id"] for f in facts],
                evidence=evidence,
                follows=follows,
            )
        )
        return made[-1]["id"]

    def near(fact, same_attribute, same_entity):
        pool = of(policies, tenant=fact["tenant"])
        siblings = [f for f in of(pool, attribute=fact["attribute"]) if f != fact]
        others = [f for f in of(pool, entity=fact["entity"]) if f != fact]
        return rng.sample(siblings, same_attribute) + rng.sample(others, same_entity)

    for fact in policies:
        form = rng.randrange(len(prompts.QUESTIONS))
        text = prompts.ask(fact["attribute"], fact["entity"], form)
        add(
            "policy",
            fact["tenant"],
            None,
            text,
            [fact],
            near(fact, rng.randint(1, 4), rng.randint(1, 4)),
        )
    for fact in accounts:
        form = rng.randrange(len(prompts.OWN_QUESTIONS))
        mine = of(accounts, user=fact["user"])
        add(
            "account",
            fact["tenant"],
            fact["user"],
            prompts.ask(fact["attribute"], None, form),
            [fact],
            mine + rng.sample(of(policies, tenant=fact["tenant"]), rng.randint(0, 3)),
        )
    for tenant in TENANTS:
        starts = rng.sample([q for q in made if q["kind"] == "policy" and q["tenant"] == tenant], 9)
        for start in starts:
            last, before = start["id"], of(policies, id=start["facts"][0])[0]
            asked = [before]
            for _ in range(rng.choice((1, 1, 2))):
                if rng.random() < 0.6:
                    fact = rng.choice(
                        [
                            f
                            for f in of(policies, tenant=tenant, entity=before["entity"])
                            if f not in asked
                        ]
                    )
                    text = prompts.ask_next_attribute(fact["attribute"])
                else:
                    fact = rng.choice(
                        [
                            f
                            for f in of(policies, tenant=tenant, attribute=before["attribute"])
                            if f not in asked
                        ]
                    )
                    text = prompts.ask_next_entity(fact["entity"])
                last = add(
                    "chat",
                    tenant,
                    None,
                    text,
                    [fact],
                    near(fact, rng.randint(1, 2), rng.randint(1, 2)),
                    follows=last,
                )
                before = fact
                asked.append(fact)
        for product in TENANTS[tenant]["products"]:
            document = rng.choice([d for d in documents if d["subject"] == "product"])
            every = of(policies, tenant=tenant, entity=product)
            wanted = [of(every, attribute=a)[0] for a in document["attributes"]]
            others = rng.sample([f for f in of(policies, tenant=tenant) if f not in every], 3)
            add(
                "report",
                tenant,
                None,
                prompts.ask_report(document["attributes"], product),
                wanted,
                rng.sample(every, 6) + others,
            )
        for user in sorted({f["user"] for f in of(accounts, tenant=tenant)}):
            document = next(d for d in documents if d["subject"] == "account")
            mine = of(accounts, user=user)
            wanted = [of(mine, attribute=a)[0] for a in document["attributes"]]
            add(
                "report",
                tenant,
                user,
                prompts.ask_report(document["attributes"], None),
                wanted,
                mine + rng.sample(of(policies, tenant=tenant), 2),
            )
    return made


if __name__ == "__main__":
    main()
