"""One file a peer. They run in the environment of the peer, where neither toolscout nor this package is installed."""
