"""What PyTorch gives of a network of networks.py, written down beside the file that its exporter made of it."""
import collections
import json
import pathlib
import zlib

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
    exporter put a normalisation into it. What it computed of parameters (biases of normalisations, tables) is none; nor
    is one matrix that stands for several."""
    own = {name: parameter.detach().numpy() for name, parameter in net.named_parameters()}
    by_value = {}
    for name, numbers in own.items():
        by_value.setdefault(key_of(numbers), name)
        if numbers.ndim == 2:
            by_value.setdefault(key_of(numbers.T), name)
    found, left = {}, set(own)
    tensors = [(name, numbers) for name, numbers in tensors if numbers.size > 1]
    alike = collections.Counter(key for numbers in own.values() for key in {key_of(numbers), key_of(numbers.T)})
    there = collections.Counter(key_of(numbers) for _, numbers in tensors)
    for name, numbers in tensors:
        # One matrix that an exporter wrote for several with equal first values learns what these do together.
        if numbers.ndim > 1 and alike[key_of(numbers)] > there[key_of(numbers)]:
            continue
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


def normalised(net, way, names):
    """The normalisations that a file has still."""
    modules = [(name, module) for name, module in net.named_modules() if f"{name}.running_mean" in names]
    return [name for name, module in modules if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]


def as_trained(net, way, own):
    """Without what is drawn at random; normalisations by the batch where the file has them still."""
    for module in net.modules():
        if isinstance(module, (torch.nn.Dropout, StochasticDepth)):
            module.p = 0.0
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
    net.train(way == "training")
    for name in own:
        net.get_submodule(name).train()


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


def of_file(gradient, ratios):
    return gradient / (1.0 if ratios is None else ratios)


class Computed:
    """What PyTorch computes of a network and a batch, by itself ("f32") or in another way. It is the same for all files
    of that network which have the same normalisations, and kept in the directory `kept` for these."""

    def __init__(self, name, way, file, seed, kept, by="f32"):
        self.net, found, names, self.images, self.labels = prepared(name, way, file, seed)
        torch.nn.functional.batch_norm = in_sequence if by == "sequence" else batch_norm
        self.own = normalised(self.net, way, names)
        state = zlib.crc32("".join([way == "training" and way or "", *self.own]).encode())
        self.kept = pathlib.Path(kept) / f"{by} {seed} {state}"
        self.kept.mkdir(parents=True, exist_ok=True)
        self.way, self.by = way, by
        self.numbers = self.once("numbers", self.compute)
        self.found = {key: of for key, of in found.items() if self.numbers["gradients"][of[0]] is not None}

    def once(self, what, compute):
        if not (self.kept / what).exists():
            torch.save(compute(), self.kept / "part")
            (self.kept / "part").rename(self.kept / what)
        return torch.load(self.kept / what)

    def changed(self):
        as_trained(self.net, self.way, self.own)
        if self.by == "f64":
            self.net, self.images = self.net.double(), self.images.double()
        elif self.by == "sequence":
            torch.manual_seed(0)
            self.images = self.images * (1 + 2**-22 * torch.randint(-1, 2, self.images.shape))

    def compute(self):
        logits = None
        if self.by != "sequence":
            exact = torch.float64 if self.by == "f64" else torch.float32
            with torch.no_grad():
                logits = self.net.to(exact).eval()(self.images.to(exact)).float()
        images = self.images
        self.changed()
        loss, theirs = gradients(self.net, self.images, self.labels)
        self.images = images
        theirs = {key: None if of is None else of.float() for key, of in theirs.items()}
        return {"logits": logits, "loss": loss, "gradients": theirs}

    def losses(self, rate):
        """Three losses of two steps, and the rate of those: of files in which the same parameters are put together with
        the same factors they are the same."""
        of = {theirs: ratios for theirs, ratios in self.found.values()}
        alike = lambda a, b: a is b if a is None or b is None else a.shape == b.shape and torch.allclose(a, b, 1e-5)
        known = self.once("losses", list)
        for before, rate_then, losses in known:
            if before.keys() == of.keys() and all(alike(before[key], of[key]) for key in of):
                return rate_then, losses
        self.changed()
        first = self.numbers["gradients"]
        losses = [self.numbers["loss"], *descended(self.net, self.found, first, rate, self.images, self.labels)]
        torch.save([*known, (of, rate, losses)], self.kept / "losses")
        return rate, losses


def write(name, way, file, place, seed, kept):
    """A batch, and what PyTorch says of it: scores, gradients, and the losses of STEPS steps of gradient descent of
    all parameters that are the file's, too."""
    computed = Computed(name, way, file, seed, kept)
    theirs, found, images = computed.numbers["gradients"], computed.found, computed.images
    images.numpy().tofile(place / "images")
    computed.labels.int().numpy().tofile(place / "labels")
    computed.numbers["logits"].numpy().tofile(place / "logits")
    sizes, squares = {}, 0.0
    (place / "theirs").mkdir()
    for key, (of, ratios) in found.items():
        gradient = of_file(theirs[of], ratios)
        squares += gradient.double().square().sum().item()
        sizes[key] = gradient.double().square().mean().sqrt().item()
        gradient.numpy().tofile(place / "theirs" / key.replace("/", "~"))
    # A step that takes a twentieth of the loss, where that is a plane.
    rate, losses = computed.losses(float(np.float32(0.05 * computed.numbers["loss"] / max(squares, 1e-30))))
    (place / "rate").write_text(repr(rate))
    # What the newer exporter has under a name of its own dltrain calls as PyTorch does.
    called = {key: of for key, (of, _) in found.items()}
    (place / "learned").write_text("".join(f"{name}\n" for name in {*called, *called.values()}))
    given = sum(gradient is not None for gradient in theirs.values())
    count = sum(parameter.numel() for parameter in computed.net.parameters())
    said = {"count": count, "losses": losses, "sizes": sizes, "image": images.shape[2], "batch": len(images),
            "tensors": given, "whole": way == "training", "called": called}
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


def write_noise(name, way, file, place, seed, kept):
    """How far off PyTorch's own gradients and losses are: in float64, which few networks refuse, and in float32 with
    other roundings, of images that are off by one each and of sums; 0 of the largest, for memory. And the least norm
    that it has of each gradient: nothing to speak of where that is nothing but rounding."""
    said = json.loads((place / "said.json").read_text())
    noise, least, of_losses, of_logits = dict.fromkeys(said["sizes"], 0.0), {}, 0.0, 0.0
    for by in ("sequence", "f64") if said["count"] < LARGE else ():
        try:
            computed = Computed(name, way, file, seed, kept, by)
            _, losses = computed.losses(float((place / "rate").read_text()))
        except RuntimeError:
            # What a network computes in float32 come what may.
            continue
        for key in said["sizes"]:
            of, ratios = computed.found[key]
            before = torch.from_numpy(np.fromfile(place / "theirs" / key.replace("/", "~"), np.float32))
            gradient = of_file(computed.numbers["gradients"][of], ratios).flatten()
            noise[key] = max(noise[key], (gradient - before).norm().item())
            least[key] = min(least.get(key, before.norm().item()), gradient.norm().item())
        of_losses = max(of_losses, *(abs(a - b) / b for a, b in zip(losses, said["losses"], strict=True)))
        if by == "f64":
            exact = computed.numbers["logits"].numpy().astype(np.float64).flatten()
            of_logits = np.linalg.norm(np.fromfile(place / "logits", np.float32) - exact) / np.linalg.norm(exact)
    more = {"noise": noise, "least": least, "noise of losses": of_losses, "noise of logits": float(of_logits)}
    (place / "said.json").write_text(json.dumps(said | more))
