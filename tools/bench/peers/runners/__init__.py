"""One runtime a module: ``load`` makes a runner of a bundle or a GGUF file."""
