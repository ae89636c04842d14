"""The peer of benchmarks/data/run.sh: torchvision's ImageFolder and transforms behind a PyTorch DataLoader.

    peer.py make DIR            photographs of noise on smooth colours, as JPEG: 4 classes, train/ and val/
    peer.py load DIR WORKERS BATCHES    images/s, and mean and deviation of the first 16 images of val/, as evaluated
"""

import sys
import time
from pathlib import Path


def make(directory):
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for part, count in (("train", 160), ("val", 8)):
        for label in range(4):
            (directory / part / f"class{label}").mkdir(parents=True, exist_ok=True)
            for index in range(count):
                height, width = (375, 500) if index % 2 else (500, 375)
                small = random.integers(0, 255, (height // 16 + 1, width // 16 + 1, 3), dtype=np.uint8)
                image = np.array(Image.fromarray(small).resize((width, height), Image.BICUBIC)).astype(int)
                image = (image + random.integers(-12, 12, (height, width, 3))).clip(0, 255).astype(np.uint8)
                # ImageNet's files are of about this quality: 110 KB on the average.
                Image.fromarray(image).save(directory / part / f"class{label}" / f"{index:04}.JPEG", quality=90)


def load(directory, workers, batches):
    import torch
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    torch.set_num_threads(1)
    normalise = [transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    augment = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    evaluate = [transforms.Resize(256), transforms.CenterCrop(224)]
    training = ImageFolder(directory / "train", transforms.Compose(augment + normalise))
    test = ImageFolder(directory / "val", transforms.Compose(evaluate + normalise))
    images = torch.stack([test[index][0] for index in range(16)])
    loader = torch.utils.data.DataLoader(
        training, batch_size=32, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=workers > 0
    )

    def forever():
        while True:
            yield from loader

    batch = forever()
    for _ in range(2):
        next(batch)
    begun = time.perf_counter()
    for _ in range(batches):
        next(batch)
    rate = 32 * batches / (time.perf_counter() - begun)
    print(f"{rate:.1f} images/s, {rate / max(workers, 1):.1f} a thread; evaluated images: "
          f"mean {images.double().mean():.4f}, deviation {images.double().std(correction=0):.4f}")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        load(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
