"""Going on from the model itself: from the weights of its bundle, and with replies of its own."""
