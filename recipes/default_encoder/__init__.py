"""Trains the models in the package, from published weights to the files: python -m recipes.default_encoder STAGE…

Each stage reads the files of those before it and writes its own into a work folder (--work), and is skipped where
they are, so an interrupted run is resumed. `$TOOLSCOUT_DATA` holds the datasets; recipes/default_model_data.py makes
`pool/` in the work folder. Stages that train want a GPU, torch and transformers, and read nothing but the tokens; what
their models find of dev splits is added to measures.jsonl.

    python -m recipes.default_encoder write texts
    python -m recipes.default_encoder encoder cross distil average languages fast written
    python -m recipes.default_encoder ship

| stage | what it makes | where |
| --- | --- | --- |
| write | requests that a language model writes for catalogues without any (written.py) | GPU |
| texts | a tokeniser with more letters, and the tokens of all documents and requests (texts.py) | anywhere |
| encoder | a bi-encoder of each seed, from the published weights (bi_encoder.py) | GPU |
| cross | cross-encoders of 6 and of 3 layers, from near misses of the mean of the seeds (cross_encoder.py) | GPU |
| distil | for each seed two bi-encoders, trained beside the cross-encoder's scores (bi_encoder.py) | GPU |
| average | for each kind the mean of the weights of its seeds, and a share of the published ones | GPU |
| languages | both kinds, with translated goals where the English ones are; their mean ships (imitation.py) | GPU |
| fast | encoders of 3 and of 2 layers whose vectors lie in the space of that one (imitation.py) | GPU |
| written | nothing that ships: what the written requests of each catalogue bring | GPU |
| ship | the ONNX files, cards and digests in the package (ship.py) | anywhere |
"""
