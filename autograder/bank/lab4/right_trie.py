# ruff: noqa: F821
# A right way: a trie per (salt, adapter). No digest at all, so nothing can collide.


class Node:
    def __init__(self):
        self.children = {}
        self.block = None


class PrefixCache:
    def __init__(self, block_size, digest):
        self.size = block_size
        self.roots = {}
        self.nodes = {}  # block -> its node

    def chunks(self, tokens, count):
        return [tuple(tokens[i * self.size : (i + 1) * self.size]) for i in range(count)]

    def match(self, request):
        node = self.roots.get((request["salt"], request["adapter"]))
        found = []
        for chunk in self.chunks(request["tokens"], (len(request["tokens"]) - 1) // self.size):
            node = node and node.children.get(chunk)
            if node is None or node.block is None:
                break
            found.append(node.block)
        return found

    def commit(self, request, blocks, num_computed):
        node = self.roots.setdefault((request["salt"], request["adapter"]), Node())
        for block, chunk in zip(
            blocks, self.chunks(request["tokens"], num_computed // self.size), strict=False
        ):
            node = node.children.setdefault(chunk, Node())
            if node.block is None:
                node.block = block
                self.nodes[block] = node

    def evict(self, block):
        node = self.nodes.pop(block, None)
        if node is not None:
            node.block = None
