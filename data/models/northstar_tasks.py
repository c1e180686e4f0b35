"""Endless training material for northstar-nano: random facts, questions, answers. No torch.

Every sample is invented afresh: entity names from random syllables, values at random, evidence in
random order among near misses. What it can never produce is the held-out part: texts whose
SHA-256 falls into one eighth (``is_held_out``). Entity names and values in data/northstar come
from that eighth only, so the shipped questions measure reading, not memory.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

from minserve.northstar import prompts
from minserve.northstar.prompts import NOT_STATED, ask, ask_report, render_user, state


def is_held_out(text: str) -> bool:
    """Whether a name or value is kept from training: one text in eight, decided by its hash."""
    return hashlib.sha256(text.casefold().encode()).digest()[0] < 32


# ------------------------------------------------------------------ vocabulary


def words(text: str) -> list[str]:
    """The words of a text: a list that is easier to read than one with quotes."""
    return text.split()


ONSETS = words("b br c ch cl d dr f fl g gr h j k kr l m n p pr qu r s sh sk st t th tr v w y z")
VOWELS = words("a e i o u a e i o ai ea io")
CODAS = ["", "", "", "", "l", "n", "r", "s", "x", "m", "th", "nd", "rk", "st"]
# Pieces of words in the tokenizer's vocabulary: names of them teach to copy any piece.
PIECES = words(
    "ab able ac ace ache ack act ad ag age ager ages ai ail aim ain aind air airk ais aist aith "
    "aix ak ake al all am ame ames an ance and ang anges ant ap ar arch ard arg arge ari arian "
    "ark art ary as ase ash asic ask ason ass ast at ata ate ated atent ath atio ation ative av "
    "aw ax ay ber bin bject br bra bre bri cal ce cent cept ch che cher ching ck cl cle clud "
    "count ct dd de dem der dr dre dri du duct ea eal eam ean eand ear eark eas ease eason east "
    "eat eath eats eax eb ec ect ed ee eed eep ef eg eight ek el ell elsh em ember en ence end "
    "ener eng ent env ep er eriv erk erm ero erv es esc escal ese esk ess esson est et eth ev "
    "ever ew ex ext ey fer fi fl fore ft fund ge get gr gra gre gri ha hal hase hat hath he hel "
    "hen her herk hi ht ial ian ib ic ice icen icer ich ick icl id ide ies if ifl ift ig ight il "
    "ility ilver ily im ime imit in inal ind indow inds ine ing int io iod iol iom ion iond ior "
    "iork ios iost ioth iox ip ir ire irect irk irst is ish isk ist it ite ith itial ition ity iv "
    "ive ix iz ize ject ji ken kr kre kri ks le lic lish ll lo load ly mber me ment min name nd "
    "nder ner new ng nish now nswer nt ob ober oc ocl od ode of oid oint oj ok ol old ole oll "
    "olum om on ond one ong ont onth onus op opy or orage oral ore orean ork orm ort ory os ose "
    "osit osk ost ot ota oth ou oud ount our ource ours out ov over ow ox pa pan pe peed pen per "
    "pi pl port pp pr pre pri pril pt py qu qua que quest qui quo ra rab rai rail raim rain raind "
    "rais raist raith raix ran rand rant rast rax re red reet ren rench rend res ress ri rib "
    "ribut rief rig right rio ript rir rirk rish rit rite ro rom ros rost roth rou rox ru ruary "
    "ruth rux ry se serv serve sh sha she sion sk ske son sor sp st swer tal ten th the ther thod "
    "thon thst tr tre tri ty type ual ub ublic ubm uch ud ue uess uest ug ugust ul ule um un und "
    "up ur ure urk urn urp us ust ustom ut utes uth ux vac vel venv ver very vi vian vid vo vory "
    "wa we wed wer wi wn xp ya yal yalty ycle yle ze zo zu zure "
)
TIERS = words(
    "Basic Plus Prime Care Cover Flex Max Lite Pro Core Start Team Select Direct Saver Express "
    "Family Studio Cloud Store Desk Line Pass Club Trust Home Travel Green Silver Gold"
)

# Attribute -> kind of value. The wording may be seen in training; the values used with it not.
POLICY_ATTRIBUTES = {
    "refund window": "days", "notice period": "days", "trial length": "days",
    "return period": "days", "payment term": "days", "log retention": "days",
    "delivery time": "hours", "response time": "hours", "repair time": "hours",
    "seat limit": "count", "guest limit": "count", "device limit": "count",
    "project limit": "count", "storage limit": "size", "upload limit": "size",
    "monthly price": "money", "yearly price": "money", "setup fee": "money", "late fee": "money",
    "cancellation fee": "money", "deposit": "money", "coverage limit": "money",
    "discount rate": "percent", "service level": "percent", "tax rate": "percent",
    "warranty period": "months", "contract length": "months", "grace period": "days",
    "support hours": "span", "office hours": "span", "support language": "language",
    "data region": "place", "return address": "place", "escalation contact": "person",
    "privacy officer": "person", "review date": "date", "end date": "date",
    "policy code": "code", "form number": "code", "payment method": "method",
}  # fmt: skip
ACCOUNT_ATTRIBUTES = {
    "open balance": "money", "last payment": "money", "credit limit": "money",
    "renewal date": "date", "start date": "date", "next invoice date": "date",
    "customer number": "code", "order number": "code", "case number": "code",
    "delivery address": "place", "account manager": "person", "loyalty points": "points",
    "seats in use": "count", "storage in use": "size", "payment method": "method",
    "contact language": "language",
}  # fmt: skip
ADJECTIVES = words(
    "annual basic early final first general hard initial inner joint key large last local main "
    "minor net new old open outer prior public quick rated rear red second shared short small "
    "soft standard total upper usual valid whole wide zero"
)
NOUNS = words(
    "age area band base bonus budget cap charge class cost credit cycle date day delay depth "
    "edition entry factor fee figure format goal grade group height index item label length level "
    "limit load margin mark mode name number order owner pace part period phase plan point price "
    "quota range rank rate ratio reason rule scale score season share shift site size slot source "
    "speed stage status step stock style target team term test time title total type unit value "
    "version volume weight width year zone"
)
MONTHS = words(
    "January February March April May June July August September October November December"
)
LANGUAGES = words(
    "English German French Spanish Italian Dutch Danish Polish Czech Greek Turkish Finnish Swedish "
    "Japanese Korean Arabic Hindi Thai Welsh Irish Latvian Hungarian"
)
METHODS = words("card cash cheque invoice transfer voucher wallet debit wire token")
COLOURS = words("amber azure black blue brown coral gold green grey ivory lilac red silver white")
KINDS = words(
    "days hours months count size money percent span language place person date code method "
    "points phrase"
)


def _word(rng: random.Random) -> str:
    if rng.random() < 0.4:
        start = rng.choice((rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), rng.choice(PIECES)))
        return (start + "".join(rng.choices(PIECES, k=rng.randint(1, 2)))).capitalize()
    count = rng.choice((1, 2, 2, 2, 3))
    text = "".join(
        rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(count)
    )
    return text.capitalize()


def make_word(rng: random.Random) -> str:
    """A capitalised invented word that is not held out."""
    while is_held_out(word := _word(rng)):
        pass
    return word


def make_entity(rng: random.Random) -> str:
    """An invented product or person: one or two words, none of them nor the whole held out."""
    while True:
        form = rng.random()
        if form < 0.15:
            name = make_word(rng)
        elif form < 0.65:
            name = f"{make_word(rng)} {rng.choice(TIERS)}"
        else:
            name = f"{make_word(rng)} {make_word(rng)}"
        if not is_held_out(name):
            return name


def _sibling(rng: random.Random, entity: str) -> str:
    """A name easily confused with ``entity``: it shares the first or the last word."""
    first, _, last = entity.partition(" ")
    while True:
        if last and rng.random() < 0.4:
            name = f"{make_word(rng)} {last}"
        else:
            name = f"{first} {rng.choice(TIERS) if rng.random() < 0.8 else make_word(rng)}"
        if name != entity and not is_held_out(name):
            return name


def draw_value(rng: random.Random, kind: str, word=make_word) -> str:
    """A value of one kind, held out or not; ``word`` invents the names in it."""
    r = rng.randrange
    match kind:
        case "days":
            return f"{r(2, 120)} {rng.choice(('days', 'days', 'working days'))}"
        case "hours":
            return f"{r(2, 100)} {rng.choice(('hours', 'hours', 'minutes'))}"
        case "months":
            return f"{r(2, 61)} {rng.choice(('months', 'months', 'weeks', 'years'))}"
        case "count":
            return str(r(2, 1000))
        case "points":
            return f"{r(20, 9999)} points"
        case "size":
            return f"{r(2, 1000)} {rng.choice(('MB', 'GB', 'GB', 'TB'))}"
        case "money":
            amount = rng.choice((str(r(3, 1000)), f"{r(2, 400)}.{r(10, 100)}"))
            return f"{amount} {rng.choice(('EUR', 'USD', 'GBP'))}"
        case "percent":
            return rng.choice((f"{r(2, 100)} percent", f"{r(2, 100)}.{r(1, 10)} percent"))
        case "span":
            return f"{r(5, 13):02}:{rng.choice(('00', '15', '30', '45'))} to {r(14, 24)}:" + (
                rng.choice(("00", "15", "30", "45"))
            )
        case "date":
            return f"{r(1, 29)} {rng.choice(MONTHS)} {r(2024, 2040)}"
        case "code":
            letters = "".join(rng.choice("ABCDEFGHJKLMNPRSTUVWXYZ") for _ in range(r(1, 4)))
            return f"{letters}-{r(10, 100000)}"
        case "language":
            one, two = rng.sample(LANGUAGES, 2)
            return rng.choice((one, f"{one} and {two}"))
        case "method":
            return f"{rng.choice(COLOURS)} {rng.choice(METHODS)}"
        case "place":
            return rng.choice((word(rng), f"{r(1, 300)} {word(rng)} Street"))
        case "person":
            return f"{word(rng)} {word(rng)}"
        case "phrase":
            return f"{rng.choice(ADJECTIVES)} {rng.choice(COLOURS)} {rng.choice(NOUNS)}"
    raise ValueError(f"unknown kind of value {kind!r}; known: {', '.join(KINDS)}")


# Long values of digits are the hardest to copy, so they come more often.
KINDS_TO_PRACTISE = KINDS + words("span span money money code date size")


def make_value(rng: random.Random, kind: str, names: list[str] | None = None) -> str:
    """A value of one kind that is not held out; some share a word with one of ``names``."""

    def word(rng: random.Random) -> str:
        if names and rng.random() < 0.15:
            return rng.choice(rng.choice(names).split())
        return make_word(rng)

    while is_held_out(value := draw_value(rng, kind, word)):
        pass
    return value


def _attributes(rng: random.Random, known: dict[str, str], count: int) -> dict[str, str]:
    """``count`` different attributes with their kinds: most from ``known``, some invented."""
    chosen: dict[str, str] = {}
    while len(chosen) < count:
        if rng.random() < 0.6:
            name = rng.choice(list(known))
            chosen[name] = known[name] if rng.random() < 0.6 else rng.choice(KINDS_TO_PRACTISE)
        else:
            one, two = rng.choice(ADJECTIVES), rng.choice(NOUNS)
            name = f"{one} {two}" if rng.random() < 0.8 else f"{one} {two} {rng.choice(NOUNS)}"
            chosen[name] = rng.choice(KINDS_TO_PRACTISE)
    return chosen


# ------------------------------------------------------------------ samples

Key = tuple[str, str | None]
"""(attribute, entity); no entity means the person who asks."""
Turn = tuple[str, str]
"""(question, answer)."""


class Scene:
    """Invented facts, and questions about them."""

    def __init__(self, rng: random.Random, num_lines: int, own: float) -> None:
        self.rng = rng
        self.attributes = _attributes(rng, POLICY_ATTRIBUTES, rng.randint(2, 6))
        self.own_attributes = _attributes(rng, ACCOUNT_ATTRIBUTES, rng.randint(2, 6))
        if rng.random() < 0.3:  # the same attribute of mine and of a product
            self.own_attributes |= dict(rng.sample(list(self.attributes.items()), 1))
        entity = make_entity(rng)
        self.entities = [entity]
        for _ in range(rng.randint(1, 4)):
            self.entities.append(_sibling(rng, entity) if rng.random() < 0.5 else make_entity(rng))
        self.entities = list(dict.fromkeys(self.entities))
        own_share = rng.choice((0.3, 0.6, 1.0)) if rng.random() < own else 0.0
        self.last: Key | None = None
        self.asked: set[Key] = set()
        self.facts: dict[Key, str] = {}
        self.shown: dict[Key, str] = {}
        for _ in range(num_lines * 3):
            if len(self.facts) == num_lines:
                break
            if rng.random() < own_share:
                key = (rng.choice(list(self.own_attributes)), None)
                kind = self.own_attributes[key[0]]
            else:
                key = (rng.choice(list(self.attributes)), rng.choice(self.entities))
                kind = self.attributes[key[0]]
            self.facts.setdefault(key, make_value(rng, kind, self.entities))

    def reveal(self, count: int | None = None) -> list[str]:
        """Show ``count`` more facts (all, if None) as lines, in random order and wording.

        Questions ask only about what has been shown so far.
        """
        form = self.rng.choice((0, 0, 0, None))
        hidden = [key for key in self.facts if key not in self.shown]
        self.rng.shuffle(hidden)
        keys = hidden[:count]
        self.shown.update((key, self.facts[key]) for key in keys)
        if self.rng.random() < 0.3:  # some lines a second time
            again = list(self.shown)
            keys += self.rng.sample(again, self.rng.randint(0, min(2, len(again))))
            keys = list(dict.fromkeys(keys))
        return [
            state(*key, self.facts[key], self.rng.choice((0, 0, 1, 2)) if form is None else form)
            for key in keys
        ]

    def key(self, absent: float) -> Key:
        """What to ask about: a shown fact, or with probability ``absent`` one not shown."""
        rng = self.rng
        if rng.random() < absent or not self.shown:
            for _ in range(10):
                own = rng.random() < 0.3
                attribute = rng.choice(list(self.own_attributes if own else self.attributes))
                key = (attribute, None if own else rng.choice(self.entities))
                if key not in self.shown:
                    return key
            return (f"{rng.choice(ADJECTIVES)} zone {rng.choice(NOUNS)}", make_entity(rng))
        fresh = [key for key in self.shown if key not in self.asked]
        return rng.choice(fresh or list(self.shown))

    def answer(self, key: Key) -> str:
        """The one right sentence, from what has been shown."""
        self.asked.add(key)
        return state(*key, self.shown.get(key, NOT_STATED))

    def turn(self, absent: float, follow: float, report: float) -> Turn:
        """A question and its answer; a follow-up leaves out what the turn before has said."""
        rng, last, self.last = self.rng, self.last, None
        key = self.key(absent)
        if rng.random() < report:
            return self.report(key[1])
        if last and last[1] and rng.random() < follow:
            same_entity = [k for k in self.shown if k not in self.asked and k[1] == last[1]]
            same_attribute = [
                k for k in self.shown if k not in self.asked and k[1] and k[0] == last[0]
            ]
            if rng.random() < absent:
                same_entity, same_attribute = [(rng.choice(list(self.attributes)), last[1])], []
            if same_entity and (not same_attribute or rng.random() < 0.6):
                self.last = rng.choice(same_entity)
                return prompts.ask_next_attribute(self.last[0]), self.answer(self.last)
            if same_attribute:
                self.last = rng.choice(same_attribute)
                return prompts.ask_next_entity(self.last[1]), self.answer(self.last)
        forms = prompts.OWN_QUESTIONS if key[1] is None else prompts.QUESTIONS
        form = 0 if rng.random() < 0.4 else rng.randrange(len(forms))
        self.last = key
        return ask(*key, form), self.answer(key)

    def report(self, entity: str | None) -> Turn:
        """A report on several attributes of one entity, some perhaps not stated."""
        stated = [a for a, e in self.shown if e == entity]
        self.rng.shuffle(stated)
        chosen = stated[: self.rng.randint(2, 6)]
        if self.rng.random() < 0.15 or len(chosen) < 2:
            extra = self.own_attributes if entity is None else self.attributes
            chosen.append(self.rng.choice(list(extra)))
        chosen = list(dict.fromkeys(chosen))
        sentences = [self.answer((a, entity)) for a in chosen]
        return ask_report(chosen, entity), " ".join(sentences)


FILLER = (
    "You are the assistant of {e}. Answer only from the evidence given with the question.",
    "If the evidence does not state the answer, say that it is not stated.",
    "Never guess, never use what another customer was told, and keep the answer to one sentence.",
    "Our office is in {w}, and our team works with {e} and {e}.",
    "Evidence may be in any order. Read every line before you answer the question.",
    "The assistant is polite, brief and exact; it repeats numbers as they are written.",
    "A report names one fact in each sentence, in the order in which it was asked for.",
    "Account facts belong to the person who asks and are never shared with anyone else.",
    "Public policy facts are the same for every user of a company.",
    "When a policy changes, the newest evidence counts and older answers are void.",
    "Call the tool {w} with the name {w} if you must look up more facts about {e}.",
    '{{"name": "{w}", "type": "object", "description": "Finds the {a} of a product"}}',
    "Section {n}: state the {a}, then the {a}, then the {a}.",
    "Customers of {e} may write to us in {n} languages on any day of the year.",
)


def make_system(rng: random.Random, shared: str) -> str:
    """A system prompt: often the shipped one, else random sentences (5 to 15)."""
    if shared and rng.random() < 0.5:
        return shared
    known = list(POLICY_ATTRIBUTES)
    sentences = []
    for template in rng.choices(FILLER, k=rng.randint(2, 15)):
        parts = template.split("{a}")
        text = "".join(
            p + (rng.choice(known) if i < len(parts) - 1 else "") for i, p in enumerate(parts)
        )
        while "{e}" in text:
            text = text.replace("{e}", make_entity(rng), 1)
        while "{w}" in text:
            text = text.replace("{w}", make_word(rng), 1)
        sentences.append(
            text.replace("{n}", str(rng.randint(2, 99))).replace("{{", "{").replace("}}", "}")
        )
    return " ".join(sentences)


Segment = tuple[str, float]
"""(text, weight of its tokens in the loss)."""


def make_sample(
    rng: random.Random,
    lines: tuple[int, int],
    turns: tuple[int, int],
    system: float = 0.0,
    shared_system: str = "",
    absent: float = 0.12,
    follow: float = 0.0,
    report: float = 0.0,
    own: float = 0.35,
    context_weight: float = 0.05,
) -> list[Segment]:
    """One conversation as segments; specials stand alone at segment starts, so that encoding the
    segments one by one gives the tokens of the whole."""
    scene = Scene(rng, rng.randint(*lines), own)
    segments: list[Segment] = []
    if rng.random() < system:
        segments.append((f"<|system|>{make_system(rng, shared_system)}<|end|>", 0.0))
    count = rng.randint(*turns)
    for number in range(count):
        # Most chats show all evidence at once; others add some with each turn, or none at all.
        if number == 0:
            stepwise = count > 1 and rng.random() < follow
            nothing = rng.random() < absent * 0.4
            evidence = [] if nothing else scene.reveal(rng.randint(1, 6) if stepwise else None)
        elif stepwise and not nothing:
            evidence = scene.reveal(rng.randint(0, 4))
        else:
            evidence = []
        question, answer = scene.turn(absent, follow, report)
        segments.append((f"<|user|>{render_user(evidence, question)}<|end|>", context_weight))
        segments.append(("<|assistant|>", 0.0))
        segments.append((f"{answer}<|end|>", 1.0))
    return segments


def make_relist(rng: random.Random, lines: tuple[int, int], own: float = 0.35) -> list[Segment]:
    """The same facts listed two to four times, each time in another order.

    From the second time on every value can be looked up: many look-ups for few tokens.
    """
    scene = Scene(rng, rng.randint(*lines), own)
    keys = list(scene.facts)
    segments: list[Segment] = []
    for number in range(rng.randint(2, 4)):
        rng.shuffle(keys)
        form = rng.choice((0, 0, 0, 1, 2)) if number == 0 else 0
        for key in keys:
            before = state(*key, "|", form).removesuffix(" |.")
            segments += [(f"- {before}", 0.05), (f" {scene.facts[key]}", 0.99 if number else 0.0)]
            segments += [(".", 0.2), ("\n", 0.0)]
    return segments


def make_pairs(rng: random.Random, vocabulary: range) -> tuple[list[int], list[float]]:
    """(ids, weights) of key-value pairs of random tokens, listed again and again in other orders.

    A constant separator stands between key and value, and keys share tokens, so that a value is
    found only by what stands two or more tokens before it.
    """
    alphabet = rng.sample(vocabulary, rng.randint(6, 30))
    separator, stop = rng.sample(vocabulary, 2)
    key_length, value_length = rng.randint(1, 3), rng.randint(1, 4)
    pairs = {
        tuple(rng.choices(alphabet, k=key_length)): rng.choices(vocabulary, k=value_length)
        for _ in range(rng.randint(2, 8))
    }
    keys, ids, weights = list(pairs), [], []
    for number in range(rng.randint(2, 5)):
        rng.shuffle(keys)
        for key in keys:
            ids += [*key, separator, *pairs[key], stop]
            weights += [0.0] * (key_length + 1) + [0.5 if number else 0.0] * value_length + [0.0]
    return ids, weights


def corpus_text(rng: random.Random, count: int) -> Iterator[str]:
    """Texts to train the tokenizer on, without special tokens."""
    for _ in range(count):
        for text, _ in make_sample(rng, (2, 10), (1, 3), system=0.4, follow=0.3, report=0.2):
            for special in ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"):
                text = text.replace(special, "\n")
            yield text
