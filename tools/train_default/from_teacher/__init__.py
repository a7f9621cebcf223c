"""A larger model teaches: cut to the words of stories, trained on them, and written down."""
