"""Data: from a user's files to batches. Formats are read in ``sources/``; nothing else here knows one.

The way of a picture and its boxes::

    files of a user  --sources/-->  the set of an experiment (sets/)  --splits/-->  samples (sample.py)
                     --dataset.py-->  encoded samples  --sampler.py, batch.py-->  batches

    coco/        annotation files of COCO: read to entries, written from arrays
    images/      image files: headers, pixels, orientation, patches
    sets/        what was read once: arrays, record, hashes. Its ``data_set.py`` is the set on disk; the ``dataset.py``
                 here is what a data loader iterates over
    splits/      which pictures a run uses, and pictures that stand on both sides
    box_limits/  boxes that a limit on objects or tokens takes away
"""
