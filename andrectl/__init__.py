"""andrectl: the tool that steers a training run. Loads neither torch nor andread's heavy rooms."""
