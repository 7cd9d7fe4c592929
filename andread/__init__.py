"""andread: a training daemon that checkpoints at step boundaries and resumes bit for bit.

This module stays empty of imports: the daemon must stand its signal handlers before anything
heavy is loaded, and `andrectl` must start without torch.
"""

__version__ = "0.1.0"
