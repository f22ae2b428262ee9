"""A machine of its own for ReFrame, with mpirun; a centre's own settings take its place."""

site_configuration = {
    "systems": [
        {
            "name": "here",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "default",
                    "scheduler": "local",
                    "launcher": "mpirun",
                    "environs": ["builtin"],
                }
            ],
        }
    ],
    "environments": [{"name": "builtin"}],
}
