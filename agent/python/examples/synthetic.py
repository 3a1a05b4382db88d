"""Data sets that the examples make for themselves, the same in every process.

Nothing is downloaded: the "digits" are drawn from small bitmaps, moved, dimmed and
covered with noise; the regression targets come from random weights. All of it is a
function of the arguments, through numpy's frozen RandomState.
"""

from typing import Tuple

import numpy as np

# Ten glyphs of 5 x 7 pixels, row by row.
GLYPHS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)
SIDE = 16
# Noise images to choose from; a fresh draw for each batch would cost more than the net.
NOISES = 4093


class Digits:
    """Drawn digits: ten glyphs, moved and dimmed, under noise that is new in each epoch.

    ``images`` float32 (samples, 1, 16, 16), without noise; ``labels`` float32 (samples,)
    from 0 to 9. A share of the labels is wrong on purpose: no model can know them, so
    the loss levels off above zero, as it does with real data.
    """

    def __init__(
        self, samples: int, seed: int, mislabelled: float = 0.08, noise: float = 0.5
    ) -> None:
        random = np.random.RandomState(seed)
        glyphs = [[[int(pixel) for pixel in row] for row in glyph.split()] for glyph in GLYPHS]
        shapes = np.array(glyphs, np.float32).repeat(2, axis=1).repeat(2, axis=2)  # (10, 14, 10)
        height, width = shapes.shape[1:]
        classes = random.randint(0, len(GLYPHS), samples)
        tops = random.randint(0, SIDE - height + 1, samples)
        lefts = random.randint(0, SIDE - width + 1, samples)
        brightness = random.uniform(0.5, 1.5, samples)
        self.images = np.zeros((samples, 1, SIDE, SIDE), np.float32)
        for image, kind, top, left, bright in zip(self.images, classes, tops, lefts, brightness):
            image[0, top:top + height, left:left + width] = bright * shapes[kind]
        self.images -= self.images.mean()
        wrong = random.uniform(size=samples) < mislabelled
        self.labels = np.where(wrong, random.randint(0, len(GLYPHS), samples), classes)
        self.labels = self.labels.astype(np.float32)
        self._noise = random.normal(0.0, noise, (NOISES, 1, SIDE, SIDE)).astype(np.float32)

    def noisy(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Images float32 (n, 1, 16, 16) with noise that depends on sample and epoch alone.

        Fresh noise keeps a model from learning the wrong labels by heart.
        """
        # Two primes spread the choice over the noise images.
        return self.images[indices] + self._noise[(indices * 7919 + epoch * 104729) % NOISES]


def regression(
    samples: int, features: int, seed: int, noise: float
) -> Tuple[np.ndarray, np.ndarray]:
    """Inputs float32 (samples, features) and targets float32 (samples, 1).

    The targets depend on all inputs alike, but the inputs come on ever smaller scales:
    what is learnt from the large ones comes at once, the rest slower and slower. Noise
    of the given standard deviation leaves its square as the loss that stays.
    """
    random = np.random.RandomState(seed)
    inputs = random.normal(size=(samples, features))
    teacher = random.normal(size=(features, 1)) / np.sqrt(features)
    targets = inputs @ teacher + random.normal(0.0, noise, (samples, 1))
    inputs /= np.arange(1, features + 1) ** 0.75
    return inputs.astype(np.float32), targets.astype(np.float32)
