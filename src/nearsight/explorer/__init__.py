"""A web page to look inside models: every map of every layer and head, from any patch of any picture."""
