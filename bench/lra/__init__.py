"""Data of two tasks of the Long-Range Arena (arXiv 2011.04006): ListOps, and pictures like Pathfinder's."""
