"""A Llama in torch for tools that need gradients: the model, its windows, its checkpoint."""
