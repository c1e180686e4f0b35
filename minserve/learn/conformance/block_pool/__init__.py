"""The suite of the part `block_pool`: allocate, append, share, release."""

from minserve.learn.conformance import Suite
from minserve.learn.conformance.block_pool.ladders import LADDERS
from minserve.learn.conformance.block_pool.rules import RULES

SUITE = Suite("block_pool", ("allocate", "append", "share", "release"), tuple(RULES), LADDERS)
