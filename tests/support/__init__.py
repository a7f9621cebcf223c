"""Models, bundles, files and interrupts that tests of several packages use."""
