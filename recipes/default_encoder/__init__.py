"""Trains the models in the package, from published weights to the files: python -m recipes.default_encoder STAGE

Each stage reads the files of those before it and writes its own into a work folder, and is skipped where they are, so
an interrupted run is resumed. Stages that train want a GPU, torch, transformers and tokenizers, and nothing else.

| stage | what it makes | where |
| --- | --- | --- |
| texts | tokens of all documents and requests (texts.py) | anywhere |
| prompts | what a language model is asked to write requests for (written.py) | anywhere |
| write | its answers (written.py) | GPU |
| keep | the requests that pass the filters (written.py) | anywhere |
| encoder | a bi-encoder from the published weights (bi_encoder.py) | GPU |
| cross | a cross-encoder, trained on near misses of that encoder (cross_encoder.py) | GPU |
| distil | the encoder, trained again beside the cross-encoder's scores and translated goals (bi_encoder.py) | GPU |
| fast | encoders of fewer layers whose vectors lie in the space of that one (fast_encoder.py) | GPU |
| ship | the ONNX files, cards and digests in the package (ship.py) | anywhere |
"""
