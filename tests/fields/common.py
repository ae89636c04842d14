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


def losses_of(net, inputs, targets, rate, steps):
    """Those of steps of stochastic gradient descent with momentum 0.9, each of all samples, by the mean of squares."""
    import torch
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)
