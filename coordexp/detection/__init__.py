"""Detection: boxes, matching and average precision.

In the order in which a file of detections is evaluated:

- ``boxes``, ``ground_truth``: boxes and annotations as arrays;
- ``names``: which image or category a name in another tool's file means;
- ``forms``: files of detections and of answers, in any form that tools write;
- ``detections``: detections of a ground truth's images as checked arrays;
- ``matching``: which detection matches which object; ``compiled``: how its loops, and those of precision, are compiled;
- ``precision``: average precision from matches, as it is and under weights of images;
- ``decomposition``: what AP50 is lost to;
- ``box_evaluation``: all of this for one file, computed once; ``metrics``: one file for each metric that reads it;
- ``coco_eval``: pycocotools' own numbers, which are the published ones;
- ``protocols``: AP as published tables have it; ``ceiling``: what quantised boxes can reach at most; ``tags``: which
  images are in which slice.
"""

from coordexp.detection.coco_eval import DetectionMetrics, evaluate_detections

__all__ = ["DetectionMetrics", "evaluate_detections"]
