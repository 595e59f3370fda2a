"""Bytes to durable files and back: names on disk, manifests, tensor files, commit, catalog, sweep. Free of torch."""
