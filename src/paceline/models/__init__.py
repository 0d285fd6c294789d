"""Target models: artifacts, configuration, the dense decoder graph, taps and the binding the engine uses."""
