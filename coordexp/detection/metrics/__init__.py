"""Metrics of detections, found by :mod:`coordexp.detection.metric`."""
