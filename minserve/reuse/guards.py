"""What must agree between a question and the one whose answer it is to get, whatever their cosine.

Embeddings place "turn it on" beside "turn it off" and 2023 beside 2024. So the words themselves are
compared: polarity, numbers and dates, names, direction, and whether something is asked or ordered.
Each guard says True only if it sees no difference of its kind. They are coarse on purpose: a guard
that errs costs a hit, never a wrong answer. English; another language needs tables of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

Guard = Callable[[str, str], bool]


def _table(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEGATIONS = _table(
    "no not never none nobody nothing nowhere neither nor without cannot cant dont doesnt didnt "
    "isnt arent wasnt werent wont wouldnt shouldnt couldnt havent hasnt hadnt mustnt unable unless "
    "except fail fails failed hardly barely avoid lack lacks missing prevent"
)
PAIRS: tuple[tuple[str, str], ...] = (
    ("on enable enables enabled activate activates activated", "off disable disables disabled "
     "deactivate deactivates deactivated"),
    ("open opens opened opening reopen", "close closes closed closing shut"),
("start starts started begin begins began resume", "stop stops stopped end ends ended pause"),
    ("keep keeps kept", "cancel cancels cancelled canceled reset lose loses lost delete deletes"),
    ("renew renews renewed renewal", "cancel cancels cancelled canceled terminate"),
    ("add adds added create creates created insert", "remove removes removed delete deletes block"),
    ("restore restores restored", "archive archives archived delete deletes deleted"),
    ("accept accepts accepted approve approves approved", "decline declines declined reject "
     "rejects rejected refuse refuses refused deny denies denied withdraw"),
    ("allow allows allowed permit permits permitted", "block blocks blocked mute forbid "
     "forbids forbidden prohibit prohibited deny denied banned"),
    ("lock locks locked freeze freezes frozen", "unlock unlocks unlocked unfreeze thaw"),
    ("freeze freezes frozen pause pauses suspend", "resume resumes unfreeze"),
    ("subscribe subscribes subscribed", "unsubscribe unsubscribes unsubscribed stop"),
    ("connect connects connected link pair pairs", "disconnect disconnects disconnected unlink "
     "unpair unpairs"),
    ("join joins joined enter", "leave leaves left end ends exit quit"),
    ("arrive arrives arrival incoming", "leave leaves departure outgoing"),
    ("increase increases increased raise raises raised grow higher more up", "decrease decreases "
     "decreased lower lowers lowered reduce reduces reduced shrink less fewer down"),
    ("extend extends extended lengthen longer", "shorten shortens shortened shorter"),
    ("maximum max most largest highest", "minimum min least smallest lowest"),
    ("above over exceeding", "below under beneath"),
    ("before prior ahead early earlier", "after afterwards late later behind"),
    ("within", "after outside beyond"),
    ("with", "without"),
    ("inside in into", "outside out"),
    ("include includes included cover covers covered", "exclude excludes excluded except"),
    ("public", "private"),
    ("show shows shown see view visible", "hide hides hidden invisible"),
    ("import imports upload uploads uploaded", "export exports download downloads downloaded"),
    ("export exports keep keeps", "delete deletes erase"),
    ("upload uploads add", "remove removes delete"),
    ("upgrade upgrades upgraded", "downgrade downgrades downgraded"),
    ("buy buys purchase purchases bought", "sell sells sold"),
    ("receive receives received get gets", "send sends sent pay pays give"),
    ("deposit deposits", "withdraw withdraws withdrawal"),
    ("required mandatory compulsory need", "optional voluntary"),
    ("safe safely harmless", "dangerous unsafe harmful fatal risky"),
    ("valid", "invalid expired void"),
    ("possible able can", "impossible unable"),
    ("legal lawful", "illegal unlawful"),
    ("login", "logout"),
    ("cheap cheaper cheapest", "expensive dear dearer"),
    ("first", "last"),
    ("same", "different"),
    ("penalty fine", "reward bonus"),
    ("credit", "debit"),
    ("win wins won", "lose loses lost"),
    ("free", "paid chargeable"),
    ("always", "sometimes seldom rarely"),
    ("all every everybody", "some any few"),
    ("hot", "cold"), ("good better best", "bad worse worst"),
    ("encrypt lock", "decrypt"), ("install", "uninstall"), ("mount", "unmount"),
    ("online", "offline"), ("active", "inactive"), ("internal", "external"),
    ("inbound", "outbound"), ("male", "female"), ("left", "right"), ("old", "new"),
)  # fmt: skip
OPPOSITES = tuple((_table(one), _table(other)) for one, other in PAIRS)

_NUMBERS = """zero | one once first | two twice second both | three third | four fourth | five fifth
six sixth | seven seventh | eight eighth | nine ninth | ten tenth | eleven eleventh | twelve dozen
"""
NUMBER_WORDS = {"hundred": "100", "thousand": "1000", "million": "1000000", "half": "0.5"} | {
    word: str(number)
    for number, spelt in enumerate(_NUMBERS.replace("\n", "|").split("|"))
    for word in spelt.split()
}
# NOTE: "one" and "second" are often not numbers; a guard may err towards a miss.
TIMES = _table(
    "january february march april june july august september october november december "
    "monday tuesday wednesday thursday friday saturday sunday weekday weekdays weekend weekends "
    "today tomorrow yesterday tonight morning noon afternoon evening night midnight "
    "spring summer autumn winter next last previous current now"
)
PERIODS = {
    form: words.split()[0]
    for words in (
        "minute minutes",
        "hour hours hourly",
        "day days daily",
        "week weeks weekly",
        "month months monthly",
        "quarter quarters quarterly",
        "year years yearly annual annually",
    )
    for form in words.split()
}
PER = _table("per each every a an last next this past")
QUESTION_WORDS = _table(
    "how what when where why who whom whose which is are was were do does did can could may might "
    "will would shall should must has have had am if in on at for by under between with within "
    "after before from since until during as to tell explain"
)
POLITE = _table(
    "please kindly could can you would will i want to need id like us me now go ahead and"
)
_STOP = _table(
    "a an the i you we he she it they my your our his her its their me us of to for is are was "
    "were be been do does did can could may might will would shall should must has have had how "
    "what when where why who whom which in at by with from and or if please tell so this that "
    "there turn turned switch switched way steps need needed know possible able much long get"
)
_MAY = re.compile(r"\bMay\b\W*(\d|$)|\d\W*May\b")
_SYMBOL = re.compile(r"[$€£¥%+#<>=@^*~²³°]|(?<!\w)[-−](?=\d)")
_WORD = re.compile(r"[^\W_]+(?:[.,:/-][^\W_]+)*")


@lru_cache(maxsize=4096)
def words(text: str) -> tuple[str, ...]:
    """The words of a text, in order, in lower case, without apostrophes."""
    return tuple(_WORD.findall(text.casefold().replace("'", "").replace("’", "")))


def same_polarity(asked: str, stored: str) -> bool:
    """Neither negates what the other does not, and no word of one opposes a word of the other."""
    a, b = words(asked), words(stored)
    if _count(a, NEGATIONS) % 2 != _count(b, NEGATIONS) % 2:
        return False
    for sides in OPPOSITES:
        x, y = _sides(a, sides), _sides(b, sides)
        if x and y and x != y:
            return False
    return True


def same_numbers(asked: str, stored: str) -> bool:
    """The same numbers, dates, times and periods, as often."""
    return Counter(numbers(asked)) == Counter(numbers(stored))


def numbers(text: str) -> list[str]:
    """Every number, date word and period in a text, in order, in one spelling."""
    found, before = [], ""  # a period counts after "per", "each" or a number: not "opening hours"
    for word in words(text):
        if any(letter.isdigit() for letter in word):
            found.append(re.sub(r"(?<=\d),(?=\d{3}\b)", "", word).removesuffix(".0"))
        elif word in NUMBER_WORDS:
            found.append(NUMBER_WORDS[word])
        elif word in PERIODS and (
            before in PER or before[:1].isdigit() or before in NUMBER_WORDS or word.endswith("ly")
        ):
            found.append(PERIODS[word])
        elif word in TIMES or (word == "may" and _MAY.search(text)):
            found.append(word)
        before = word
    return found


def same_symbols(asked: str, stored: str) -> bool:
    """The same currency signs, operators and minus signs: $5 is not €5, C++ not C, -3 not 3."""
    return sorted(_SYMBOL.findall(asked)) == sorted(_SYMBOL.findall(stored))


def same_names(asked: str, stored: str) -> bool:
    """Every name in one text is somewhere in the other: capitals, codes and quoted text."""
    a, b = set(words(asked)), set(words(stored))
    return set(names(asked)) <= b and set(names(stored)) <= a


def names(text: str) -> list[str]:
    """Words that look like names, in order: capitals inside a sentence, capitals throughout."""
    found: list[str] = []
    is_first = True
    for match in re.finditer(r"[^\W_]+(?:[-.][^\W_]+)*|[.!?:]", text):
        word = match[0]
        if word in ".!?:":
            is_first = True
            continue
        is_name = word != "I" and not word.startswith("I'") and word[0].isupper()
        if is_name and (not is_first or (len(word) > 1 and word.isupper())):
            found.extend(words(word))
        is_first = False
    for quoted in re.findall(r"[\"“”«»]([^\"“”«»]+)[\"“”«»]", text):
        found.extend(words(quoted))
    return found


def same_direction(asked: str, stored: str) -> bool:
    """What stands after "from" in one does not after "to" in the other: EUR to USD is not back."""
    a, b = _directions(asked), _directions(stored)
    if any(a.get(name, way) != way for name, way in b.items()):
        return False
    return not (a or b) or _marks(asked) == _marks(stored)


def same_act(asked: str, stored: str) -> bool:
    """Both ask, or both order: "how do I close it?" is not "close it"."""
    return is_order(asked) == is_order(stored)


def is_order(text: str) -> bool:
    """Whether a text tells somebody to do something, rather than to say something."""
    first = [word for word in words(text)[:8] if word not in POLITE]
    if text.rstrip().endswith("?") and not re.match(
        r"\W*(please|(can|could|would|will) you)\b", text, re.I
    ):
        return False
    said = words(text)
    if not said or said[0] in QUESTION_WORDS - POLITE or not first:
        return False
    if said[0] in ("i", "my", "the", "there", "it", "we", "our", "this", "that", "a") and not (
        re.match(r"\W*i('d| would)? (want|need|like|wish)( you)? to\b", text, re.I)
    ):
        return False
    return first[0] not in ("know", "tell", "explain", "show", "help", "understand", "find", "say")


def no_swap(asked: str, stored: str) -> bool:
    """They do not differ in one thing alone, which is where cosine is highest and says least.

    "The trial length of Lumora" and "the refund window of Lumora": where a text of some words has
    one or two others in place of one or two, that is taken for another question, unless those
    words are forms of one or synonyms.
    """
    a, b = _content(asked), _content(stored)
    return not (0 < len(a - b) <= 2 and 0 < len(b - a) <= 2)


GUARDS: dict[str, Guard] = {
    "polarity": same_polarity,
    "numbers": same_numbers,
    "symbols": same_symbols,
    "names": same_names,
    "direction": same_direction,
    "act": same_act,
    "swap": no_swap,
}


def failed_guard(asked: str, stored: str) -> str | None:
    """The first guard that sees a difference, or None. A guard that raises has seen one."""
    for name, guard in GUARDS.items():
        try:
            if guard(asked, stored) is not True:
                return name
        except Exception:
            return name
    return None


def _sides(said: Sequence[str], sides: tuple[frozenset[str], frozenset[str]]) -> list[int]:
    """Which sides of an opposition are named, in the order of their first words."""
    found = [side for word in said for side in (0, 1) if word in sides[side]]
    return list(dict.fromkeys(found))


def _count(said: Sequence[str], table: frozenset[str]) -> int:
    return sum(word in table for word in said)


def _content(text: str) -> set[str]:
    """The words that carry meaning, each as its stem, and synonyms as one."""
    stems = {_stem(word) for word in words(text) if word not in _STOP}
    return {_SAME.get(stem, stem) for stem in stems}


def _stem(word: str) -> str:
    for ending in ("ations", "ation", "ings", "ing", "ies", "ied", "ed", "es", "s", "ly", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)
    return word


def _directions(text: str) -> dict[str, str]:
    """Names and numbers that follow a word of direction, and which: {"spain": "to"}."""
    said, marks = words(text), set(_marks(text))
    ways = {"into": "to", "to": "to", "from": "from", "than": "than"}
    return {
        after: ways[word]
        for word, after in zip(said, said[1:], strict=False)
        if word in ways and after in marks
    }


def _marks(text: str) -> list[str]:
    """Names and numbers, in the order in which they stand."""
    marks = {*names(text), *numbers(text)}
    return [word for word in words(text) if word in marks]


SYNONYMS = tuple(
    map(
        _table,
        (
            "often frequently", "more additional further extra", "buy purchase", "begin start",
            "another other", "required necessary mandatory", "picture photo image", "fee charge",
            "cost price costs priced", "mode theme", "permitted allowed", "quick fast quickly",
            "happen happens consequences", "visible view see", "pay paid", "use using",
        ),
    )
)  # fmt: skip
_SAME: dict[str, str] = {}
for _group in (*(side for pair in OPPOSITES for side in pair), *SYNONYMS):
    for _word in _group:
        _SAME.setdefault(_stem(_word), min(_group))
