"""Whether sources, results, tools and boards are as they should be."""
