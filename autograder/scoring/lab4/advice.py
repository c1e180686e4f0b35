"""Lab 4: what each kind of failure looks like, which rule it breaks, and where to look."""

from autograder.scoring.base import Advice

ADVICE = {
    "leak": Advice(
        "a prompt was given blocks that were computed under another salt",
        "the salt is part of every key, from the first block on, and of what is compared",
        "the first parent in `keys`, and `prefix`",
    ),
    "body": Advice(
        "what the client wrote into its body opened somebody else's blocks",
        "the salt comes from the server's records; the body has no say",
        "every use of `request['body']`",
    ),
    "no_reuse": Advice(
        "blocks that hold exactly this prefix were not found",
        "who shares salt, adapter and tokens shares every full and computed block but the last",
        "what your key holds beyond what the KV depends on, and where `match` stops",
    ),
    "wrong_tokens": Advice(
        "a prompt was given blocks that were computed for other tokens",
        "a block's KV depends on all tokens from the first one on, in order",
        "`keys`: is each key chained to the one before, and can two lists be written alike?",
    ),
    "adapter": Advice(
        "a prompt was given blocks that another adapter computed",
        "the adapter is part of the key; None is not a name",
        "the adapter in `keys` and in `prefix`",
    ),
    "mixed": Advice(
        "a salt and an adapter with the same letters were taken for one another",
        "salt and adapter are two fields, each with its own borders and type",
        "how the first parent in `keys` is put together",
    ),
    "collision": Advice(
        "two prefixes had the same digest, and one was given the other's blocks",
        "a digest is a hint; what it stands for is compared",
        "`match`: what is compared with `entry.prefix`, and is that all the KV depends on?",
    ),
    "uncomputed": Advice(
        "a block was offered that was not computed, or not full",
        "only a full and computed block is offered",
        "`commit`: how many blocks do `num_computed` tokens fill?",
    ),
    "evicted": Advice(
        "a block was offered for a prefix that it no longer holds",
        "an evicted block is unknown until it is committed again",
        "`evict`: does the index forget everything about the block?",
    ),
    "nothing_left": Advice(
        "a prompt was matched whole, with no token left to compute",
        "the last token's result is needed, so it is computed",
        "the number of blocks that `match` may return",
    ),
    "channel": Advice(
        "a stranger's guess was answered faster where it was right",
        "the time to the first token depends only on what the asker's own salt has computed",
        "whose blocks a stranger's prompt can meet, if only for one block",
    ),
    "service": Advice(
        "looking, committing again or evicting an unknown block changed what was found",
        "`match` changes nothing, and saying a thing twice is like saying it once",
        "`match`, `commit` and `evict`, compared with the version that you were given",
    ),
    "salts": Advice(
        "`salt_of` gave one salt to two who may not share, two to those who do, or a guessable one",
        "a salt is a keyed hash of who shares it, with clear borders between the names",
        "which names go in for which scope, how they are joined, and where the secret is used",
    ),
    "raised": Advice(
        "your code raised an exception",
        "whatever is asked, a look-up ends in a list of blocks",
        "the line named here",
    ),
}
