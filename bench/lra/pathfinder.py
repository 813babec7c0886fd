"""Pictures like Pathfinder's: two dots and dashed curves; does one curve join the dots?

Our own generator, not the published pictures. Two curves of the same length turn gently at random and come no nearer to
each other than a few pixels; both are drawn in dashes. In half of the pictures the dots are the two ends of one curve,
in the others an end of each. Short dashed curves beside them distract."""
from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np

APART = 3.0  # pixels between curves


def _curve(draw: Any, side: int, steps: int) -> Any:
    """(steps, 2) places a pixel apart, or None where it leaves the picture or meets itself."""
    at, angle, turn = draw.uniform(0.15, 0.85, 2) * side, draw.uniform(0, 2 * np.pi), 0.0
    places = []
    for _ in range(steps):
        places.append(at)
        turn = 0.8 * turn + draw.normal(0, 0.08)
        angle += turn
        at = at + (np.cos(angle), np.sin(angle))
        if not (1 <= at[0] < side - 1 and 1 <= at[1] < side - 1):
            return None
    curve = np.array(places)
    far = np.abs(curve[:, None] - curve[None]).max(-1) + 1e3 * (
        np.abs(np.subtract.outer(np.arange(steps), np.arange(steps))) < 3 * APART)
    return curve if far.min() > APART else None


def _paint(picture: Any, curve: Any, gap: int) -> None:
    for i, (x, y) in enumerate(curve):
        if i % (2 * gap) < gap + 1:
            picture[int(y), int(x)] = 160


def picture(draw: Any, side: int) -> Tuple[Any, int]:
    """(side, side) uint8, and whether the dots are joined."""
    steps, gap = side // 2 + side // 8, max(side // 16, 2)
    while True:
        curves: List[Any] = []
        for tries in range(400):
            curve = _curve(draw, side, steps if len(curves) < 2 else steps // 3)
            if curve is not None and all(np.abs(curve[:, None] - other[None]).max(-1).min() > APART for other in curves):
                curves.append(curve)
            if len(curves) == 4:
                break
        if len(curves) >= 2:
            break
    image = np.zeros((side, side), np.uint8)
    for curve in curves:
        _paint(image, curve, gap)
    joined = int(draw.integers(2))
    ends = (curves[0][0], curves[0][-1]) if joined else (curves[0][0], curves[1][int(draw.integers(2)) - 1])
    for x, y in ends:
        image[int(y) - 1:int(y) + 2, int(x) - 1:int(x) + 2] = 255
    return image, joined


def batch(seed: int, count: int, side: int) -> Tuple[Any, Any, Any]:
    """tokens (count, side * side) int64, pixels row by row; lens (count) int32, all of them; labels (count) int64."""
    draw = np.random.default_rng(seed)
    pictures, labels = zip(*(picture(draw, side) for _ in range(count)))
    tokens = np.stack(pictures).reshape(count, side * side).astype(np.int64)
    return tokens, np.full(count, side * side, np.int32), np.array(labels, np.int64)
