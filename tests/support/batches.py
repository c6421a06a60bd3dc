"""Encoded samples by hand, and batches of them."""

import numpy as np

from coordexp.data.batch import EncodedSample, collate

FIRST, IMAGE = 20, 1
COORDS = range(FIRST, FIRST + 1000)


def sample(prompt, target, coord_index=(), image_id=1, *, is_filler=False):
    index = np.array(coord_index, np.int64).reshape(-1, 4)
    cut = [at for at, token in enumerate(target) if token in COORDS and at not in index]
    bins = np.array(target, np.int64)[index] - FIRST if len(index) else np.zeros((0, 4))
    return EncodedSample(
        prompt_ids=prompt,
        target_ids=target,
        patches=np.zeros((4, 12), np.uint8),
        grid=(2, 2),
        boxes_norm_xyxy=(bins / 1000).astype(np.float32),
        coord_index=index,
        image_id=image_id,
        cut_index=np.array(cut, np.int64),
        is_filler=is_filler,
    )


def objects(*bins):
    """A target of objects ``[5, x1, y1, x2, y2, 6]`` whose first bins are ``bins``, and where their coords are."""
    target = [token for k in bins for token in (5, *(FIRST + k + i for i in range(4)), 6)]
    return [*target, 2], [[6 * i + at for at in (1, 2, 3, 4)] for i in range(len(bins))]


# One object, then a sample whose only object is cut after two coords, then none, a filler, and two objects.
ONE = sample([3, IMAGE, 3], *objects(10), image_id=11)
CUT = sample([IMAGE], [5, 6, 6, FIRST + 1, FIRST + 2], image_id=12)
NONE = sample([IMAGE], [2], image_id=13)
FILLER = sample([IMAGE], [], image_id=14, is_filler=True)
TWO = sample([IMAGE, 3], *objects(500, 700), image_id=15)


def padded(samples, **keys):
    return collate(samples, pad_id=0, image_token_id=IMAGE, **keys)
