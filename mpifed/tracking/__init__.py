"""Sends what a run records to TensorBoard, MLflow or Weights & Biases."""
