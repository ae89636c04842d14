"""What PyTorch gives of a network of networks.py, written down beside the file that its exporter made of it."""
import json
import pathlib

import numpy as np
import onnx
import torch
from torchvision.ops import StochasticDepth

import networks

# Parameters from which gradients are computed once: memory.
LARGE = 400_000_000
STEPS = 2


# A number of channels, with so many bytes of numbers each, is looked up by these.
def key_of(numbers):
    return numbers.size, np.ascontiguousarray(numbers, np.float32).tobytes()


def tensors_of(file):
    """Of real numbers, by name."""
    tensors = [(tensor.name, onnx.numpy_helper.to_array(tensor)) for tensor in onnx.load(str(file)).graph.initializer]
    return [(name, numbers) for name, numbers in tensors if numbers.dtype == np.float32]


def counterparts(tensors, net):
    """For each parameter of a file which of PyTorch's it is, and by what each of its outputs was multiplied when the
    exporter put a normalisation into it. What it computed of parameters (biases of normalisations, tables) is none."""
    own = {name: parameter.detach().numpy() for name, parameter in net.named_parameters()}
    by_value = {}
    for name, numbers in own.items():
        by_value.setdefault(key_of(numbers), name)
        if numbers.ndim == 2:
            by_value.setdefault(key_of(numbers.T), name)
    found, left = {}, set(own)
    tensors = [(name, numbers) for name, numbers in tensors if numbers.size > 1]
    for name, numbers in tensors:
        one = numbers[:1] if numbers.ndim > 1 and (numbers == numbers[:1]).all() else numbers
        theirs = name if name in own and np.array_equal(own[name], numbers) else by_value.get(key_of(numbers))
        theirs = theirs or by_value.get(key_of(one))
        if theirs in left:
            found[name] = theirs, None
            left.remove(theirs)
    for name, numbers in tensors:
        for theirs in [name] if name in left else sorted(left) if numbers.ndim > 2 and name not in found else []:
            if theirs not in left or own[theirs].shape != numbers.shape or numbers[0].size < 2:
                # Of single numbers any is a multiple of any.
                continue
            rows = [array.reshape(len(numbers), -1).astype(np.float64) for array in (numbers, own[theirs])]
            ratios = (rows[0] * rows[1]).sum(1) / (rows[1] ** 2).sum(1)
            if np.allclose(rows[0], rows[1] * ratios[:, None], rtol=1e-4, atol=1e-6 * np.abs(rows[0]).max()):
                found[name] = theirs, torch.tensor(ratios.reshape([-1] + [1] * (numbers.ndim - 1)).astype(np.float32))
                left.remove(theirs)
                break
    return found


def as_trained(net, way, names):
    """Without what is drawn at random; normalisations by the batch where the file has them still."""
    for module in net.modules():
        if isinstance(module, (torch.nn.Dropout, StochasticDepth)):
            module.p = 0.0
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
    net.train(way == "training")
    for name, module in net.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and f"{name}.running_mean" in names:
            module.train()


def gradients(net, images, labels):
    net.zero_grad()
    for module in net.modules():
        # timm's, in evaluation: of a graph that the last backward pass has freed.
        getattr(module, "attention_bias_cache", {}).clear()
    loss = torch.nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    return loss.item(), {key: parameter.grad for key, parameter in net.named_parameters()}


def prepared(name, way, file, seed):
    """The network with the file's statistics, what is whose, and a batch."""
    torch.set_num_threads(1)
    size, net = networks.size_of(name), networks.build(name)
    tensors, buffers = tensors_of(file), dict(net.named_buffers())
    # An export for training runs the network, which moves its statistics.
    for key, numbers in tensors:
        if key in buffers and buffers[key].shape == numbers.shape:
            buffers[key].copy_(torch.tensor(numbers))
    batch = 2 if size > 200 else 4
    torch.manual_seed(1000 + seed)
    images, labels = torch.randn(batch, 3, size, size), torch.arange(batch) % networks.CLASSES
    return net, counterparts(tensors, net), {key for key, _ in tensors}, images, labels


def descended(net, found, theirs, rate, images, labels):
    """The losses behind STEPS steps of gradient descent of what is the file's too, the first with these gradients."""
    losses, parameters = [], dict(net.named_parameters())
    for _ in range(STEPS):
        with torch.no_grad():
            for of, ratios in found.values():
                # A step of what the file has, of which this is a part.
                parameters[of] -= rate * theirs[of] / (1.0 if ratios is None else ratios**2)
        loss, theirs = gradients(net, images, labels)
        losses.append(loss)
    return losses


def write(name, way, file, place, seed):
    """A batch, and what PyTorch says of it: scores, gradients, and the losses of STEPS steps of gradient descent of
    all parameters that are the file's, too."""
    net, found, names, images, labels = prepared(name, way, file, seed)
    images.numpy().tofile(place / "images")
    labels.int().numpy().tofile(place / "labels")
    with torch.no_grad():
        net.eval()(images).numpy().tofile(place / "logits")
    as_trained(net, way, names)
    loss, theirs = gradients(net, images, labels)
    found = {key: of for key, of in found.items() if theirs[of[0]] is not None}
    sizes, squares = {}, 0.0
    (place / "theirs").mkdir()
    for key, (of, ratios) in found.items():
        gradient = theirs[of] / (1.0 if ratios is None else ratios)
        squares += gradient.double().square().sum().item()
        sizes[key] = gradient.double().square().mean().sqrt().item()
        gradient.numpy().tofile(place / "theirs" / key.replace("/", "~"))
    # A step that takes a twentieth of the loss, where that is a plane.
    rate = np.float32(0.05 * loss / max(squares, 1e-30))
    (place / "rate").write_text(repr(float(rate)))
    (place / "learned").write_text("".join(f"{key}\n" for key in found))
    given = sum(gradient is not None for gradient in theirs.values())
    losses = [loss, *descended(net, found, theirs, float(rate), images, labels)]
    count = sum(parameter.numel() for parameter in net.parameters())
    said = {"count": count, "losses": losses, "sizes": sizes, "image": images.shape[2], "batch": len(images),
            "tensors": given, "whole": way == "training"}
    (place / "said.json").write_text(json.dumps(said))


def in_sequence(x, mean, variance, weight, bias, training=False, momentum=0.1, eps=1e-5):
    """torch.nn.functional.batch_norm, with the sums of the batch's statistics one number after the other in float32, as
    libraries may have them and oneDNN has. PyTorch's are in float64 on a CPU."""
    if not training:
        return batch_norm(x, mean, variance, weight, bias, False, momentum, eps)
    axes = [0, *range(2, x.dim())]

    def moved(exact, of):
        rows = of.detach().transpose(0, 1).flatten(1).numpy()
        summed = np.add.accumulate(rows, axis=1)[:, -1] / rows.shape[1]
        return exact + (torch.from_numpy(summed).reshape(exact.shape) - exact).detach()

    mean = moved(x.mean(axes, keepdim=True), x)
    x = x - mean
    variance = moved((x * x).mean(axes, keepdim=True), x * x)
    return x * torch.rsqrt(variance + eps) * weight.reshape(mean.shape) + bias.reshape(mean.shape)


batch_norm = torch.nn.functional.batch_norm


def write_noise(name, way, file, place, seed):
    """How far off PyTorch's own gradients and losses are: in float64, which few networks refuse, and in float32 with
    other roundings, of images that are off by one each and of sums; 0 of the largest, for memory."""
    said = json.loads((place / "said.json").read_text())
    noise, of_losses = dict.fromkeys(said["sizes"], 0.0), 0.0
    for is_exact in (False, True) if said["count"] < LARGE else ():
        net, found, names, images, labels = prepared(name, way, file, seed)
        as_trained(net, way, names)
        torch.nn.functional.batch_norm = batch_norm
        if is_exact:
            net, images = net.double(), images.double()
        else:
            images = images * (1 + 2**-22 * torch.randint(-1, 2, images.shape))
            torch.nn.functional.batch_norm = in_sequence
        try:
            loss, theirs = gradients(net, images, labels)
        except RuntimeError:
            # What a network computes in float32 come what may.
            continue
        for key in said["sizes"]:
            of, ratios = found[key]
            before = torch.from_numpy(np.fromfile(place / "theirs" / key.replace("/", "~"), np.float32))
            gradient = theirs[of] / (1.0 if ratios is None else ratios)
            noise[key] = max(noise[key], (gradient.flatten() - before).norm().item())
        losses = [loss, *descended(net, found, theirs, float((place / "rate").read_text()), images, labels)]
        of_losses = max(of_losses, *(abs(a - b) / b for a, b in zip(losses, said["losses"], strict=True)))
    (place / "said.json").write_text(json.dumps(said | {"noise": noise, "noise of losses": of_losses}))
