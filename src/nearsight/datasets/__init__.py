"""From what a person names as data to sets of labelled images."""
