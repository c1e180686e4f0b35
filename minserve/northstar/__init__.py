"""Northstar, the running case: a company that sells an AI assistant to other companies."""
