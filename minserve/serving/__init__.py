"""The HTTP server: OpenAI's shapes over `minserve.service`, and who may ask it what."""
