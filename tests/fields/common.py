"""What the comparisons of training from files have in common."""
import numpy as np

# Weights of DeepCAM's classes, its reference's frequencies to the power -1/8, and (H, W) of a crop.
WEIGHTS, CROP = [1.0017, 2.6146, 1.7164], (96, 144)


def smooth(random, shape):
    """Noise whose neighbours are alike, as fields are."""
    field = random.standard_normal(shape).astype("f4")
    for axis in (-2, -1):
        for _ in range(3):
            field = (field + np.roll(field, 1, axis) + np.roll(field, -1, axis)) / 3
    return field / field.std()
