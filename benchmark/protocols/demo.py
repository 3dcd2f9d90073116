"""The demonstration: the embedded dataset, a tiny network, about a second and a half per run."""

from benchmark.protocol import Protocol, protocols
from benchmark.spec import Training

protocols.register("demo")(
    Protocol(
        doc="MiniDigits with a tiny CNN, one seed; made to finish in seconds, not to be cited",
        datasets=("MiniDigits",),
        backbone="cnn_tiny_bn",
        training=Training(
            rounds=10, local_steps=14, batch_size=16, lr=0.05, momentum=0.9, evaluate_every=2
        ),
        seeds=(0,),
        transform="digits",
        image_size=32,
    )
)
