#!/usr/bin/env python3
r"""Holds what dltrain imports to networks of other frameworks, as their own exporters write them.

    python3 -m venv DIR && DIR/bin/pip install tensorflow-cpu tf2onnx          # or paddlepaddle paddle2onnx packaging
    DIR/bin/python tests/torchvision/exporters.py tf2onnx -- COMMAND...        # paddle2onnx, keras-torch

COMMAND is that of zoo.py, after `eval "$(.ci/env openmpi)"`: cargo test --test suite -- --exact
onnx::zoo::scene_of_networks --ignored. Each exporter writes three networks with random weights, in inference mode;
`keras-torch` is Keras on PyTorch (pip install keras torch onnx onnxscript), which keeps channels last. Compared is what
the exporting framework computes, to 1e-4 of its norm, and dltrain must learn: the loss of a batch is less after a step.
With `--fixtures` small networks for `make test` are written in place of that, into tests/fixtures/onnx.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures/onnx"
TOLERANCE = 1e-4


def keras_network(name, size):
    import keras

    keras.utils.set_random_seed(1)
    how = {"include_preprocessing": False} if name.startswith("EfficientNetV2") else {}
    return getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10, **how)


def export_by_tf2onnx(net, path):
    import tensorflow as tf
    import tf2onnx

    spec = (tf.TensorSpec((None, *net.input_shape[1:]), tf.float32, name="images"),)
    function = tf.function(lambda x: net(x, training=False), input_signature=spec)
    tf2onnx.convert.from_function(function, input_signature=spec, opset=17, output_path=str(path))
    return lambda x: net(x, training=False).numpy()


def export_by_keras(net, path):
    # What was never called is not exported.
    net(np.zeros((1, *net.input_shape[1:]), np.float32))
    net.export(str(path), format="onnx", verbose=False)
    return lambda x: net(x, training=False).detach().cpu().numpy()


def export_by_paddle(name, path):
    import paddle

    paddle.seed(1)
    net = getattr(paddle.vision.models, name)(num_classes=10)
    net.eval()
    spec = [paddle.static.InputSpec([None, 3, 64, 64], "float32", "images")]
    paddle.onnx.export(net, str(path.with_suffix("")), input_spec=spec, opset_version=17)
    return lambda x: net(paddle.to_tensor(x)).numpy()


NETWORKS = {
    "tf2onnx": [("MobileNetV2", 96), ("ResNet50V2", 64), ("EfficientNetV2B0", 96)],
    "keras-torch": [("MobileNet", 64), ("DenseNet121", 64), ("ResNet50", 64)],
    "paddle2onnx": [("resnet18", 64), ("mobilenet_v3_small", 64), ("shufflenet_v2_x0_5", 64)],
}


def make(exporter, name, size, place):
    """Writes the file and a batch; gives what the framework computes of it."""
    images = np.random.RandomState(0).randn(4, 3, size, size).astype(np.float32)
    if exporter == "paddle2onnx":
        expected = export_by_paddle(name, place / "net.onnx")(images)
    else:
        export = export_by_tf2onnx if exporter == "tf2onnx" else export_by_keras
        expected = export(keras_network(name, size), place / "net.onnx")(images.transpose(0, 2, 3, 1))
    images.tofile(place / "images")
    np.arange(4, dtype=np.int32).tofile(place / "labels")
    (place / "rate").write_text("0.01")
    return np.asarray(expected, np.float64)


def verdict(place, expected):
    if (place / "ours/refused").exists():
        return (place / "ours/refused").read_text()
    if not (place / "ours/losses").exists():
        return "it ended without an answer"
    ours = np.fromfile(place / "ours/logits", np.float32).reshape(expected.shape).astype(np.float64)
    # A softmax at the end is left out at import.
    if (expected >= 0).all() and np.allclose(expected.sum(1), 1, atol=1e-4):
        ours = np.exp(ours - ours.max(1, keepdims=True))
        ours /= ours.sum(1, keepdims=True)
    error = np.linalg.norm(ours - expected) / np.linalg.norm(expected)
    before, after = np.fromfile(place / "ours/losses", np.float32)[:2]
    sound = error <= TOLERANCE and after < before
    return f"{'equal' if sound else 'UNLIKE'}: scores {error:.0e}, loss {before:.4f}, then {after:.4f}"


def small_network():
    """Channels last, in what TensorFlow pads more on one side: convolutions, normalisation, a residual, pooling."""
    import keras
    from keras import layers

    x = first = keras.Input((9, 9, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False, name="conv1")(x)
    x = layers.ReLU(6.0)(layers.BatchNormalization(name="bn1")(x))
    y = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="conv2")(x)
    y = layers.ReLU()(layers.BatchNormalization(name="bn2")(y))
    x = layers.MaxPooling2D(2)(layers.Add()([x, y]))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(6, 1, name="conv3")(x))
    net = keras.Model(first, layers.Dense(5, activation="softmax", name="head")(x))
    draw = np.random.RandomState(2)
    net.set_weights([draw.uniform(0.5, 1.5, w.shape) if w.ndim == 1 else draw.randn(*w.shape) * 0.5
                     for w in net.get_weights()])
    return net


def fixtures(exporter):
    import onnx

    export = {"tf2onnx": export_by_tf2onnx, "keras-torch": export_by_keras}[exporter]
    path = FIXTURES / f"{exporter}.onnx"
    compute = export(small_network(), path)
    file = onnx.load(path)
    for node in file.graph.node:
        node.ClearField("doc_string"), node.ClearField("metadata_props")
    path.write_bytes(file.SerializeToString())
    images = np.random.RandomState(0).randn(4, 3, 9, 9).astype(np.float32)
    expected = compute(images.transpose(0, 2, 3, 1))
    rounded = lambda all: [float(f"{number:.9g}") for number in np.asarray(all).ravel()]
    numbers = {"images": rounded(images), "probabilities": rounded(expected)}
    (FIXTURES / "channels_last.json").write_text(json.dumps(numbers) + "\n")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("exporter", choices=NETWORKS)
    arguments.add_argument("--fixtures", action="store_true")
    arguments.add_argument("command", nargs="*")
    given = arguments.parse_args()
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ["KERAS_BACKEND"] = "torch" if given.exporter == "keras-torch" else "tensorflow"
    if given.fixtures:
        return fixtures(given.exporter)
    with tempfile.TemporaryDirectory() as directory:
        places = {}
        for name, size in NETWORKS[given.exporter]:
            place = pathlib.Path(directory) / name
            place.mkdir()
            places[name] = (place, make(given.exporter, name, size, place))
        listed = pathlib.Path(directory) / "list"
        listed.write_text("".join(f"{place}\n" for place, _ in places.values()))
        subprocess.run(given.command, check=True, env={**os.environ, "DLTRAIN_NETWORKS": str(listed)})
        verdicts = {name: verdict(*place) for name, place in places.items()}
    for name, what in verdicts.items():
        print(f"{given.exporter:<12} {name:<20} {what}")
    if not all(what.startswith("equal") for what in verdicts.values()):
        sys.exit("some are unlike")


main()
