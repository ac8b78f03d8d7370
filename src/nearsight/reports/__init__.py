"""What a person reads about runs: plots, pages, comparisons."""
