"""The `minserve` command line: it composes what everything else keeps apart."""
