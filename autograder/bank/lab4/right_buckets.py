# ruff: noqa: F821  the notebook's first cell imports these names
# A third right way: a digest names a bucket, a bucket keeps all who share it, and a chain of
# numbered prefixes stands for "all tokens up to here".


@dataclass(frozen=True)
class Known:
    number: int  # of this prefix
    parent: object  # the number before, or who shares the first block
    tokens: tuple
    block: int


class PrefixCache:
    def __init__(self, block_size, digest):
        self.block_size, self.digest = block_size, digest
        self.buckets = {}
        self.count = 0

    def walk(self, request, num_blocks):
        """(parent, tokens, bucket, what is known) of each block, until something is unknown."""
        parent = (("salt", request["salt"]), ("adapter", request["adapter"]))
        for index in range(num_blocks):
            start = index * self.block_size
            tokens = tuple(request["tokens"][start : start + self.block_size])
            bucket = self.buckets.setdefault(self.digest(repr((parent, tokens))), [])
            same = [k for k in bucket if k.parent == parent and k.tokens == tokens]
            known = same[0] if same else None
            yield parent, tokens, bucket, known
            if known is None:
                return
            parent = known.number

    def match(self, request):
        most = (len(request["tokens"]) - 1) // self.block_size
        return [known.block for *_, known in self.walk(request, most) if known is not None]

    def commit(self, request, blocks, num_computed):
        for index in range(num_computed // self.block_size):
            *_, (parent, tokens, bucket, known) = self.walk(request, index + 1)
            if known is None:
                self.count += 1
                bucket.append(Known(self.count, parent, tokens, blocks[index]))

    def evict(self, block):
        for bucket in self.buckets.values():
            bucket[:] = [known for known in bucket if known.block != block]
