"""What a sequence says again: for processors that make that less likely."""
