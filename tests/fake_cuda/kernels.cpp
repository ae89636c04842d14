// The kernels as host code, and the calls by which tests and the driver's double run them.
#include "lanes.hpp"

#include "../../kernels/dltrain.cu"

// The arguments of a kernel, a letter each (see lanes.hpp); null: there is no such kernel.
extern "C" const char *kernel_arguments(const char *name) {
    for (lanes::Kernel *kernel = lanes::kernels(); kernel; kernel = kernel->next)
        if (strcmp(kernel->name, name) == 0) return kernel->arguments;
    return nullptr;
}

// The name of the kernel number `index`, in no order; null behind the last one.
extern "C" const char *kernel_name(int index) {
    lanes::Kernel *kernel = lanes::kernels();
    while (kernel && index-- > 0) kernel = kernel->next;
    return kernel ? kernel->name : nullptr;
}

// Runs a kernel to its end; false: there is no such kernel, or a GPU would refuse the launch.
extern "C" bool kernel_run(const char *name, const unsigned *grid, const unsigned *block, void **arguments,
                           bool descending) {
    const dim3 blocks = {grid[0], grid[1], grid[2]}, threads = {block[0], block[1], block[2]};
    if (blocks.x - 1 > 0x7ffffffeu || blocks.y - 1 > 65534u || blocks.z - 1 > 65534u) return false;
    if (threads.x == 0 || threads.y == 0 || threads.z == 0 || threads.z > 64) return false;
    if (uint64_t(threads.x) * threads.y * threads.z > 1024) return false;
    for (lanes::Kernel *kernel = lanes::kernels(); kernel; kernel = kernel->next)
        if (strcmp(kernel->name, name) == 0) {
            lanes::launch(name, kernel->invoke, blocks, threads, arguments, descending);
            return true;
        }
    return false;
}
