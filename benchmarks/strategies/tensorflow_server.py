"""TensorFlow's asynchronous parameter server on this machine: a server, WORKERS workers of one thread and a coordinator,
each a process. Trains mnist_small with plain SGD on images that lie there, and prints images a second of all workers.

usage: tensorflow_server.py [BATCH [STEPS [WORKERS]]]    (128, 400, 2)
"""
import json
import os
import socket
import subprocess
import sys
import time

BATCH, STEPS, WORKERS = ([int(word) for word in sys.argv[1:4]] + [128, 400, 2][len(sys.argv) - 1 :])[:3]
RATE = 1e-3


def start(task):
    """What every process begins with."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", OMP_NUM_THREADS="1", GRPC_VERBOSITY="NONE")
    import tensorflow as tf

    if task == "worker":
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


def serve(task):
    tf = start(task)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()


def coordinate():
    tf = start("chief")
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    shapes = [(3, 3, 1, 32), (32,), (6272, 64), (64,), (64, 10), (10,)]
    with strategy.scope():
        variables = [tf.Variable(tf.random.normal(shape, stddev=0.05)) for shape in shapes]

    @tf.function
    def step():
        images, labels = tf.ones((BATCH, 28, 28, 1)), tf.zeros((BATCH,), tf.int64)
        with tf.GradientTape() as tape:
            conv, conv_bias, first, first_bias, second, second_bias = variables
            x = tf.nn.relu(tf.nn.conv2d(images, conv, 1, "SAME") + conv_bias)
            x = tf.reshape(tf.nn.max_pool2d(x, 2, 2, "VALID"), (BATCH, 6272))
            x = tf.nn.relu(x @ first + first_bias) @ second + second_bias
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x))
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(RATE * gradient)
        return loss

    def run(steps):
        losses = [coordinator.schedule(step) for _ in range(steps)]
        coordinator.join()
        return losses

    first = run(4 * WORKERS)[0].fetch()
    begun = time.perf_counter()
    losses = run(STEPS)
    seconds = time.perf_counter() - begun
    assert losses[-1].fetch() < first, "it does not learn"
    print(f"{STEPS * BATCH / seconds:.2f}", flush=True)
    # Nothing ends a coordinator's threads in order.
    os._exit(0)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def main():
    if "TF_CONFIG" in os.environ:
        task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
        return coordinate() if task == "chief" else serve(task)
    tasks = [("ps", 0)] + [("worker", index) for index in range(WORKERS)] + [("chief", 0)]
    cluster = {}
    for kind, _ in tasks:
        cluster.setdefault(kind, []).append(f"127.0.0.1:{free_port()}")
    processes = []
    for kind, index in tasks:
        config = {"cluster": cluster, "task": {"type": kind, "index": index}}
        environment = dict(os.environ, TF_CONFIG=json.dumps(config))
        said = None if kind == "chief" else subprocess.DEVNULL
        processes.append(subprocess.Popen([sys.executable, *sys.argv], env=environment, stdout=said, stderr=said))
    try:
        return processes[-1].wait(300)
    finally:
        for process in processes:
            process.kill()


sys.exit(main())
