#!/bin/sh
# For Horovod: where it may start ranks, as two hosts, since it leaves out the host of a lost rank.
echo localhost:1
echo 127.0.0.1:1
