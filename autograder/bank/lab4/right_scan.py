# ruff: noqa: F821  the notebook's first cell imports these names
# Another right way: what each block holds, as one text; a prefix is found by comparing texts.


class PrefixCache:
    def __init__(self, block_size, digest):
        self.block_size = block_size
        self.holds = {}  # block -> everything its KV depends on, written as JSON

    def written(self, request, num_blocks):
        tokens = request["tokens"][: num_blocks * self.block_size]
        return json.dumps([["salt", request["salt"]], ["adapter", request["adapter"]], tokens])

    def match(self, request):
        by_text = {text: block for block, text in self.holds.items()}
        blocks = []
        while (len(blocks) + 1) * self.block_size < len(request["tokens"]):
            block = by_text.get(self.written(request, len(blocks) + 1))
            if block is None:
                return blocks
            blocks.append(block)
        return blocks

    def commit(self, request, blocks, num_computed):
        full = 1
        while full * self.block_size <= num_computed:
            self.holds[blocks[full - 1]] = self.written(request, full)
            full += 1

    def evict(self, block):
        self.holds = {b: text for b, text in self.holds.items() if b != block}
