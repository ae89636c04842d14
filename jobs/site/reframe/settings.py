"""Where dltrain's checks run: set the partitions to the site's own.

`squeue` serves a Slurm without accounting; with it write `slurm`. `access` is what sbatch needs here (an account, a
partition, whole nodes).
"""

site_configuration = {
    "systems": [
        {
            "name": "site",
            "descr": "the nodes that dltrain is for",
            "hostnames": [".*"],
            "modules_system": "nomod",
            "partitions": [
                {
                    "name": "cpu",
                    "descr": "whole nodes",
                    "scheduler": "squeue",
                    "launcher": "srun",
                    "access": ["--exclusive"],
                    "environs": ["builtin"],
                    "max_jobs": 4,
                }
            ],
        }
    ],
}
