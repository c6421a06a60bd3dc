"""The runs of an experiment as a report reads them, from MLflow, from folders or from files of detections."""
