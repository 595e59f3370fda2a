"""The training state to host memory and back. The only room that touches devices."""
