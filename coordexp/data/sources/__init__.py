"""Sources: whatever a user has -> what was read of its splits, and the set of an experiment.

source.py      chooses the format of a split; ``folder/`` finds out what ``data.path`` holds
coco/          COCO and LVIS. ``labelled.py`` makes entries of COCO of the labels of ``voc.py``, ``yolo/`` and
``hugging_face/``, which go the same way from there
jsonl/         records, one on each line
read_data.py   reads all splits, with units and tags
door.py        writes the set, or finds that it is there
"""
